"""Readers and consumers on an event loop, each with batches of up to a page."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from benches.async_calls import Loop, run
from benches.readers import PAGE
from benches.turns import Run, Target


def reader(target: Target, loop: Loop) -> Run:
    """`AsyncReader`, with batches passed to pyarrow."""
    import pyarrow as pa
    from benches.contenders.headrace_ import endpoint

    from headrace import AsyncReader

    async def main() -> int:
        rows = 0
        async with AsyncReader(endpoint(target), end="latest", limit=target.rows) as reader:
            async for batch in reader:
                rows += pa.record_batch(batch).num_rows
        return rows

    return lambda: run(main, loop)


def consumer(target: Target, loop: Loop) -> Run:
    """`AsyncConsumer`, with batches passed to pyarrow."""
    import pyarrow as pa
    from benches.contenders.headrace_ import endpoint

    from headrace import AsyncConsumer

    async def main() -> int:
        rows = 0
        async with AsyncConsumer(endpoint(target), group=_group(), consumer="bench", start="0-0") as consumer:
            while rows < target.rows and (batch := await consumer.poll()):
                rows += pa.record_batch(batch).num_rows
                consumer.ack(batch)
            await consumer.flush()
            return consumer.report().acked

    return _in_group(target, main, loop)


def redis_asyncio(target: Target, loop: Loop) -> Run:
    """`redis.asyncio` with hiredis: pages of XREADGROUP, the columns as pyarrow arrays, and XACK."""
    import pyarrow as pa
    import redis.asyncio

    async def main() -> int:
        rows, acked, group = 0, 0, _group()
        async with redis.asyncio.Redis(host=target.host, port=target.port) as client:
            while rows < target.rows:
                reply: Any = await client.xreadgroup(group, "bench", {target.stream_key: ">"}, PAGE)
                page = reply[0][1]
                ids = [entry_id for entry_id, _ in page]
                payloads = [fields[b"payload"] for _, fields in page]
                rows += pa.record_batch({"entry_id": ids, "payload": payloads}).num_rows
                acked += await client.xack(target.stream_key, group, *ids)
        return acked

    return _in_group(target, main, loop)


def faststream(target: Target, loop: Loop) -> Run:
    """FastStream's subscriber of batches, which acknowledges each."""
    from faststream.redis import RedisBroker, StreamSub

    async def main() -> int:
        done, rows = asyncio.Event(), 0
        broker = RedisBroker(f"redis://{target.host}:{target.port}", log_level=logging.WARNING)
        stream = StreamSub(target.stream_key, group=_group(), consumer="bench", batch=True, max_records=PAGE)

        @broker.subscriber(stream=stream)
        async def handle(messages: list[Any]) -> None:
            nonlocal rows
            rows += len(messages)
            if rows >= target.rows:
                done.set()

        await broker.start()
        await done.wait()
        await broker.stop()
        return rows

    return _in_group(target, main, loop)


def _group() -> str:
    return f"bench-{os.getpid()}"


def _in_group(target: Target, main: Callable[[], Awaitable[int]], loop: Loop) -> Run:
    import redis

    def in_group() -> int:
        with redis.Redis(host=target.host, port=target.port) as client:
            client.xgroup_create(target.stream_key, _group(), 0)
            try:
                return run(main, loop)
            finally:
                client.xgroup_destroy(target.stream_key, _group())

    return in_group
