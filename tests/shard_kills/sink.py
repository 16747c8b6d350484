"""Where members write their rows: a database that refuses what an earlier owner of a shard writes, and a log."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

#: An entry ID as two numbers.
EntryId = tuple[int, int]


class Row(NamedTuple):
    """A row as a member wrote it."""

    shard: str
    entry_id: EntryId
    key: str
    number: int
    #: The fencing token: it grows each time that a shard is taken.
    epoch: int
    member: str
    #: Seconds since the epoch, if it is from the log.
    at: float = 0.0


def entry_id(text: str) -> EntryId:
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence)


class Sink:
    """The database and the log of a run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        self._log_path = folder / "log"
        self._log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._database = sqlite3.connect(self._path, timeout=300, isolation_level=None)
        # What a killed process has committed is the kernel's: it needs no fsync.
        self._database.execute("PRAGMA synchronous=OFF")

    @staticmethod
    def create(folder: Path, shards: Sequence[str]) -> None:
        with closing(sqlite3.connect(folder / "rows.db")) as database, database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(
                "CREATE TABLE shards (shard TEXT PRIMARY KEY, epoch INTEGER, ms INTEGER, sequence INTEGER)"
            )
            columns = "shard TEXT, ms INTEGER, sequence INTEGER, key TEXT, number INTEGER, epoch INTEGER, member TEXT"
            database.execute(f"CREATE TABLE rows (place INTEGER PRIMARY KEY, {columns})")
            database.executemany("INSERT INTO shards VALUES (?, 0, 0, 0)", [(shard,) for shard in shards])

    def note(self, rows: Sequence[Row]) -> None:
        """Append rows to the log, at one time: the order of its lines is that of the writes of all processes."""
        at = time.time()
        lines = (
            " ".join(map(str, (f"{at:.6f}", row.shard, "{}-{}".format(*row.entry_id), *row[2:6]))) + "\n"
            for row in rows
        )
        os.write(self._log, "".join(lines).encode())

    def write(self, rows: Sequence[Row]) -> bool:
        """Write rows of one shard, unless they are there. False: a later owner has written, and nothing was changed."""
        shard, epoch, last = rows[0].shard, rows[0].epoch, rows[-1].entry_id
        self._database.execute("BEGIN IMMEDIATE")
        try:
            (done,) = self._database.execute("SELECT ms, sequence FROM shards WHERE shard = ?", (shard,))
            new = [row for row in rows if row.entry_id > done]
            changed = self._database.execute(
                "UPDATE shards SET epoch = ?, ms = ?, sequence = ? WHERE shard = ? AND epoch <= ?",
                (epoch, *max(done, last), shard, epoch),
            )
            if changed.rowcount == 1:
                columns = "shard, ms, sequence, key, number, epoch, member"
                self._database.executemany(
                    f"INSERT INTO rows ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(shard, *row.entry_id, row.key, row.number, epoch, row.member) for row in new],
                )
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return changed.rowcount == 1

    def ends(self) -> dict[str, EntryId]:
        """The last entry of each shard that is in the database."""
        return {
            shard: (ms, last) for shard, ms, last in self._database.execute("SELECT shard, ms, sequence FROM shards")
        }

    def rows(self) -> Iterator[Row]:
        """The rows of the database, in the order in which they were written."""
        query = "SELECT shard, ms, sequence, key, number, epoch, member FROM rows ORDER BY place"
        for shard, ms, sequence, key, number, epoch, member in self._database.execute(query):
            yield Row(shard, (ms, sequence), key, number, epoch, member)

    def log(self, begin: int = 0) -> Iterator[Row]:
        """The rows of the log, from this byte on."""
        with self._log_path.open() as file:
            file.seek(begin)
            for line in file:
                # A process that was killed as it wrote may have left a part of a line.
                if len(words := line.split(" ")) == 7 and line.endswith("\n"):
                    at, shard, entry, key, number, epoch, member = words
                    yield Row(shard, entry_id(entry), key, int(number), int(epoch), member.rstrip("\n"), float(at))

    def log_size(self) -> int:
        return self._log_path.stat().st_size

    def close(self) -> None:
        self._database.close()
        os.close(self._log)
