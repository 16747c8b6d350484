"""Dispatchers in threads: one for each thread, and one shared by several."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pytest

from headrace import (
    ClosedError,
    ConcurrentUseError,
    ConnectionFailedError,
    DeliveryReport,
    Dispatcher,
    RetryPolicy,
    _headrace,
)
from headrace.testing import LocalServer
from headrace.wording import counted
from support import Certs
from support.fixture_types import StartServer
from support.in_use import is_in_use
from support.patience import NEVER, PATIENCE
from support.pipelines import DELIVERED, check_accounting, endpoint_to, labels, outcomes
from support.processes import in_child, stopped, wait_until

Connect = Callable[..., Any]

Mode = Literal["off", "script", "idmp"]

THREADS = 8


@pytest.mark.parametrize("mode", ["off", "script", pytest.param("idmp", marks=pytest.mark.needs("idmp"))])
@pytest.mark.parametrize("transport", ["any_server", "tls_server"])
def test_each_thread_may_have_its_own_dispatcher(
    request: pytest.FixtureRequest,
    connect: Connect,
    certs: Certs,
    transport: str,
    mode: Mode,
) -> None:
    """All at the same time, into separate streams: they do not affect each other."""
    server: LocalServer = request.getfixturevalue(transport)
    options: dict[str, Any] = {"tls_ca_cert": certs.ca} if transport == "tls_server" else {}
    start = threading.Barrier(THREADS, timeout=PATIENCE)

    def work(number: int) -> list[Any]:
        endpoint = endpoint_to(server, stream_key=f"events-{number}", **options)
        reported = []
        with Dispatcher(endpoint, exactly_once=mode) as dispatcher:
            start.wait()
            for turn in range(3):
                payloads = [b"%d-%d-%d" % (number, turn, row) for row in range(600)]
                dispatcher.produce_batch(pa.record_batch({"payload": pa.array(payloads[:300], pa.binary())}))
                for payload in payloads[300:]:
                    dispatcher.produce(payload)
                reported += outcomes(dispatcher.flush())
        return reported

    with ThreadPoolExecutor(THREADS) as pool:
        reported = list(pool.map(work, range(THREADS)))
    client = connect(server)
    for number, its in enumerate(reported):
        key = f"events-{number}"
        assert [outcome.label for outcome in its] == [DELIVERED] * 1_800
        sent = [(key, b"%d-%d-%d" % (number, turn, row)) for turn in range(3) for row in range(600)]
        check_accounting(client, sent, its)


def test_threads_that_share_a_dispatcher_keep_their_order(any_server: LocalServer, connect: Connect) -> None:
    """Every message of every thread is stored once, and has one outcome in one report or from `dispatch`."""
    start = threading.Barrier(THREADS, timeout=PATIENCE)
    reports: list[DeliveryReport] = []
    dispatched: list[tuple[str, bytes]] = []

    def payload(number: int, row: int) -> bytes:
        return b"%d-%d " % (number, row) + b"x" * 2_000

    def work(number: int) -> None:
        start.wait()
        for row in range(0, 300, 3):
            # Conversions that run Python code, and waits, let other threads run.
            dispatcher.produce(memoryview(payload(number, row)), message_id=number * 1_000 + row)
            if row % 2:
                columns = {"payload": [payload(number, row + 1)], "id": [number * 1_000 + row + 1]}
                dispatcher.produce_batch(pa.record_batch(columns), message_id="id")
            else:
                dispatcher.produce(payload(number, row + 1), message_id=number * 1_000 + row + 1)
            dispatched.append((dispatcher.dispatch(payload(number, row + 2)), payload(number, row + 2)))
            if row % 10 == 0:
                reports.append(dispatcher.flush())
            elif row % 10 == 5:
                reports.append(dispatcher.poll())

    with Dispatcher(endpoint_to(any_server), window_max_entries=4) as dispatcher:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        reports.append(dispatcher.flush())
    entries = connect(any_server).xrange("events")
    by_id = {entry_id.decode(): fields[b"payload"] for entry_id, fields in entries}
    assert [by_id[entry_id] for entry_id, _ in dispatched] == [payload for _, payload in dispatched]
    reported = [outcome for report in reports for outcome in outcomes(report)]
    assert [outcome.label for outcome in reported] == [DELIVERED] * (THREADS * 200)
    expected = [str(number * 1_000 + row) for number in range(THREADS) for row in range(300) if row % 3 < 2]
    assert sorted(outcome.message_id for outcome in reported) == sorted(expected)
    stored = [fields[b"payload"] for _, fields in entries]
    for number in range(THREADS):
        mine = [payload for payload in stored if payload.startswith(b"%d-" % number)]
        assert mine == [payload(number, row) for row in range(300)], "a thread's own messages stay in order"


def test_a_thread_that_waits_does_not_stop_the_others(any_server: LocalServer) -> None:
    """Neither `flush`, nor `dispatch`, nor a call that waits for room; also if no two calls had met before."""
    for wait in (
        lambda dispatcher: dispatcher.flush(),
        lambda dispatcher: dispatcher.dispatch(b"waits"),
        lambda dispatcher: [dispatcher.produce(b"waits") for _ in range(200)],
        lambda dispatcher: dispatcher.produce_batch(pa.record_batch({"payload": ["waits"] * 200})),
    ):
        with Dispatcher(endpoint_to(any_server, command_timeout=NEVER), window_max_entries=100) as dispatcher:
            assert dispatcher.dispatch(b"first")
            with ThreadPoolExecutor(1) as pool:
                with stopped(any_server):
                    dispatcher.produce(b"in flight")
                    waiting = pool.submit(wait, dispatcher)
                    wait_until(partial(is_in_use, dispatcher))
                    assert labels(dispatcher.poll()) == []
                    assert dispatcher.unreported > 0
                    if not dispatcher.closed and dispatcher.unreported < 90:
                        dispatcher.produce(b"beside it")
                        dispatcher.produce_batch(pa.record_batch({"payload": ["beside it"]}))
                    assert not waiting.done()
                waiting.result()
            _ = dispatcher.flush().ok


def test_a_timeout_of_one_thread_ends_the_wait_of_the_others(any_server: LocalServer) -> None:
    with (
        Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher,
        ThreadPoolExecutor(2) as pool,
    ):
        assert dispatcher.dispatch(b"first")
        with stopped(any_server):
            dispatcher.produce(b"x")
            waiting = pool.submit(dispatcher.flush)
            wait_until(lambda: is_in_use(dispatcher))
            dispatching = pool.submit(dispatcher.dispatch, b"y")
            wait_until(lambda: dispatcher.stats().messages == 3)
            mine = dispatcher.flush(timeout=0.1)
            theirs = waiting.result()
            with pytest.raises(ConnectionFailedError) as caught:
                dispatching.result()
        assert sorted(labels(mine, theirs)) == [("retryable", "TIMEOUT", "unknown")]
        (failure,) = caught.value.failures
        assert (failure.code, failure.written) == ("TIMEOUT", "unknown")
        assert dispatcher.dispatch(b"afterwards")


def test_a_handler_of_log_records_may_wait_for_a_call_of_another_thread(any_server: LocalServer) -> None:
    """Records are written without the lock; a call in the middle of one of the same thread is refused."""
    said: list[str] = []
    with (
        Dispatcher(endpoint_to(any_server), retry=RetryPolicy(deadline=NEVER, max_backoff=0.05)) as dispatcher,
        ThreadPoolExecutor(2) as pool,
    ):

        def emit(_: logging.LogRecord) -> bool:
            if not said:
                said.append("before")
                with pytest.raises(ConcurrentUseError, match="in use by another call"):
                    dispatcher.produce(b"within")
                assert not len(pool.submit(dispatcher.poll).result(PATIENCE))
                said.append("after")
                any_server.restart()
            return True

        assert dispatcher.dispatch(b"first")
        any_server.kill()
        logger = logging.getLogger("headrace")
        logger.addFilter(emit)
        try:
            dispatcher.produce(b"retried")
            assert pool.submit(dispatcher.flush).result(PATIENCE).delivered == 1
        finally:
            logger.removeFilter(emit)
        assert said == ["before", "after"]


def test_messages_that_are_produced_while_another_thread_closes_are_told(any_server: LocalServer) -> None:
    for _ in range(20):
        dispatcher = Dispatcher(endpoint_to(any_server))

        def work(dispatcher: Dispatcher = dispatcher) -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    dispatcher.produce(b"x")

        with ThreadPoolExecutor(1) as pool, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            producing = pool.submit(work)
            while not dispatcher.closed:
                with contextlib.suppress(ConcurrentUseError):  # while the other thread waits for room
                    dispatcher.close()
            producing.result()
        stats = dispatcher.stats()
        assert stats.messages == stats.delivered + stats.failed
        late = [str(warning.message).split(" to ")[0] for warning in told]
        assert late == ([counted(dispatcher.unreported)] if dispatcher.unreported else [])
        if late:
            return
    pytest.fail("no message was produced between the flush and the close")


def test_calls_that_go_with_no_other_say_so(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, command_timeout=NEVER)
    with Dispatcher(endpoint, exactly_once="script") as dispatcher, ThreadPoolExecutor(1) as pool:
        dispatcher.produce(b"first")
        assert dispatcher.flush().ok
        with stopped(any_server):
            dispatcher.produce(b"x")
            waiting = pool.submit(dispatcher.flush)
            wait_until(lambda: is_in_use(dispatcher))
            calls: list[Callable[[], object]] = [
                lambda: dispatcher.begin("token"),
                dispatcher.skip_failed,
                partial(_headrace.Dispatcher.close, dispatcher),
            ]
            for call in calls:
                with pytest.raises(ConcurrentUseError, match="in use by another call"):
                    call()
            assert not waiting.done()
        assert labels(waiting.result()) == [DELIVERED]
        dispatcher.begin("token")


def test_threads_of_a_child_share_its_copy(any_server: LocalServer) -> None:
    """As in a server that forks its workers: a child's own threads may meet, too."""
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        assert dispatcher.dispatch(b"parent")

        def child() -> int:
            def work(number: int) -> list[str]:
                start.wait()
                for _ in range(2_000):
                    dispatcher.produce(b"x")
                return [dispatcher.dispatch(b"%d" % number) for _ in range(20)]

            start = threading.Barrier(THREADS, timeout=PATIENCE)
            with ThreadPoolExecutor(THREADS) as pool:
                entries = [entry for each in pool.map(work, range(THREADS)) for entry in each]
            assert dispatcher.flush().delivered == THREADS * 2_000
            return len(set(entries))

        assert in_child(child) == THREADS * 20
        assert dispatcher.dispatch(b"parent")


