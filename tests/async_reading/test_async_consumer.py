"""`AsyncConsumer` on each loop: what it returns, its leases, and what a cancelled call or block leaves behind."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from typing import Any

import pytest
import redis

from headrace import AsyncConsumer, ClosedError, ConcurrentUseError, Dispatcher, Endpoint, LeaseLostError
from headrace.testing import LocalCluster, LocalServer
from support import programs_with
from support.groups import GROUP, add, pending_of
from support.loops import Run
from support.pipelines import KEY, connections, endpoint_to


def _consumer(server: LocalServer, name: str = "c1", **options: Any) -> AsyncConsumer:
    return AsyncConsumer(endpoint_to(server), group=GROUP, consumer=name, start="0-0", **options)


def test_entries_are_acknowledged_once(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    ids = add(client, 1_000)

    async def main() -> list[str]:
        got: list[str] = []
        async with _consumer(any_server, batch_rows=64) as consumer:
            while len(got) < 1_000:
                batch = await consumer.poll()
                assert batch is not None
                got += [entry.id for entry in batch]
                consumer.ack(batch)
            report = await consumer.flush()
            assert (report.acked, report.pending) == (1_000, 0)
            assert await consumer.poll(0.05) is None
        return got

    assert run(main()) == ids
    assert pending_of(client) == {}
    assert len(connections(client)) == 0


def test_the_loop_renews_leases_and_sends_acknowledgements_while_no_call_waits(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    add(client, 10)

    async def main() -> None:
        async with _consumer(any_server, min_idle=1.0) as consumer, _consumer(any_server, "c2", min_idle=1.0) as other:
            batch = await consumer.poll()
            assert batch is not None
            assert await other.poll(2.0) is None
            batch.check()
            consumer.ack(batch)
            while pending_of(client):
                await asyncio.sleep(0.01)

    run(main())


def test_a_blocked_loop_is_told_and_its_leases_are_lost(
    run: Run, any_server: LocalServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 1)

    async def main() -> None:
        async with _consumer(any_server, min_idle=0.5, renew=True) as consumer:
            batch = await consumer.poll()
            assert batch is not None
            time.sleep(0.6)
            with pytest.raises(LeaseLostError):
                batch.check()
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, "headrace"):
        run(main())
    assert "the event loop was blocked for 0." in caplog.text


@pytest.mark.parametrize("seed", range(4))
def test_polls_that_are_cancelled_at_any_moment_lose_nothing(
    run: Run, any_server: LocalServer, client: redis.Redis, seed: int
) -> None:
    rng = random.Random(seed)
    ids = add(client, 2_000)

    async def main() -> list[str]:
        got: list[str] = []
        async with _consumer(any_server, batch_rows=20) as consumer:
            while len(got) < len(ids):
                polling = asyncio.create_task(consumer.poll())
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.003)
                polling.cancel()
                try:
                    batch = await polling
                except asyncio.CancelledError:
                    continue
                assert batch is not None
                got += [entry.id for entry in batch]
                consumer.ack(batch)
        return got

    assert run(main()) == ids
    assert pending_of(client) == {}


def test_the_end_of_a_cancelled_block_gives_back_what_is_in_hand(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    add(client, 100)

    async def work(started: asyncio.Event) -> None:
        async with _consumer(any_server, batch_rows=10) as consumer:
            batch = await consumer.poll()
            assert batch is not None
            consumer.ack(batch)
            await consumer.poll()
            started.set()
            await asyncio.sleep(3600)

    async def main() -> None:
        started = asyncio.Event()
        working = asyncio.create_task(work(started))
        await started.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        async with _consumer(any_server, "c2", claim_interval=0.05) as other:
            got: list[str] = []
            while len(got) < 90:
                batch = await other.poll()
                assert batch is not None
                got += [entry.id for entry in batch]
                other.ack(batch)
        assert len(set(got)) == 90

    run(main())
    assert pending_of(client) == {}


def test_stop_close_and_two_tasks(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with _consumer(any_server) as consumer:
            polling = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentUseError, match="the consumer is in use by another task"):
                await consumer.flush()
            threading.Thread(target=consumer.stop).start()
            assert await polling is None
        consumer = _consumer(any_server)
        polling = asyncio.create_task(consumer.poll())
        while not consumer._is_open:
            await asyncio.sleep(0.001)
        await consumer.close()
        with pytest.raises(ClosedError, match="the consumer was closed by another task"):
            await polling
        with pytest.raises(ClosedError, match="the consumer is closed"):
            await consumer.poll()

    run(main())


def test_many_consumers_share_a_loop(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    ids = add(client, 2_000)

    got: list[str] = []

    async def work(name: str) -> None:
        async with _consumer(any_server, name, batch_rows=10) as consumer:
            while len(got) < len(ids):
                if (batch := await consumer.poll(0.05)) is not None:
                    got.extend(entry.id for entry in batch)
                    consumer.ack(batch)

    async def main() -> None:
        await asyncio.gather(*(work(f"c{number}") for number in range(20)))

    run(main())
    assert sorted(got) == sorted(ids)
    assert pending_of(client) == {}


def test_a_cluster_is_consumed(run: Run) -> None:
    with LocalCluster(programs_with(["redis-7.0"])[0].path) as cluster:
        _consume_shards(run, Endpoint(nodes=cluster.nodes, stream_key=KEY, shards=8))


def _consume_shards(run: Run, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        for number in range(500):
            dispatcher.produce(b"%d" % number, key=b"%d" % number)

    async def main() -> list[int]:
        got: list[int] = []
        async with AsyncConsumer(endpoint, group=GROUP, consumer="c1", start="0-0") as consumer:
            while len(got) < 500:
                batch = await consumer.poll()
                assert batch is not None
                got += [int(entry["payload"]) for entry in batch]
                consumer.ack(batch)
            report = await consumer.flush()
            assert report.pending == 0
        return got

    assert sorted(run(main())) == list(range(500))
