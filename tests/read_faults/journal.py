"""The journal of a reading process, in a file that survives a SIGKILL of the process. No network.

A record is a transaction: rows and the position after them are both present, or neither is.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HEAD = struct.Struct("<II")

#: A stream key, an entry ID and the digest of the entry's fields.
Row = tuple[str, str, bytes]


def digest(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The digest of all names and values of an entry, in order."""
    return hashlib.blake2b(repr(list(fields)).encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Opened:
    """A reading process starts, or starts again."""


@dataclass(frozen=True)
class Done:
    """Processed rows, the loss that was reported with them, and the position if the client keeps one."""

    rows: tuple[Row, ...]
    position: str | None = None
    lost: int = 0
    exact: bool = True


@dataclass(frozen=True)
class Replaced:
    """The client reported that a stream was replaced; it reads the new one from its start."""

    key: str
    position: str | None = None


@dataclass(frozen=True)
class Doubted:
    """The client warned that entries may be lost."""


@dataclass(frozen=True)
class Handed:
    """A group delivered these: new entries (`>`), or entries that had been delivered before (`again`).

    `reclaimed` says that they were another consumer's; `at` is the time on a clock that all processes share.
    """

    ids: tuple[tuple[str, str], ...]
    again: bool = False
    reclaimed: bool = False
    at: float = 0.0


@dataclass(frozen=True)
class Kept:
    """The client confirmed at the time `at` that this consumer still owned these."""

    ids: tuple[tuple[str, str], ...]
    at: float


@dataclass(frozen=True)
class Returned:
    """These are about to be released, or reported as failed: they come again."""

    ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Closed:
    """A consumer is about to release everything that it has, including entries that it has not yet returned."""

    at: float


@dataclass(frozen=True)
class Acked:
    """An XACK of these is about to be sent."""

    ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LeaseLost:
    """The client reported that these now belong to another consumer."""

    ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dead:
    """These were moved to the dead letters."""

    ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Failed:
    """An error that the client reported; reading continues. `expected` says that the documentation names it."""

    error: str
    expected: bool = True


Record = Opened | Done | Replaced | Doubted | Handed | Kept | Returned | Closed | Acked | LeaseLost | Dead | Failed


class Journal:
    """Appends records, for one process at a time."""

    def __init__(self, path: str | Path) -> None:
        valid = JournalView(path)
        valid.update()
        self.records = valid.records
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, valid.size)  # a partial record of a killed process
        os.lseek(self._file, 0, os.SEEK_END)

    @property
    def position(self) -> str | None:
        """The last position that was stored."""
        kept = (record.position for record in reversed(self.records) if isinstance(record, Done | Replaced))
        return next((position for position in kept if position is not None), None)

    def add(self, record: Record) -> None:
        data = pickle.dumps(record)
        os.write(self._file, _HEAD.pack(len(data), zlib.crc32(data)) + data)
        self.records.append(record)

    def close(self) -> None:
        os.close(self._file)


class JournalView:
    """Reads the records of another process as they are written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.records: list[Record] = []
        #: The size of the complete records in bytes.
        self.size = 0

    def update(self) -> list[Record]:
        """Continue reading; returns the new records."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.size)
            data = file.read()
        found: list[Record] = []
        at = 0
        while at + _HEAD.size <= len(data):
            length, check = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != check:
                break
            found.append(pickle.loads(body))
            at += _HEAD.size + length
        self.size += at
        self.records += found
        return found
