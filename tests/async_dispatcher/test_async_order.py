"""The line of those who wait for room, and tasks that are cancelled in it or behind it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import AsyncDispatcher, Delivered, DeliveryError, MessageError
from headrace.testing import LocalServer
from support.patience import NEVER
from support.pipelines import KEY, endpoint_to, outcomes, stored
from support.processes import stopped

from .conftest import Run
from .waiting import before_receipt, fill, turns_until


@pytest.mark.parametrize("window", [1, 7])
def test_messages_are_accepted_first_come_first_served(
    run: Run, any_server: LocalServer, client: redis.Redis, window: int
) -> None:
    expected: list[bytes] = []

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=window) as dispatcher:
            calls: list[Coroutine[Any, Any, Any]] = []
            for number in range(300):
                name = b"%d" % number
                if number % 3 == 0:
                    calls.append(dispatcher.send(name))
                elif number % 3 == 1:
                    calls.append(dispatcher.produce(name))
                else:
                    rows = [b"%d-%d" % (number, row) for row in range(5)]
                    calls.append(dispatcher.produce_batch(pa.record_batch({"payload": pa.array(rows, pa.binary())})))
                    expected.extend(rows)
                    continue
                expected.append(name)
            await asyncio.gather(*calls)

    run(main())
    assert [payload for _, payload in stored(client)] == expected


def test_a_new_message_does_not_overtake_a_waiting_message(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    """Not even while the line is served, where there is room before the first task of the line goes on."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=2) as dispatcher:
            number = 0

            async def go_on() -> None:
                nonlocal number
                for _ in range(20):
                    name, number = b"%d" % number, number + 1
                    await dispatcher.send(name)

            await asyncio.gather(*(go_on() for _ in range(20)))

    run(main())
    assert [payload for _, payload in stored(client)] == [b"%d" % number for number in range(400)]


def test_thousands_of_tasks_wait_for_a_small_window(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=10) as dispatcher:
            sent = await asyncio.gather(*(dispatcher.send(b"x") for _ in range(5_000)))
            assert len({delivered.entry_id for delivered in sent}) == 5_000
            assert not dispatcher._line
            assert not dispatcher._futures

    run(main())


def test_a_message_that_is_cancelled_before_it_is_accepted_is_never_sent(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"first")
            with stopped(any_server):
                count = await fill(dispatcher)
                tasks: list[asyncio.Task[Any]] = [
                    asyncio.create_task(dispatcher.send(b"cancelled")),
                    asyncio.create_task(dispatcher.produce(b"cancelled")),
                    asyncio.create_task(dispatcher.produce_batch(pa.record_batch({"payload": ["cancelled"]}))),
                    asyncio.create_task(dispatcher.flush()),
                    asyncio.create_task(dispatcher.send(b"last")),
                ]
                await turns_until(lambda: len(dispatcher._line) == len(tasks))
                for task in tasks[:-1]:
                    task.cancel()
                await asyncio.wait(tasks[:-1])
                assert all(task.cancelled() for task in tasks[:-1])
            assert (await tasks[-1]).entry_id
            # The two that are not awaited were produced by `fill`.
            assert (await dispatcher.flush()).delivered == count

    run(main())
    names = [payload for _, payload in stored(client)]
    assert names == [b"first", *[b"before"] * (len(names) - 2), b"last"]