def test_a_flush_beside_a_dispatch_does_not_keep_it_waiting(any_server: LocalServer) -> None:
    """The call that drives waits without the lock; another one must not wait with it."""
    with Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher, ThreadPoolExecutor(1) as pool:
        assert dispatcher.dispatch(b"first")
        with stopped(any_server):
            dispatching = pool.submit(dispatcher.dispatch, b"x")
            wait_until(lambda: is_in_use(dispatcher))
            dispatcher.produce(b"y")
            assert labels(dispatcher.flush(timeout=0.1)) == [("retryable", "TIMEOUT", "unknown")]
            with pytest.raises(ConnectionFailedError):
                dispatching.result()
        assert dispatcher.dispatch(b"last")


def test_a_waiting_thread_does_not_block_other_threads(any_server: LocalServer, start_server: StartServer) -> None:
    """One server is suspended; the dispatcher to the other one continues."""
    other = start_server()
    with (
        Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as slow,
        Dispatcher(endpoint_to(other)) as quick,
        ThreadPoolExecutor(1) as pool,
    ):
        assert slow.dispatch(b"first")
        with stopped(any_server):
            slow.produce(b"x")
            waiting = pool.submit(slow.flush)
            for _ in range(100):
                quick.produce(b"x")
                assert quick.flush(PATIENCE).ok
            assert not waiting.done()
        assert labels(waiting.result()) == [DELIVERED]
