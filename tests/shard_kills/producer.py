"""Numbered rows of some keys, written at a constant rate into the shards of a stream, in a thread."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from headrace import Dispatcher, Endpoint, RetryPolicy

#: How many keys there are, if nothing else is said.
KEYS = 60
#: Seconds between two flushes.
EVERY = 0.01


class Producer:
    """Writes `key number` until it is stopped, each key with numbers of its own."""

    def __init__(self, endpoint: Endpoint, rate: int, seed: int, keys: int = KEYS) -> None:
        self._dispatcher = Dispatcher(
            endpoint,
            exactly_once="script",
            retry=RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=60),
        )
        self._rate = rate
        self._keys = keys
        self._dice = random.Random(f"{seed} producer")
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        self.rows = 0
        self.codes: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        numbers: Counter[int] = Counter()
        began = time.monotonic()
        with self._dispatcher as dispatcher:
            sequence = 0
            while not self._stops.is_set():
                due = min(int((time.monotonic() - began) * self._rate) - self.rows, self._rate)
                for _ in range(due):
                    key = self._dice.randrange(self._keys)
                    dispatcher.produce(b"k%d %d" % (key, numbers[key]), key=b"k%d" % key)
                    numbers[key] += 1
                    self.rows += 1
                report = dispatcher.flush()
                if report.failed:
                    self.codes.update(failure.code for failure in report.failed)
                    # What was sent under the old markers may be there or not.
                    sequence += 1
                    dispatcher.begin(f"again {sequence}")
                self._stops.wait(EVERY)