def test_a_message_cancelled_when_the_window_frees_up_is_never_sent(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    """The task has not handled its cancellation yet when its turn comes."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=1) as dispatcher:
            first = asyncio.create_task(dispatcher.send(b"first"))
            second = asyncio.create_task(dispatcher.send(b"cancelled"))
            await turns_until(lambda: dispatcher._line)
            with before_receipt(dispatcher, second.cancel):
                await first
            await asyncio.wait([second])
            assert second.cancelled()

    run(main())
    assert [payload for _, payload in stored(client)] == [b"first"]


def test_the_outcome_of_a_message_cancelled_in_flight_is_in_the_next_report(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"first")
            with stopped(any_server):
                tasks = [asyncio.create_task(dispatcher.send(b"x", message_id=f"id-{n}")) for n in range(3)]
                await turns_until(lambda: dispatcher._native.unsettled == 3)
                tasks[1].cancel()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(dispatcher.send(b"x", message_id="timed out"), 0.05)
            await asyncio.wait(tasks)
            assert tasks[0].result() != tasks[2].result()
            report = await dispatcher.flush()
            assert [(outcome.message_id, outcome.code) for outcome in outcomes(report)] == [
                ("id-1", None),
                ("timed out", None),
            ]

    run(main())
    assert len(stored(client)) == 5


@pytest.mark.parametrize("fails", [False, True], ids=["delivered", "failed"])
def test_an_outcome_not_received_by_its_task_is_in_the_next_report(
    run: Run, any_server: LocalServer, client: redis.Redis, fails: bool
) -> None:
    """The future has it when the task is cancelled, and the task has not gone on."""
    if fails:
        client.set(KEY, "no stream")

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.produce(b"x")
            await dispatcher.produce(b"x")
            assert len((await dispatcher.flush()).failed) == 2 * fails
            for message_id, reported in (("mine", "mine"), (None, "0")):
                tasks: list[asyncio.Task[Delivered]] = []
                with before_receipt(dispatcher, lambda tasks=tasks: tasks[0].cancel()):  # type: ignore[misc]
                    tasks.append(asyncio.create_task(dispatcher.send(b"x", message_id)))
                    await asyncio.wait(tasks)
                assert tasks[0].cancelled()
                report = await dispatcher.flush()
                (outcome,) = outcomes(report)
                assert (outcome.message_id, outcome.code) == (reported, "WRONGTYPE" if fails else None)

    run(main())


async def in_a_group(dispatcher: AsyncDispatcher) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(dispatcher.send(b"x"))


def test_every_exception_is_retrieved(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    """`run` fails if the loop reports one."""
    client.set(KEY, "no stream")

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            with pytest.raises(DeliveryError):
                await asyncio.gather(*(dispatcher.send(b"x") for _ in range(10)))
            with pytest.raises(ExceptionGroup):
                await in_a_group(dispatcher)
            with stopped(any_server):
                for _ in range(10):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(dispatcher.send(b"x"), 0.001)
            report = await dispatcher.flush()
            # Others of the groups above may have been cancelled before they received theirs.
            assert report.failed_by_code["WRONGTYPE"] >= 10
            assert not report.ok
        gc.collect()

    run(main())


def test_an_error_in_a_waiting_message_is_raised_by_its_call(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=1) as dispatcher:
            first = asyncio.create_task(dispatcher.send(b"x"))
            second = asyncio.create_task(dispatcher.produce(b"waits, so that the others do"))
            bad = asyncio.create_task(dispatcher.send(1))  # type: ignore[arg-type]
            worse = asyncio.create_task(dispatcher.produce(b"x", message_id=1.5))  # type: ignore[arg-type]
            last = asyncio.create_task(dispatcher.send(b"y"))
            await turns_until(lambda: len(dispatcher._line) == 4)
            with pytest.raises(MessageError, match="a payload must be bytes-like or a str: got int"):
                await bad
            with pytest.raises(MessageError, match="a message ID must be a str or an int: got float"):
                await worse
            await second
            assert await first != await last

    run(main())


def test_a_waiting_payload_is_unaffected_by_changes_to_its_buffer(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=1) as dispatcher:
            payload = bytearray(b"as produced")
            tasks = [asyncio.create_task(dispatcher.send(payload)) for _ in range(3)]
            await turns_until(lambda: dispatcher._line)
            payload[:] = b"changed now"
            await asyncio.gather(*tasks)

    run(main())
    assert {payload for _, payload in stored(client)} == {b"as produced"}


def test_tasks_cancelled_while_waiting_do_not_retain_memory(run: Run, any_server: LocalServer) -> None:
    """A server that stays away, and callers that give up again and again."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"first")
            with stopped(any_server):
                await fill(dispatcher)
                stays = asyncio.create_task(dispatcher.send(b"last"))
                tracemalloc.start()
                for _ in range(100):
                    tasks = [asyncio.create_task(dispatcher.send(bytearray(100_000))) for _ in range(10)]
                    # One turn: each is in the line then.
                    await asyncio.sleep(0)
                    assert all(turn.take for turn in list(dispatcher._line)[-10:])
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                assert len(dispatcher._line) < 200
                size, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert size < 3_000_000, size
            await stays

    run(main())
