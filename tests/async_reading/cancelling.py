"""Calls of readers and consumers that are cancelled at random moments, and what must be true of every entry then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import redis

from headrace import AsyncConsumer, AsyncReader, Endpoint
from headrace.testing import LocalServer
from support.groups import GROUP
from support.pipelines import endpoint_to

T = TypeVar("T")
#: The streams of each consumer and reader: a reply that is taken for another's has entries of the wrong stream.
KEYS = (b"one", b"two", b"three")


class End(Enum):
    """How a call ended that returned nothing."""

    CANCELLED = "cancelled"


class _SiblingError(Exception):
    pass


class State(Enum):
    """What became of an entry so far."""

    FREE = "free"
    HELD = "held"
    #: Acknowledged, and no flush has said so yet.
    ACKED = "acked"
    #: A flush or a close has said that the server knows.
    DONE = "done"
    #: Acknowledged by a consumer whose close was cancelled: the server may not know, and the entry may come again.
    UNKNOWN = "unknown"


class Cancelling:
    """Cancels calls, and counts how."""

    def __init__(self, seed: int, most: float = 0.002) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._most = most

    @property
    def cancelled(self) -> int:
        return sum(self.counts.values())

    async def call(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T | End:
        """Call it, and cancel that in one of four ways after a random time, if it is not over before."""
        way = self.rng.choice((self._cancel, self._wait_for, self._timeout, self._task_group))
        result = await way(make)
        if result is End.CANCELLED:
            self.counts[f"{name}, {way.__name__.strip('_')}"] += 1
        return result

    async def _moment(self) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)
        if self.rng.random() < 0.5:
            await asyncio.sleep(self._seconds())

    def _seconds(self) -> float:
        return self.rng.random() * self._most * self.rng.choice((0.05, 0.3, 1))

    async def _cancel(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | End:
        task = asyncio.create_task(make())
        await self._moment()
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return End.CANCELLED

    async def _wait_for(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | End:
        try:
            return await asyncio.wait_for(make(), self._seconds())
        except TimeoutError:
            return End.CANCELLED

    async def _timeout(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | End:
        try:
            async with asyncio.timeout(self._seconds()):
                return await make()
        except TimeoutError:
            return End.CANCELLED

    async def _task_group(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | End:
        async def sibling() -> None:
            await self._moment()
            raise _SiblingError

        with contextlib.suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(make())
                group.create_task(sibling())
        return End.CANCELLED if task.cancelled() else task.result()


async def _open(made: AsyncReader | AsyncConsumer) -> None:
    """Open it as the first call does: a block that is cancelled while it opens would end it."""
    made._enter()
    await made._open()


class Entries:
    """The entries of some streams: each has the name of its stream and its number as its value."""

    def __init__(self, client: redis.Redis, rng: random.Random) -> None:
        self._client: Any = client
        self._rng = rng
        self.by_stream: dict[bytes, list[str]] = {key: [] for key in KEYS}
        self.ids: dict[tuple[bytes, str], int] = {}

    def add(self, count: int) -> None:
        key = self._rng.choice(KEYS)
        pipeline = self._client.pipeline(transaction=False)
        begin = len(self.by_stream[key])
        for number in range(begin, begin + count):
            pipeline.xadd(key, {"payload": b"%b %d" % (key, number)})
        for number, entry_id in enumerate(pipeline.execute(), begin):
            self.by_stream[key].append(entry_id.decode())
            self.ids[key, entry_id.decode()] = number

    def check(self, stream: bytes, entry_id: str, payload: bytes) -> None:
        assert payload == b"%b %d" % (stream, self.ids[stream, entry_id]), (stream, entry_id, payload)

    def __len__(self) -> int:
        return len(self.ids)


class Consuming:
    """Consumers of a group whose calls are cancelled."""

    def __init__(self, server: LocalServer, client: redis.Redis, seed: int) -> None:
        self.endpoint: Endpoint = endpoint_to(server)
        self.client: Any = client
        self.cancelling = Cancelling(seed)
        self.rng = self.cancelling.rng
        self.entries = Entries(client, self.rng)
        self.states: dict[tuple[bytes, str], tuple[State, str]] = {}
        self.held: dict[str, set[tuple[bytes, str]]] = defaultdict(set)
        self.acked: dict[str, set[tuple[bytes, str]]] = defaultdict(set)
        self.redelivered: Counter[str] = Counter()
        #: How often an `async for` would have ended, although no consumer was stopped.
        self.endings = 0

    async def until(self, cancellations: int, workers: int = 2) -> None:
        """Work until this number of calls was cancelled, then until every entry was processed; check all of it."""
        self.entries.add(1)  # redis-py connects
        sockets = _sockets()
        await asyncio.gather(*(self._work(f"c{number}", cancellations) for number in range(workers)))
        assert _sockets() == sockets, "sockets were left"
        await self._finish()
        assert _sockets() == sockets
        assert asyncio.all_tasks() == {asyncio.current_task()}
        wrong = {key for key in self.entries.ids if self.states[key][0] is not State.DONE}
        assert self.endings == 0, f"{self.endings} loops ended"
        assert not wrong, f"never acknowledged: {wrong}"
        for key in KEYS:
            if self.client.exists(key):
                (group,) = self.client.xinfo_groups(key)
                assert (group["pending"], group["lag"] or 0) == (0, 0)

    async def _work(self, name: str, cancellations: int) -> None:
        while self.cancelling.cancelled < cancellations:
            await self._one_life(name)

    def _consumer(self, name: str) -> AsyncConsumer:
        return AsyncConsumer(
            self.endpoint, KEYS, group=GROUP, consumer=name, start="0-0", batch_rows=8, claim_interval=0.05
        )

    async def _one_life(self, name: str) -> None:
        consumer = self._consumer(name)
        await self.cancelling.call("open", lambda: _open(consumer))
        ways = self.rng.randrange(3)
        if ways == 0:  # a block that is cancelled as a whole
            await self.cancelling.call("block", lambda: self._block(name, consumer))
            if not consumer._is_closed:  # cancelled before it began
                await consumer.close()
                self._closed(name, is_sure=True)
                return
            self._closed(name, is_sure=False)
            return
        for _ in range(self.rng.randrange(60)):
            await self._one_call(name, consumer)
        self._gives_back(name)
        if ways == 1:
            await consumer.close()
            self._closed(name, is_sure=True)
            return
        closed = await self.cancelling.call("close", consumer.close)
        is_sure = closed is not End.CANCELLED or not consumer._is_closed
        await consumer.close()  # the call may have been cancelled before it began
        self._closed(name, is_sure=is_sure)

    async def _block(self, name: str, consumer: AsyncConsumer) -> None:
        async with consumer:
            try:
                async for batch in consumer:
                    self._took(name, batch)
                    await asyncio.sleep(0)
                    self._ack(name, consumer, batch)
            finally:
                self._gives_back(name)

    async def _one_call(self, name: str, consumer: AsyncConsumer) -> None:
        if self.rng.random() < 0.4:
            self.entries.add(self.rng.choice((1, 1, 3, 30)))
        if self.rng.random() < 0.1:
            report = await self.cancelling.call("flush", consumer.flush)
            if report is not End.CANCELLED:
                self._flushed(name)
            return
        make: Callable[[], Awaitable[Any]] = self.rng.choice(
            (consumer.poll, lambda: self._following(consumer), lambda: consumer.poll(0.001))
        )
        batch: Any = await self.cancelling.call("poll", make)  # type: ignore[arg-type]
        if batch is End.CANCELLED or batch is None:
            return
        self._took(name, batch)
        if self.rng.random() < 0.9:
            self._ack(name, consumer, batch)
        elif self.rng.random() < 0.5:
            consumer.release(batch)
            self._put(batch, State.FREE, name)

    async def _following(self, consumer: AsyncConsumer) -> Any:
        try:
            return await consumer.__anext__()
        except StopAsyncIteration:
            self.endings += 1
            return None

    def _took(self, name: str, batch: Any) -> None:
        for entry in batch:
            key = (entry.stream, entry.id)
            self.entries.check(entry.stream, entry.id, entry["payload"])
            state, by = self.states.get(key, (State.FREE, ""))
            assert state in {State.FREE, State.UNKNOWN}, f"{key} comes to {name}, and is {state.value} by {by}"
            if key in self.states:
                self.redelivered[state.value] += 1
            self.states[key] = (State.HELD, name)
            self.held[name].add(key)

    def _put(self, batch: Any, state: State, name: str) -> None:
        keys = {(entry.stream, entry.id) for entry in batch}
        self.held[name] -= keys
        if state is State.ACKED:
            self.acked[name] |= keys
        self.states.update(dict.fromkeys(keys, (state, name)))

    def _ack(self, name: str, consumer: AsyncConsumer, batch: Any) -> None:
        consumer.ack(batch)
        self._put(batch, State.ACKED, name)

    def _flushed(self, name: str) -> None:
        for key in self.acked.pop(name, set()):
            self.states[key] = (State.DONE, name)

    def _gives_back(self, name: str) -> None:
        """Note that a close begins: others may get the entries before it is over."""
        for key in self.held.pop(name, set()):
            self.states[key] = (State.FREE, name)

    def _closed(self, name: str, *, is_sure: bool) -> None:
        self._gives_back(name)
        for key in self.acked.pop(name, set()):
            self.states[key] = (State.DONE if is_sure else State.UNKNOWN, name)

    async def _finish(self) -> None:
        """Process what is left, as a consumer of each name."""
        for name in ("c0", "c1", "c0"):
            async with self._consumer(name) as consumer:
                while (batch := await consumer.poll(0.2)) is not None:
                    self._took(name, batch)
                    self._ack(name, consumer, batch)
            self._closed(name, is_sure=True)
        for key, (state, by) in self.states.items():
            if state is State.UNKNOWN:  # the server had processed the acknowledgement, or it would have come again
                self.states[key] = (State.DONE, by)


class Reading:
    """A reader whose calls are cancelled."""

    def __init__(self, server: LocalServer, client: redis.Redis, seed: int) -> None:
        self.endpoint: Endpoint = endpoint_to(server)
        self.cancelling = Cancelling(seed)
        self.rng = self.cancelling.rng
        self.entries = Entries(client, self.rng)
        self.read: dict[bytes, list[str]] = {key: [] for key in KEYS}

    async def until(self, cancellations: int) -> None:
        self.entries.add(1)  # redis-py connects
        sockets = _sockets()
        position = "earliest"
        while self.cancelling.cancelled < cancellations:
            position = await self._one_life(position)
            assert _sockets() == sockets
        async with AsyncReader(self.endpoint, KEYS, start=position, end="latest") as reader:
            async for batch in reader:
                self._took(batch)
        assert self.read == self.entries.by_stream
        assert _sockets() == sockets
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def _one_life(self, position: str) -> str:
        reader = AsyncReader(self.endpoint, KEYS, start=position, batch_rows=8)
        if self.rng.random() < 0.3:
            last = [position]
            await self.cancelling.call("block", lambda: self._block(reader, last))
            await reader.close()
            return last[0]
        await self.cancelling.call("open", lambda: _open(reader))
        for _ in range(self.rng.randrange(60)):
            if self.rng.random() < 0.4:
                self.entries.add(self.rng.choice((1, 1, 3, 30)))
            make: Callable[[], Awaitable[Any]] = self.rng.choice(
                (reader.read, reader.__anext__, lambda: reader.read(0.001))
            )
            batch: Any = await self.cancelling.call("read", make)  # type: ignore[arg-type]
            if batch is not End.CANCELLED and batch is not None:
                self._took(batch)
                position = batch.position
                assert reader.position == position
        await self.cancelling.call("close", reader.close)
        await reader.close()
        return position

    async def _block(self, reader: AsyncReader, last: list[str]) -> None:
        async with reader:
            async for batch in reader:
                self._took(batch)
                last[0] = batch.position
                await asyncio.sleep(0)

    def _took(self, batch: Any) -> None:
        for entry in batch:
            self.entries.check(batch.stream, entry.id, entry["payload"])
            self.read[batch.stream].append(entry.id)


def _sockets() -> int:
    """The number of sockets of this process."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the folder itself
            count += str(link.readlink()).startswith("socket:")
    return count
