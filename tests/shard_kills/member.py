"""A member of the group: it reads batches, writes their rows into the log and the database, and commits."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import Endpoint, LeaseLostError, RetryPolicy, ShardConsumer
from headrace.errors import HeadraceError
from headrace.shard_consumer import ShardBatch

from .sink import Row, Sink, entry_id

STREAM_KEY = "events"
GROUP = "billing"
#: How a member goes about it: `batch` and `entry` commit each of these and leave it to the database and the commit to
#: fence; `check` asks before it writes, and rolls a batch back if its lease was lost. `log` has no database, so that
#: members do not wait for each other.
STYLES = ("batch", "entry", "check")


@dataclass(frozen=True)
class Setting:
    """Settings of all members of an episode."""

    folder: Path
    #: What they are: `headrace`, or one of the contenders.
    kind: str
    #: The servers: what an endpoint is made of, without its stream.
    servers: dict[str, Any]
    shards: int
    lease: float
    styles: tuple[str, ...]
    #: The most seconds of work before a batch is written.
    work: float

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(**self.servers, stream_key=STREAM_KEY, shards=self.shards)


def work(setting: Setting, name: str, seed: str) -> None:
    """The whole life of a member."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    log = os.open(setting.folder / f"stderr-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stderr.fileno())
    with closing(Sink(setting.folder)) as sink:
        member = Member(setting, name, seed, sink)
        if setting.kind == "headrace":
            member.run()
        else:
            from .contenders import CONTENDERS

            CONTENDERS[setting.kind](setting, name, seed, sink).run()


def rows_of(shard: str, entries: Sequence[tuple[str, bytes]], epoch: int, member: str) -> list[Row]:
    """The rows of entries: their IDs and payloads."""
    rows = []
    for each, payload in entries:
        key, _, number = payload.decode().partition(" ")
        rows.append(Row(shard, entry_id(each), key, int(number), epoch, member))
    return rows


class Member:
    """A member that is a `ShardConsumer`."""

    def __init__(self, setting: Setting, name: str, seed: str, sink: Sink) -> None:
        self._folder = setting.folder
        self._name = name
        self._sink = sink
        self._dice = random.Random(seed)
        self._style = self._dice.choice(setting.styles)
        self._work = setting.work
        self._ends = threading.Event()
        #: Entries that it got and did not commit.
        self._withheld = 0
        retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=60)
        self._consumer = ShardConsumer(
            setting.endpoint,
            group=GROUP,
            member=name,
            lease=setting.lease,
            batch_rows=50 if self._style == "log" else self._dice.choice([1, 5, 50]),
            retry=self._dice.choice([retry, None]),
        )

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._end)
        while not self._ends.is_set():
            try:
                batch = self._consumer.poll()
                if batch is not None:
                    self._process(batch)
            except HeadraceError as error:
                self._note("errors", {"error": type(error).__name__, "text": str(error)})
                time.sleep(0.02)
        try:
            report = self._consumer.close()
        except HeadraceError as error:
            self._note("errors", {"error": type(error).__name__, "text": f"close: {error}"})
        else:
            self._note("reports", {"report": report._asdict(), "withheld": self._withheld})

    def _end(self, *_: object) -> None:
        self._ends.set()
        self._consumer.stop()

    def _note(self, file: str, what: dict[str, Any]) -> None:
        with (self._folder / file).open("a") as lines:
            lines.write(json.dumps({"member": self._name, "style": self._style, "at": time.time(), **what}) + "\n")

    def _process(self, batch: ShardBatch) -> None:
        entries = list(batch)
        rows = rows_of(batch.stream.decode(), [(each.id, each["payload"]) for each in entries], batch.epoch, self._name)
        time.sleep(self._dice.random() * self._work)
        if self._style == "check":
            try:
                batch.check()
            except LeaseLostError:
                self._withheld += len(rows)
                return
        if self._style == "log":
            self._sink.note(rows)
            self._consumer.commit(batch)
            return
        if self._style == "entry":
            for place, row in enumerate(rows):
                self._sink.note([row])
                if not self._sink.write([row]):
                    self._withheld += len(rows) - place
                    return
                self._consumer.commit(entries[place])
            return
        self._sink.note(rows)
        if self._sink.write(rows):
            self._consumer.commit(batch)
        else:
            self._withheld += len(rows)
