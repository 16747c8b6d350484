"""One task that awaits one message after the other: each goes out at once, and others have their turns of the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import AsyncDispatcher, ConnectionFailedError, Delivered, Endpoint
from headrace.testing import LocalServer
from support.pipelines import KEY, endpoint_to, stored
from support.processes import wait_until

from .conftest import Run


def test_the_message_of_a_lone_task_is_sent_in_the_same_loop_iteration(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> Delivered:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.send(b"first")
            task = asyncio.create_task(dispatcher.send(b"second"))
            # Runs in the turn of the task, behind it: what it scheduled comes later.
            asyncio.get_running_loop().call_soon(wait_until, lambda: client.xlen(KEY) == 2)
            return await task

    assert run(main()).entry_id == stored(client)[1][0]


def test_messages_of_several_tasks_are_sent_together(run: Run, any_server: LocalServer) -> None:
    """Not the first one alone, though nothing is in flight before it."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await asyncio.gather(*(dispatcher.send(b"x") for _ in range(3)))
            original, calls = dispatcher._do_advance, 0

            def advance(futures: Any) -> Any:
                nonlocal calls
                calls += 1
                return original(futures)

            dispatcher._do_advance = advance
            tasks = [asyncio.create_task(dispatcher.send(b"x")) for _ in range(3)]
            seen: list[int] = []
            asyncio.get_running_loop().call_soon(lambda: seen.append(calls))
            await asyncio.gather(*tasks)
            assert seen == [0]
            assert calls > 0

    run(main())


def test_other_tasks_run_while_each_message_fails_immediately(run: Run, tmp_path: Path) -> None:
    async def main() -> int:
        dispatcher = AsyncDispatcher(Endpoint(unix_socket=str(tmp_path / "nothing"), stream_key=KEY))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        for _ in range(50):
            with pytest.raises(ConnectionFailedError):
                await dispatcher.send(b"x")
        counter.cancel()
        await dispatcher.close()
        return turns

    assert run(main()) >= 50


def test_an_immediate_outcome_of_a_cancelled_task_is_in_the_report(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        dispatcher = AsyncDispatcher(Endpoint(unix_socket=str(tmp_path / "nothing"), stream_key=KEY))
        with pytest.raises(ConnectionFailedError):
            await dispatcher.send(b"first")
        task = asyncio.create_task(dispatcher.send(b"second"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await dispatcher.flush()
        assert [failure.code for failure in report.failed] == ["CONNECT"]
        await dispatcher.close()

    run(main())
