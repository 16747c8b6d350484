"""A process of the group: it reads batches, commits them to a database, and acknowledges them."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import AsyncConsumer, Consumer, ConsumerBatch, Endpoint, LeaseLostError, RetryPolicy
from support.on_a_loop import OnALoop

from .slots import Phase, Slot

STREAM_KEY = "orders"
GROUP = "billing"
MAX_FAILURES = 3
#: `{stream}` stands for the tag of a stream's key, or the whole key, in braces: both are in one slot.
DEAD_LETTER_KEY = "dead:{stream}"
#: The exit code of a process that a poison entry has ended.
POISONED = 7


@dataclass(frozen=True)
class Setting:
    """Settings of all workers of a run."""

    folder: Path
    #: The servers: what an endpoint is made of, without its stream.
    servers: dict[str, Any]
    streams: tuple[str, ...]
    batch_rows: int
    min_idle: float
    #: The most seconds of work before a commit, and behind it.
    work: float
    #: The most connections to each node of a cluster; None: one for each slot.
    connections: int | None = None
    #: Whether the workers have an `AsyncConsumer`.
    asynchronous: bool = False

    @property
    def database(self) -> Path:
        return self.folder / "rows.db"

    @property
    def slots(self) -> Path:
        return self.folder / "slots"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(**self.servers, stream_key=self.streams[0])


def dead_letter_key(stream: str) -> str:
    """The key of the dead letters of a stream without a tag."""
    return DEAD_LETTER_KEY.replace("{stream}", f"{{{stream}}}")


def create(database: Path) -> None:
    """Make the database. An entry that is committed again counts in its row."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        columns = "stream TEXT, entry_id TEXT, number INTEGER, commits INTEGER, PRIMARY KEY (stream, entry_id)"
        connection.execute(f"CREATE TABLE orders ({columns}) WITHOUT ROWID")


def work(setting: Setting, place: int, name: str, seed: str) -> None:
    """The whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    log = os.open(setting.folder / f"log-{place}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stderr.fileno())
    slot = Slot(setting.slots, place)
    slot.phase = Phase.STARTING
    handed = os.open(setting.folder / f"handed-{place}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    dice = random.Random(seed)
    # What a killed process has committed is the kernel's: it needs no fsync.
    with closing(sqlite3.connect(setting.database, timeout=60)) as database:
        database.execute("PRAGMA synchronous=OFF")
        made: Any = AsyncConsumer if setting.asynchronous else Consumer
        consumer = made(
            setting.endpoint,
            setting.streams,
            group=GROUP,
            consumer=name,
            batch_rows=setting.batch_rows,
            min_idle=setting.min_idle,
            connections=setting.connections,
            max_failures=MAX_FAILURES,
            dead_letter_key=DEAD_LETTER_KEY,
            # Nodes that hand their slots over.
            retry=RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=60) if len(setting.streams) > 1 else None,
        )
        if setting.asynchronous:
            consumer = OnALoop(consumer, dice)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        with consumer:
            slot.phase = Phase.WAITING
            for batch in consumer:
                since = time.monotonic()
                slot.phase = Phase.WORKING
                slot.add("batches", 1)
                stream = batch.stream.decode()
                os.write(handed, "".join(f"{stream} {entry_id}\n" for entry_id in batch.entry_ids).encode())
                _process(setting, slot, dice, database, consumer, batch)
                if time.monotonic() - since > setting.min_idle / 2:
                    slot.add("late", batch.num_rows)
                slot.phase = Phase.WAITING


def _process(
    setting: Setting,
    slot: Slot,
    dice: random.Random,
    database: sqlite3.Connection,
    consumer: Any,
    batch: ConsumerBatch,
) -> None:
    rows = []
    for row in pa.record_batch(batch).to_pylist():
        fields = dict(row["fields"])
        if b"poison" in fields.values():
            os._exit(POISONED)
        rows.append((row["stream"], row["entry_id"], int(fields["number"])))
    time.sleep(dice.random() * setting.work)
    try:
        batch.check()
    except LeaseLostError:
        slot.add("lost_leases", batch.num_rows)
        consumer.release(batch)
        return
    slot.phase = Phase.COMMITTING
    with database:
        statement = "INSERT INTO orders VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET commits = commits + 1"
        database.executemany(statement, rows)
    slot.add("committed", len(rows))
    slot.phase = Phase.COMMITTED
    time.sleep(dice.random() * setting.work)
    consumer.ack(batch)
