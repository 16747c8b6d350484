"""The end of asynchronous readers and consumers: after errors, by cancellation, and by being forgotten."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
from typing import Any

import pytest
import redis

from headrace import AsyncConsumer, AsyncReader
from headrace.testing import LocalServer
from support.groups import GROUP, add, pending_of
from support.loops import Run
from support.patience import PATIENCE
from support.pipelines import endpoint_to


def _consumer(server: LocalServer, name: str = "c1", **options: Any) -> AsyncConsumer:
    return AsyncConsumer(endpoint_to(server), group=GROUP, consumer=name, start="0-0", **options)


def _either(kind: str, server: LocalServer) -> tuple[Any, Any]:
    """A reader or a consumer, and its call that waits."""
    made: Any = _consumer(server) if kind == "consumer" else AsyncReader(endpoint_to(server), start="latest")
    return made, made.poll if kind == "consumer" else made.read


def _connections(client: redis.Redis) -> int:
    """The number of connections that others have to the server."""
    clients: Any = client.client_list()
    return len(clients) - 1


def _uses_a_stream(client: redis.Redis) -> bool:
    """Whether a client has sent a command for a stream."""
    clients: Any = client.client_list()
    return any(each["cmd"].startswith("x") for each in clients)


def test_a_close_that_is_cancelled_gives_back_and_a_second_cancellation_ends_it(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    ids = add(client, 20)

    async def main() -> None:
        consumer = _consumer(any_server, batch_rows=10)
        await consumer.poll()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not _connections(client)
        async with _consumer(any_server, "c2") as other:
            got: set[str] = set()
            while len(got) < 20:
                batch = await other.poll()
                assert batch is not None
                got |= {entry.id for entry in batch}
            assert got == set(ids)
            closing = asyncio.create_task(other.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        while _connections(client):
            await asyncio.sleep(0.001)

    run(main())


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_stop_in_a_signal_handler_wakes_a_loop_that_sleeps(run: Run, any_server: LocalServer, kind: str) -> None:
    async def main() -> None:
        made: Any = AsyncReader(endpoint_to(any_server), start="latest", block=60.0)
        if kind == "consumer":
            made = _consumer(any_server, block=60.0)
        call = made.poll if kind == "consumer" else made.read
        before = signal.signal(signal.SIGUSR1, lambda *_: made.stop())
        try:
            async with made:
                sender = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1])
                sender.start()
                began = time.monotonic()
                assert await call() is None
                sender.join()
                assert time.monotonic() - began < 30  # half the time for which the server waits for entries
        finally:
            signal.signal(signal.SIGUSR1, before)

    run(main())


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_what_a_program_forgot_is_closed_by_the_loop(
    run: Run, any_server: LocalServer, client: redis.Redis, kind: str
) -> None:
    add(client, 10)

    async def main() -> None:
        made, call = _either(kind, any_server)
        await (call(0.01) if kind == "reader" else call())
        assert _connections(client)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            del made, call
            gc.collect()
        assert any("was not closed: use `async with`" in str(warning.message) for warning in told)
        while _connections(client):
            await asyncio.sleep(0.001)

    run(main())
    if kind == "consumer":
        assert len(pending_of(client)) == 10


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_a_close_ends_a_block_that_opens(run: Run, any_server: LocalServer, client: redis.Redis, kind: str) -> None:
    """While it waits for the reply to its first command that writes."""

    async def main() -> None:
        made, _ = _either(kind, any_server)

        async def block() -> None:
            async with made:
                pass

        client.client_pause(int(PATIENCE * 1000), all=False)
        opening = asyncio.create_task(block())
        try:
            while not opening.done() and not _uses_a_stream(client):
                await asyncio.sleep(0.001)
            closing = asyncio.create_task(made.close())
            await asyncio.sleep(0)
        finally:
            client.client_unpause()
        _, waiting = await asyncio.wait({opening, closing}, timeout=PATIENCE)
        for task in waiting:  # the end of the loop cancels them once more
            task.cancel()
        assert not waiting
        assert opening.exception() is None or "was closed by another task" in str(opening.exception())

    run(main())


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_a_block_that_cannot_open_leaves_nothing_open(
    run: Run, any_server: LocalServer, client: redis.Redis, kind: str
) -> None:
    async def main() -> None:
        made, _ = _either(kind, any_server)

        async def block() -> None:
            async with made:
                pass

        opening = asyncio.create_task(block())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert made._is_closed
        while _connections(client):
            await asyncio.sleep(0.001)

    run(main())
