"""Rows that are written at a constant rate while something happens to the servers, and the outcome of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

#: Rows per second, written in batches of a fiftieth of that.
RATE = 20_000
BATCH = RATE // 50


class Load:
    """Numbered rows, written at a constant rate until stopped, and the outcome of each.

    `dispatcher` is a `Dispatcher`, or an object with the same `produce_batch` and `flush`. With `keys`, row n has
    `keys[n % len(keys)]` as its stream, or with `role="shard_key"` as the key of its shard.
    """

    def __init__(self, dispatcher: Any, rate: int = RATE, keys: Sequence[str] = (), role: str = "stream_key") -> None:
        self._dispatcher = dispatcher
        self._rate = rate
        self._keys = keys
        self._role = {role: "key"}
        self._stops = False
        self.codes: Counter[str] = Counter()
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self.rows = 0
        self.longest = 0.0
        """Seconds of the longest flush."""

    def run(self) -> None:
        began = time.monotonic()
        while not self._stops:
            numbers = range(self.rows, self.rows + BATCH)
            self.produce(numbers)
            handed_over = time.monotonic()
            report = self._dispatcher.flush()
            self.longest = max(self.longest, time.monotonic() - handed_over)
            failed = {self.rows + int(failure.message_id): failure for failure in report.failed}
            self.codes.update(failure.code for failure in failed.values())
            self.unknown |= {row for row, failure in failed.items() if failure.written == "unknown"}
            self.acknowledged |= set(numbers) - set(failed)
            self.rows += BATCH
            time.sleep(max(0.0, began + self.rows / self._rate - time.monotonic()))

    def produce(self, numbers: range) -> None:
        """Produce the rows."""
        columns: dict[str, Any] = {"payload": [b"%d" % n for n in numbers]}
        if self._keys:
            columns["key"] = [self._keys[n % len(self._keys)] for n in numbers]
            self._dispatcher.produce_batch(pa.table(columns), payload="payload", **self._role)
        else:
            self._dispatcher.produce_batch(pa.table(columns), payload="payload")

    def stop(self) -> None:
        self._stops = True
