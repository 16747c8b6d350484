"""`AsyncReader` on each loop: what it returns, and what a cancelled call leaves behind."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import (
    AsyncReader,
    ClosedError,
    ConcurrentUseError,
    ConnectionFailedError,
    DataLossError,
    Dispatcher,
    Endpoint,
    Reader,
    StateError,
)
from headrace.testing import LocalCluster, LocalServer
from support import programs_with
from support.groups import add
from support.loops import NewLoop, Run
from support.pipelines import KEY, connections, endpoint_to
from support.processes import in_child


async def _all_ids(reader: AsyncReader) -> list[str]:
    return [entry.id async for batch in reader for entry in batch]


def test_it_returns_what_a_reader_returns(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    ids = add(client, 1_000)
    endpoint = endpoint_to(any_server)

    async def main() -> None:
        async with AsyncReader(endpoint, end="latest", batch_rows=64) as reader:
            assert await _all_ids(reader) == ids
            assert reader.is_finished
            position = reader.position
        with Reader(endpoint, end="latest", batch_rows=64) as other:
            assert [entry.id for batch in other for entry in batch] == ids
            assert other.position == position
        async with AsyncReader(endpoint, start=position, end="latest") as later:
            assert await later.read() is None

    run(main())
    assert len(connections(client)) == 0


def test_a_cluster_and_shards_are_read(run: Run) -> None:
    with LocalCluster(programs_with(["redis-7.0"])[0].path) as cluster:
        _read_shards(run, Endpoint(nodes=cluster.nodes, stream_key=KEY, shards=8))


def _read_shards(run: Run, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        for number in range(1_000):
            dispatcher.produce(b"%d" % number, key=b"%d" % number)

    async def main() -> list[int]:
        async with AsyncReader(endpoint, end="latest") as reader:
            return [int(entry["payload"]) async for batch in reader for entry in batch]

    assert sorted(run(main())) == list(range(1_000))


def test_a_timeout_takes_nothing(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncReader(endpoint_to(any_server), start="latest") as reader:
            started = time.monotonic()
            assert await reader.read(0.05) is None
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(), 0.05)
            assert time.monotonic() - started >= 0.1
            (entry_id,) = add(client, 1)
            batch = await reader.read()
            assert batch is not None
            assert [entry.id for entry in batch] == [entry_id]

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_reads_that_are_cancelled_at_any_moment_lose_nothing(
    run: Run, any_server: LocalServer, client: redis.Redis, seed: int
) -> None:
    rng = random.Random(seed)
    count = 2_000

    async def main() -> list[str]:
        got: list[str] = []
        async with AsyncReader(endpoint_to(any_server), start="earliest", batch_rows=50) as reader:
            writing = asyncio.create_task(asyncio.to_thread(_write_slowly, client, count))
            while len(got) < count:
                reading = asyncio.create_task(reader.read())
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.003)
                reading.cancel()
                try:
                    batch = await reading
                except asyncio.CancelledError:
                    continue
                got += [entry.id for entry in batch or ()]
            await writing
        return got

    got = run(main())
    entries: Any = client.xrange(KEY)
    assert got == [entry_id.decode() for entry_id, _ in entries]


def _write_slowly(client: redis.Redis, count: int) -> None:
    for _ in range(0, count, 20):
        pipeline = client.pipeline(transaction=False)
        for _ in range(20):
            pipeline.xadd(KEY, {"payload": "x"})
        pipeline.execute()


def test_one_task_at_a_time_may_read(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncReader(endpoint_to(any_server), start="latest") as reader:
            reading = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentUseError, match="the reader is in use by another task"):
                await reader.read()
            # The position may be asked for meanwhile.
            position = reader.position
            add(client, 1)
            batch = await reading
            assert batch is not None
            assert batch.position == reader.position != position

    run(main())


def test_stop_ends_a_read_from_any_thread(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncReader(endpoint_to(any_server), start="latest") as reader:
            reading = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            threading.Thread(target=reader.stop).start()
            assert await reading is None
            assert await reader.read() is None

    run(main())


def test_closing_ends_a_read_of_another_task(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        reader = AsyncReader(endpoint_to(any_server), start="latest")
        reading = asyncio.create_task(reader.read())
        while not reader._is_open:
            await asyncio.sleep(0.001)
        await reader.close()
        with pytest.raises(ClosedError, match="the reader was closed by another task"):
            await reading
        with pytest.raises(ClosedError, match="the reader is closed"):
            await reader.read()
        await reader.close()

    run(main())


@pytest.mark.needs("redis-7.0")
def test_errors_are_those_of_a_reader(run: Run, any_server: LocalServer, client: redis.Redis, tmp_path: Path) -> None:
    add(client, 100)
    with Reader(endpoint_to(any_server), end="latest", limit=10) as reader:
        batch = reader.read()
        assert batch is not None
        position = batch.position
    client.xtrim(KEY, maxlen=50, approximate=False)

    async def main() -> None:
        async with AsyncReader(endpoint_to(any_server), start=position, end="latest") as reader:
            with pytest.raises(DataLossError, match="40 entries"):
                await reader.read()
            assert len(await _all_ids(reader)) == 50
        nobody = endpoint_to(any_server)
        nobody = type(nobody)(unix_socket=str(tmp_path / "nobody"), stream_key=KEY)
        with pytest.raises(ConnectionFailedError):
            async with AsyncReader(nobody):
                pass

    run(main())


def test_another_loop_and_a_child_are_refused(new_loop: NewLoop, any_server: LocalServer) -> None:
    reader = AsyncReader(endpoint_to(any_server), start="latest")
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(reader.read(0.01)) is None

        def in_forked() -> str:
            try:
                asyncio.run(reader.read())
            except StateError as error:
                return str(error)
            return "no error"

        assert "the process was forked since the reader was created" in in_child(in_forked)
        with (
            asyncio.Runner(loop_factory=new_loop) as other,
            pytest.raises(StateError, match="the reader belongs to another event loop"),
        ):
            other.run(reader.read())
        runner.run(reader.close())


def test_other_tasks_get_their_turn_while_much_is_read(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    """Batches of any size: nothing keeps the loop to itself. Counts turns, not time."""
    pipeline = client.pipeline(transaction=False)
    for _ in range(20_000):
        pipeline.xadd(KEY, {"payload": "x" * 100})
    pipeline.execute()

    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncReader(endpoint_to(any_server), end="latest", batch_rows=100) as reader:
            counting = asyncio.create_task(count())
            batches = 0
            async for _ in reader:
                batches += 1
                assert turns >= batches - 1
            counting.cancel()
        assert batches >= 200

    run(main())


def test_what_an_async_reader_is_not(any_server: LocalServer) -> None:
    import pyarrow as pa

    reader = AsyncReader(endpoint_to(any_server), end="latest")
    with pytest.raises(TypeError, match="needs `async with`"), reader:  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match="an AsyncReader is no table"):
        pa.table(reader)
    assert repr(reader) == f"<AsyncReader: stream 'events' of {endpoint_to(any_server)._server()}>"
