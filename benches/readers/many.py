"""Many consumers on one event loop, each of a stream that gets a few entries a second."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any

from benches.async_calls import Loop, run
from benches.single_calls import after_warm_up, percentiles
from benches.turns import Done, Run, Target

GROUP = "bench"
#: Takes the time at which an entry was sent, in nanoseconds.
Took = Callable[[bytes | str], None]
#: Begins to consume in these tasks, which end once everything was taken.
Begin = Callable[[Took, asyncio.TaskGroup, asyncio.Event], Awaitable[None]]


def headrace(target: Target, streams: int, loop: Loop) -> Run:
    """A task with an `AsyncConsumer` for each stream."""
    from dataclasses import replace

    from benches.contenders.headrace_ import endpoint

    from headrace import AsyncConsumer

    async def begin(took: Took, tasks: asyncio.TaskGroup, everything: asyncio.Event) -> None:
        opened, consumers = asyncio.Semaphore(0), list[AsyncConsumer]()

        async def work(key: str) -> None:
            where = endpoint(replace(target, stream_key=key))
            async with AsyncConsumer(where, group=GROUP, consumer=key, linger=0, fields=["payload"]) as consumer:
                opened.release()
                consumers.append(consumer)
                async for batch in consumer:
                    for entry in batch:
                        took(entry["payload"])
                    consumer.ack(batch)

        for key in keys_of(target.stream_key, streams):
            tasks.create_task(work(key))
        for _ in range(streams):
            await opened.acquire()

        async def stop() -> None:
            await everything.wait()
            for consumer in consumers:
                consumer.stop()

        tasks.create_task(stop())

    return lambda: _measured(target, streams, begin, loop)


def redis_asyncio(target: Target, streams: int, loop: Loop) -> Run:
    """A task with XREADGROUP BLOCK and XACK for each stream, over one client with hiredis."""
    import redis.asyncio

    async def begin(took: Took, tasks: asyncio.TaskGroup, everything: asyncio.Event) -> None:
        client = redis.asyncio.Redis(host=target.host, port=target.port)

        async def work(key: str) -> None:
            while not everything.is_set():  # a cancellation is lost now and then
                reply: Any = await client.xreadgroup(GROUP, "c", {key: ">"}, 1_000, block=1_000)
                for entry_id, fields in reply[0][1] if reply else ():
                    took(fields[b"payload"])
                    await client.xack(key, GROUP, entry_id)

        for key in keys_of(target.stream_key, streams):
            tasks.create_task(work(key))

    return lambda: _measured(target, streams, begin, loop)


def faststream(target: Target, streams: int, loop: Loop) -> Run:
    """A subscriber for each stream, all of one broker."""
    from faststream.redis import RedisBroker, StreamSub

    async def begin(took: Took, tasks: asyncio.TaskGroup, everything: asyncio.Event) -> None:
        broker = RedisBroker(f"redis://{target.host}:{target.port}", log_level=logging.WARNING)
        for key in keys_of(target.stream_key, streams):
            stream = StreamSub(key, group=GROUP, consumer="c", polling_interval=1_000)

            @broker.subscriber(stream=stream)
            async def handle(message: dict[str, Any]) -> None:
                took(message["payload"])

        await broker.start()

        async def stop() -> None:
            await everything.wait()
            await broker.stop()

        tasks.create_task(stop())

    return lambda: _measured(target, streams, begin, loop)


def keys_of(stream_key: str, streams: int) -> list[str]:
    """The keys of the streams."""
    return [f"{stream_key}-{number}" for number in range(streams)]


def _measured(target: Target, streams: int, begin: Begin, loop: Loop) -> Done:
    """Measure latency: each payload is the time at which its entry was sent, by the clock that all processes share."""
    import redis

    client = redis.Redis(host=target.host, port=target.port)
    for key in keys_of(target.stream_key, streams):
        client.delete(key)
        client.xgroup_create(key, GROUP, 0, mkstream=True)
    took: list[int] = []
    connections = 0

    async def main() -> int:
        nonlocal connections
        everything = asyncio.Event()

        def take(sent: bytes | str) -> None:
            took.append(perf_counter_ns() - int(sent))
            if len(took) == target.rows:
                everything.set()

        command = [sys.executable, "-m", "benches.readers.ticker", target.host, str(target.port), target.stream_key]
        with subprocess.Popen([*command, str(target.rows), str(streams)], stdin=subprocess.PIPE) as ticker:
            assert ticker.stdin is not None
            async with asyncio.TaskGroup() as tasks:
                await begin(take, tasks, everything)
                ticker.stdin.close()
                await everything.wait()
                clients: Any = client.client_list()
                connections = len(clients) - 2  # this one, and the ticker's
        return len(took)

    rows = run(main, loop)
    client.close()
    return Done(rows, {**percentiles(after_warm_up(took)), "connections": connections})
