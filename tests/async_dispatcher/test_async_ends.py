"""How an `AsyncDispatcher` ends: its block, its loop and its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from typing import Any

import pytest
import redis

from headrace import (
    AsyncDispatcher,
    ClosedError,
    Delivered,
    DeliveryError,
    ForgottenWarning,
    InternalError,
    StateError,
    async_dispatcher,
)
from headrace.dispatcher import FLUSH_AFTER_EXCEPTION
from headrace.testing import LocalServer
from support.patience import LATE, NEVER
from support.pipelines import connections, endpoint_to, stored
from support.processes import in_child, stopped, wait_until

from .conftest import NewLoop, Run
from .waiting import fill, turns_until


def collect(dropped: list[AsyncDispatcher]) -> None:
    dropped.clear()
    gc.collect()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last flush waits for less than 5 s."""
    assert FLUSH_AFTER_EXCEPTION == 5
    monkeypatch.setattr(async_dispatcher, "FLUSH_AFTER_EXCEPTION", 0.2)


@pytest.mark.usefixtures("soon")
def test_the_block_waits_for_outcomes_only_briefly_after_an_exception(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        with contextlib.ExitStack() as stop:
            async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
                await dispatcher.send(b"0")
                stop.enter_context(stopped(any_server))
                await dispatcher.produce(b"1")
                raise ZeroDivisionError

    began = time.perf_counter()
    with pytest.raises(ZeroDivisionError) as caught:
        run(main())
    assert time.perf_counter() - began < LATE
    notes = caught.value.__notes__
    assert notes[0] == "headrace: flushed after this exception: <DeliveryReport: 0 delivered, 1 failed (TIMEOUT 1)>"
    assert notes[1].startswith("headrace: unhandled delivery failures: 1 message was not delivered")


def test_messages_are_delivered_after_an_exception_in_the_block(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.produce(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(main())
    assert caught.value.__notes__ == ["headrace: flushed after this exception: <DeliveryReport: 1 delivered, 0 failed>"]
    assert len(stored(client)) == 1


def test_messages_that_wait_for_room_are_delivered_at_the_end_of_the_block(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> int:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"0")
            with stopped(any_server):
                count = await fill(dispatcher)
                waits = asyncio.create_task(dispatcher.produce(b"waits"))
                await turns_until(lambda: dispatcher._line)
        await waits
        return count

    count = run(main())
    payloads = [payload for _, payload in stored(client)]
    assert (len(payloads), payloads[-1]) == (1 + count + 1, b"waits")


def test_many_windows_of_waiting_messages_are_delivered_at_the_end_of_the_block(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=2) as dispatcher:
            tasks = [asyncio.create_task(dispatcher.send(b"%d" % number)) for number in range(50)]
            await turns_until(lambda: len(dispatcher._line) > 40)
        assert len({delivered.entry_id for delivered in await asyncio.gather(*tasks)}) == 50

    run(main())
    assert [payload for _, payload in stored(client)] == [b"%d" % number for number in range(50)]


@pytest.mark.usefixtures("soon")
def test_the_block_waits_for_outcomes_only_briefly_after_a_cancellation(run: Run, any_server: LocalServer) -> None:
    """Tasks that still wait receive an outcome or an error."""

    async def main() -> None:
        begun = asyncio.Event()
        dispatcher = AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER))

        async def block() -> None:
            async with dispatcher:
                await dispatcher.send(b"0")
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await begun.wait()
        with stopped(any_server):
            in_flight = asyncio.create_task(dispatcher.send(b"in flight"))
            await turns_until(lambda: dispatcher._futures)
            await fill(dispatcher)
            waits = asyncio.create_task(dispatcher.send(b"waits"))
            flush = asyncio.create_task(dispatcher.flush())
            await turns_until(lambda: len(dispatcher._line) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(DeliveryError, match="TIMEOUT"):
                await in_flight
            with pytest.raises(ClosedError, match="closed before it accepted the message"):
                await waits
            with contextlib.suppress(ClosedError):
                await flush
        assert dispatcher.closed

    run(main())


def test_messages_left_in_a_closed_loop_cause_a_warning(
    new_loop: NewLoop, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main(dispatcher: AsyncDispatcher) -> None:
        await dispatcher.send(b"0")
        stop.enter_context(stopped(any_server))
        for _ in range(1_234):
            await dispatcher.produce(b"")

    loop = new_loop()
    dispatcher = AsyncDispatcher(endpoint_to(any_server))
    with contextlib.ExitStack() as stop:
        loop.run_until_complete(main(dispatcher))
        loop.close()
    del loop
    dropped = [dispatcher]
    del dispatcher
    with pytest.warns(ForgottenWarning, match=r"^1,234 messages to unix:.* await flush\(\)") as caught:
        collect(dropped)
    caught.clear()  # the warning holds its dispatcher
    gc.collect()
    wait_until(lambda: not connections(client))


def test_a_closed_loop_without_messages_left_causes_no_warning(new_loop: NewLoop, any_server: LocalServer) -> None:
    loop = new_loop()
    dispatcher = AsyncDispatcher(endpoint_to(any_server))
    loop.run_until_complete(dispatcher.send(b"0"))
    loop.close()
    del dispatcher
    gc.collect()


def test_a_socket_is_not_watched_after_close(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.send(b"0")
            ((_, fd),) = dispatcher._watch._sockets
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(fd)
        assert dispatcher._watch._timer is None or dispatcher._watch._timer.cancelled()

    run(main())
    wait_until(lambda: not connections(client))


def test_another_event_loop_cannot_use_the_dispatcher(new_loop: NewLoop, run: Run, any_server: LocalServer) -> None:
    dispatcher = AsyncDispatcher(endpoint_to(any_server))
    loop = new_loop()
    loop.run_until_complete(dispatcher.send(b"0"))

    async def use() -> None:
        for call in (dispatcher.send(b"x"), dispatcher.produce(b"x"), dispatcher.flush(), dispatcher.close()):
            with pytest.raises(StateError, match="the dispatcher belongs to another event loop"):
                await call

    run(use())
    thread = threading.Thread(target=run, args=[use()])
    thread.start()
    thread.join()
    loop.run_until_complete(dispatcher.close())
    loop.close()


def test_a_forked_child_cannot_use_the_dispatcher(
    new_loop: NewLoop, any_server: LocalServer, client: redis.Redis
) -> None:
    def refused(dispatcher: AsyncDispatcher) -> list[str]:
        loop, texts = new_loop(), []
        for call in (dispatcher.send(b"child"), dispatcher.produce(b"child"), dispatcher.flush(), dispatcher.close()):
            try:
                loop.run_until_complete(call)
            except StateError as error:
                texts.append(str(error))
        loop.close()
        return texts

    async def main() -> tuple[AsyncDispatcher, AsyncDispatcher]:
        used, unused = AsyncDispatcher(endpoint_to(any_server)), AsyncDispatcher(endpoint_to(any_server))
        await used.send(b"0")
        await used.produce(b"1")
        return used, unused

    loop = new_loop()
    used, unused = loop.run_until_complete(main())

    def child() -> list[str]:
        asyncio.events._set_running_loop(None)
        texts = [*refused(used), *refused(unused)]
        used.__del__()  # no warning: its messages are the parent's
        return texts

    texts = in_child(child)
    assert len(texts) == 8
    assert all(text.startswith("the process was forked since the dispatcher was created") for text in texts), texts
    loop.run_until_complete(used.close())
    loop.close()
    assert [payload for _, payload in stored(client)] == [b"0", b"1"]


@pytest.mark.parametrize("fails", [False, True], ids=["flush", "last flush after an exception"])
def test_a_cancellation_ends_the_wait_for_outcomes(run: Run, any_server: LocalServer, fails: bool) -> None:
    async def main() -> None:
        dispatcher = AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER))

        async def block() -> None:
            async with dispatcher:
                await dispatcher.send(b"0")
                stop.enter_context(stopped(any_server))
                await dispatcher.produce(b"x")
                if fails:
                    raise ZeroDivisionError

        with contextlib.ExitStack() as stop:
            task = asyncio.create_task(block())
            await turns_until(lambda: dispatcher._flushes)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)
        assert dispatcher.closed

    run(main())


def test_an_error_in_a_callback_loses_no_outcome(new_loop: NewLoop, any_server: LocalServer) -> None:
    """The loop reports it, as it does with every callback; the outcomes come with the next turn."""
    reported: list[object] = []

    async def main() -> Delivered:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.send(b"0")
            original, left = dispatcher._do_advance, 2

            def advance(futures: Any) -> Any:
                nonlocal left
                if left:
                    left -= 1
                    raise InternalError("a defect")
                return original(futures)

            dispatcher._do_advance = advance
            return await dispatcher.send(b"1")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        assert runner.run(main()).entry_id
    assert [str(error) for error in reported] == ["a defect", "a defect"]
