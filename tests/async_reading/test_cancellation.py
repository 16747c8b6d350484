"""Calls of `AsyncReader` and `AsyncConsumer` that are cancelled, or overtaken by a close, on each loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import AsyncConsumer, AsyncReader, ClosedError, ConnectionFailedError
from headrace.testing import LocalServer
from support.groups import GROUP, add, pending_of
from support.loops import Run
from support.pipelines import connections, endpoint_to

from .cancelling import Consuming, Reading


@pytest.mark.parametrize("kind", [Reading, Consuming])
def test_calls_that_are_cancelled_lose_no_entry_and_leave_nothing(
    run: Run, any_server: LocalServer, client: redis.Redis, kind: type[Reading | Consuming]
) -> None:
    run(kind(any_server, client, 1).until(200))
    assert len(connections(client)) == 0


def test_a_poll_that_is_cancelled_after_its_timeout_does_not_end_a_loop(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncConsumer(endpoint_to(any_server), group=GROUP, consumer="c1", start="0-0") as consumer:
            polling = asyncio.create_task(consumer.poll(0.02))
            while consumer._waiter is None or not consumer._waiter.done():
                await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            add(client, 1)
            batch = await consumer.poll()
            assert batch is not None
            consumer.ack(batch)

    run(main())


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_a_descriptor_that_a_call_has_closed_is_watched_no_longer(
    run: Run, start_server: Callable[[], LocalServer], kind: str
) -> None:
    """Its number may be another socket's by then, whose watch would be removed."""
    server = start_server()

    async def main() -> None:
        reader: Any
        if kind == "reader":
            reader = AsyncReader(endpoint_to(server), start="latest")
        else:
            reader = AsyncConsumer(endpoint_to(server), group=GROUP, consumer="c1", start="latest")
        call = reader.read if kind == "reader" else reader.poll
        await call(0.05)
        waiting = asyncio.create_task(call())
        while reader._waiter is None or not reader._watch._sockets:
            await asyncio.sleep(0.01)
        (fd,) = {fd for _, fd in reader._watch._sockets}
        server.stop()
        with pytest.raises(ConnectionFailedError):
            await waiting
        with _socket_pair(fd) as (other, end):
            receiving = asyncio.create_task(asyncio.get_running_loop().sock_recv(other, 1))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionFailedError):
                await call(0.05)
            end.send(b"x")
            assert await receiving == b"x"
        await reader.close()

    run(main())


@contextlib.contextmanager
def _socket_pair(fd: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that are connected. The first has this descriptor, as any new one may after it was closed."""
    first, end = socket.socketpair()
    if end.fileno() == fd:
        first, end = end, first
    if first.fileno() != fd:
        os.dup2(first.fileno(), fd)
        first.close()
        first = socket.socket(fileno=fd)
    first.setblocking(False)
    with first, end:
        yield first, end


def test_a_poll_whose_batch_a_close_gave_back_raises(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        consumer = AsyncConsumer(endpoint_to(any_server), group=GROUP, consumer="c1", start="0-0")
        await consumer.poll(0.01)
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0.05)
        add(client, 1)
        while consumer._waiter is None or not consumer._waiter.done():
            await asyncio.sleep(0)
        report = await consumer.close()
        assert report.released == 1
        with pytest.raises(ClosedError, match="the consumer was closed by another task"):
            await polling

    run(main())
    assert len(pending_of(client)) == 1


def test_calls_during_a_close(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    add(client, 1)

    async def main() -> None:
        consumer = AsyncConsumer(endpoint_to(any_server), group=GROUP, consumer="c1", start="0-0")
        assert await consumer.poll() is not None
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        for call in (consumer.poll, consumer.flush):
            with pytest.raises(ClosedError, match="the consumer is closed"):
                await call()
        await consumer.close()
        assert (await closing).released == 1

    run(main())
