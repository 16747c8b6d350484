"""Tasks on an event loop that each await one message before sending the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from benches.contenders.common import now, payloads
from benches.turns import Run, Target

Loop = Literal["asyncio", "uvloop"]


def send(target: Target, tasks: int, loop: Loop) -> Run:
    """`AsyncDispatcher.send`."""
    from benches.contenders.headrace_ import endpoint

    from headrace import AsyncDispatcher

    async def main() -> int:
        async with AsyncDispatcher(endpoint(target, {})) as dispatcher:
            return await called(dispatcher.send, target, tasks)

    return lambda: run(main, loop)


def xadd(target: Target, tasks: int, loop: Loop) -> Run:
    """`redis.asyncio.Redis.xadd`, with hiredis and a connection for each task. `ts` is constant, which favours it."""
    client_of, fields_of = redis_asyncio(target)

    async def main() -> int:
        async with client_of(tasks) as client:

            async def call(payload: bytes) -> object:
                return await client.xadd(target.stream_key, fields_of(payload), maxlen=target.maxlen, approximate=True)

            return await called(call, target, tasks)

    return lambda: run(main, loop)


def pipeline(target: Target, tasks: int, loop: Loop) -> Run:
    """One task with `redis.asyncio` pipelines, each of as many messages as there would be tasks, and one connection."""
    client_of, fields_of = redis_asyncio(target)
    rows = payloads(target)

    async def main() -> int:
        sent = 0
        async with client_of(1) as client:
            while sent < target.rows:
                commands = client.pipeline(transaction=False)
                for row in range(sent, sent + tasks):
                    fields = fields_of(rows[row % len(rows)])
                    commands.xadd(target.stream_key, fields, maxlen=target.maxlen, approximate=True)
                sent += len(await commands.execute())
        return sent

    return lambda: run(main, loop)


def redis_asyncio(target: Target) -> tuple[Callable[[int], Any], Callable[[bytes], Any]]:
    """Return functions that make a client with a number of connections, and the fields of a message."""
    import redis.asyncio
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    address: dict[str, Any] = {"host": target.host, "port": target.port}
    if target.unix_socket:
        address = {"unix_socket_path": target.unix_socket}
    ts = now()
    return (
        lambda connections: redis.asyncio.Redis(**address, max_connections=connections),
        lambda payload: {"payload": payload, "ts": ts},
    )


async def called(call: Callable[[bytes], Awaitable[object]], target: Target, tasks: int) -> int:
    """Call it for each row, spread over this number of tasks."""
    rows = payloads(target)

    async def work(first: int) -> None:
        for row in range(first, target.rows, tasks):
            await call(rows[row % len(rows)])

    await asyncio.gather(*(work(first) for first in range(tasks)))
    return target.rows


def run(main: Callable[[], Any], loop: Loop) -> int:
    """Run it on a loop of this kind."""
    factory: Any = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return int(runner.run(main()))
