"""Dispatchers in threads: one for each thread, and one shared by several."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa
import pytest

from headrace import ConcurrentUseError, Dispatcher
from headrace.testing import LocalServer
from support import Certs
from support.fixture_types import StartServer
from support.patience import NEVER, PATIENCE
from support.pipelines import DELIVERED, check_accounting, endpoint_to, labels, outcomes, stored
from support.processes import stopped

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


def test_threads_that_share_a_dispatcher_lose_no_messages(any_server: LocalServer, connect: Connect) -> None:
    """A call is refused or done: refused messages are not accepted, and none is accepted twice."""
    taken: list[list[bytes]] = [[] for _ in range(THREADS)]
    refused: Counter[int] = Counter()
    start = threading.Barrier(THREADS, timeout=PATIENCE)

    def work(number: int) -> None:
        start.wait()
        for row in range(300):
            payload = b"%d-%d" % (number, row) + b"x" * 2_000
            try:
                # Conversions that run Python code, and waits, let other threads run.
                dispatcher.produce(memoryview(payload))
                taken[number].append(payload)
                if row % 10 == 0:
                    dispatcher.flush(timeout=None)
            except ConcurrentUseError:
                refused[number] += 1

    with Dispatcher(endpoint_to(any_server), window_max_entries=4) as dispatcher:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        _ = dispatcher.flush().ok
    kept = [payload for _, payload in stored(connect(any_server))]
    assert sorted(kept) == sorted(payload for payloads in taken for payload in payloads)
    assert refused.total() > 0, "they never met"
    for number, payloads in enumerate(taken):
        mine = [payload for payload in kept if payload.startswith(b"%d-" % number)]
        assert mine == payloads, "a thread's own messages stay in order"


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
