"""The shard consumer on an event loop: what differs from that of threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncShardConsumer, ClosedError, ShardBatch, StateError
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.groups import GROUP, add
from support.loops import Run
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.shard_consumers import ids_of, lease_of, member_of, sharded, take

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def on_loop(where: Any, name: str = "a", **options: Any) -> AsyncShardConsumer:
    given = {"group": GROUP, "member": name, "linger": 0.0, "lease": NEVER, **options}
    return AsyncShardConsumer(endpoint_to(where) if isinstance(where, LocalServer) else where, **given)


async def next_batch(member: AsyncShardConsumer) -> ShardBatch:
    batch = await member.poll(PATIENCE)
    assert batch is not None, "no batch came"
    return batch


def test_entries_are_read_and_committed(server: LocalServer, client: Any, run: Run) -> None:
    add(client, 20)

    async def main() -> None:
        async with on_loop(server, batch_rows=5) as member:
            found = []
            async for batch in member:
                found += ids_of(batch)
                batch.check()
                member.commit(batch)
                if len(found) == 15:
                    member.stop()
            assert found == as_ids(range(1, 16))
            assert (await member.flush()).committed == 15
            assert member.assignment == [KEY.encode()]
        with pytest.raises(ClosedError):
            await member.poll()

    run(main())
    assert lease_of(client, KEY)["owner"] == ""
    with member_of(server, "b") as member:
        assert take(member, 5) == {KEY: as_ids(range(16, 21))}


def test_two_members_on_one_loop_share_the_streams(server: LocalServer, client: Any, run: Run) -> None:
    for shard in range(4):
        add(client, 25, key=f"orders:{shard}")

    async def main() -> dict[bytes, list[str]]:
        found: dict[bytes, list[str]] = {}
        endpoint = sharded(server, 4)

        async def work(member: AsyncShardConsumer) -> None:
            async for batch in member:
                found.setdefault(batch.stream, []).extend(ids_of(batch))
                member.commit(batch)
                await asyncio.sleep(0)

        async with on_loop(endpoint, "a", batch_rows=5) as a, on_loop(endpoint, "b", batch_rows=5) as b:
            tasks = [asyncio.ensure_future(work(member)) for member in (a, b)]
            while sum(map(len, found.values())) < 100 or sorted(map(len, (a.assignment, b.assignment))) != [2, 2]:
                await asyncio.sleep(0.01)
            a.stop()
            b.stop()
            await asyncio.gather(*tasks)
            assert (await a.flush()).committed + (await b.flush()).committed == 100
        return found

    assert run(main()) == {key: as_ids(range(1, 26)) for key in sharded(server, 4).stream_keys}


def test_a_cancelled_call_takes_nothing(server: LocalServer, client: Any, run: Run) -> None:
    add(client, 100)

    async def main() -> list[str]:
        found: list[str] = []
        async with on_loop(server, batch_rows=1) as member:
            for _ in range(2_000):
                if len(found) == 100:
                    break
                with contextlib.suppress(TimeoutError):
                    found += ids_of(await asyncio.wait_for(next_batch(member), 0.0005))
            while len(found) < 100:
                found += ids_of(await next_batch(member))
        return found

    assert run(main()) == as_ids(range(1, 101))


def test_the_loop_renews_the_lease_while_no_call_waits(server: LocalServer, client: Any, run: Run) -> None:
    add(client, 3)

    async def main() -> None:
        async with on_loop(server, lease=5.0) as member:
            batch = await next_batch(member)
            until = int(lease_of(client, KEY)["until"])
            while int(lease_of(client, KEY)["until"]) < until + 3_000:
                await asyncio.sleep(0.02)
            batch.check()
            member.commit(batch)
            assert (await member.flush()).committed == 3

    run(main())


def test_a_loop_of_its_own(server: LocalServer, client: Any, run: Run) -> None:
    async def main() -> AsyncShardConsumer:
        async with on_loop(server) as member:
            await member.poll(0.0)

            async def poll() -> None:
                await member.poll(0.0)

            def elsewhere() -> None:
                with pytest.raises(StateError, match="loop"):
                    asyncio.run(poll())

            await asyncio.to_thread(elsewhere)
        return member

    assert run(main()).report().streams_taken <= 1
