"""What the handlers of a `ShardConsumer.run` got, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from headrace import Entry
from support.handlers import Handlers
from support.processes import wait_until

#: A stream and a key.
Chain = tuple[bytes, bytes]
Order = dict[Chain, list[int]]


def add_keys(client: redis.Redis, streams: Sequence[str], keys: Sequence[bytes]) -> Order:
    """Add an entry for each key, with its number, to the streams by turns. Returns the numbers of each key."""
    order: Order = {}
    pipeline = client.pipeline(transaction=False)
    for number, key in enumerate(keys):
        stream = streams[number % len(streams)]
        order.setdefault((stream.encode(), key), []).append(number)
        pipeline.xadd(stream, {"key": key, "number": number})
    pipeline.execute()
    return order


def place_of(client: redis.Redis, stream: str) -> bytes:
    """The ID up to which a stream is committed; empty if it has no group."""
    groups: Any = client.xinfo_groups(stream)
    return bytes(groups[0]["last-delivered-id"]) if groups else b""


@contextlib.contextmanager
def until_committed(handlers: Handlers, client: redis.Redis, streams: Sequence[str]) -> Iterator[None]:
    """Stop the run inside the block when all entries of the streams are committed."""
    is_over = threading.Event()

    def is_done(stream: str) -> bool:
        last: Any = client.xinfo_stream(stream)
        return place_of(client, stream) == bytes(last["last-generated-id"])

    def watch() -> None:
        wait_until(lambda: is_over.is_set() or all(map(is_done, streams)))
        handlers.stop()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Handled:
    """Handles entries with a `key` and a `number`, and notes what it gets."""

    def __init__(self, handlers: Handlers, per: str, act: Callable[[list[int]], Any] | None = None) -> None:
        """`act` is called with the numbers of each call. In a task it may return what is to be awaited."""
        self._handlers = handlers
        self._per = per
        self._act = act or (lambda _: None)
        self._lock = threading.Lock()
        self._working: set[Any] = set()
        #: The chains of which two calls ran at a time.
        self.overlaps: list[Any] = []
        self.calls: list[list[int]] = []
        #: The numbers of each key, each when it was first handled.
        self.first: Order = {}
        self.counts: Counter[int] = Counter()

    def __call__(self, given: Any) -> Any:
        entries: list[Entry] = [given] if isinstance(given, Entry) else list(given)
        numbers = [int(entry["number"]) for entry in entries]
        streams = {entry.stream for entry in entries}
        keys = {entry["key"] for entry in entries} if self._per == "key" else {b""}
        assert len(streams) == len(keys) == 1
        chain = (*streams, *keys)
        with self._lock:
            if chain in self._working:
                self.overlaps.append(chain)
            self._working.add(chain)
            self.calls.append(numbers)
            for entry, number in zip(entries, numbers, strict=True):
                if not self.counts[number]:
                    self.first.setdefault((entry.stream, entry["key"]), []).append(number)
                self.counts[number] += 1
        if self._handlers.kind == "threads":
            with self._over(chain):
                os.sched_yield()
                return self._act(numbers)

        async def act() -> None:
            with self._over(chain):
                await asyncio.sleep(0)
                result = self._act(numbers)
                if result is not None:
                    await result

        return act()

    @contextlib.contextmanager
    def _over(self, chain: Any) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._working.discard(chain)
