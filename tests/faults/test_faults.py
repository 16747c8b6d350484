"""Connections that break while messages are in flight: the outcome of each message, and of later messages."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

from headrace import Dispatcher
from headrace.testing import LocalServer
from support import Program
from support.fixture_types import StartServer
from support.patience import NEVER, PATIENCE, lasting
from support.pipelines import (
    DELIVERED,
    KEY,
    Outcome,
    batch_of,
    check_accounting,
    endpoint_to,
    labels,
    outcomes,
    payloads_of,
    produce_all,
    stored,
)
from support.processes import StuckError, after_ticks, resume, stop, stopped, ticking, wait_until
from support.servers import DURABLE

Connect = Callable[..., Any]

LOST = ("RESET", "EOF")


def check_lost(reported: list[Outcome], codes: tuple[str, ...] = LOST) -> None:
    """Check messages lost with their connection: first those sent at least in part, then those not sent."""
    assert {(outcome.kind, outcome.code) for outcome in reported} <= {("retryable", code) for code in codes}
    written = [outcome.written for outcome in reported]
    unknown = written.count("unknown")
    assert 0 < unknown < len(reported), "both must occur"
    assert written == ["unknown"] * unknown + ["no"] * (len(reported) - unknown)


def test_outcomes_are_correct_after_a_kill_while_a_batch_waits_for_room(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """SIGKILL with more rows than fit in the window: the kernel holds some of them, the dispatcher others."""
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 20_000)
    with Dispatcher(endpoint_to(server, command_timeout=NEVER)) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        first = dispatcher.flush()
        assert first.ok
        stop(server)
        record_batch = batch_of(payloads[500:])
        with after_ticks(10, server.kill):
            dispatcher.produce_batch(record_batch)
        report = dispatcher.flush()
        reported = outcomes(report)
        # These were in the window at the kill; the others found no server.
        waited = [outcome for outcome in reported if outcome.code != "CONNECT"]
        check_lost(waited)
        rest = reported[len(waited) :]
        assert {outcome.label for outcome in rest} == {("retryable", "CONNECT", "no")}
        assert len(rest) > 8_192 > len(waited)
        server.restart()
        client = connect(server)
        check_accounting(client, [(KEY, payload) for payload in payloads], outcomes(first, report))
        dispatcher.produce(b"after")
        assert labels(dispatcher.flush()) == [DELIVERED]
        assert stored(client)[-1][1] == b"after"


def test_outcomes_are_correct_after_a_kill_during_flush(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 5_000)

    def leave() -> None:
        raise StuckError

    with Dispatcher(endpoint_to(server, command_timeout=NEVER)) as dispatcher:
        produce_all(dispatcher, payloads[:100])
        first = outcomes(dispatcher.flush())
        stop(server)
        # It gets stuck when the socket and the buffer are full.
        with pytest.raises(StuckError), after_ticks(10, leave):
            produce_all(dispatcher, payloads[100:])
        taken = dispatcher.unreported
        assert 0 < taken < 4_900
        with after_ticks(5, server.kill):
            report = dispatcher.flush()
        reported = outcomes(report)
        assert len(reported) == taken
        check_lost(reported)
        server.restart()
        check_accounting(connect(server), [(KEY, payload) for payload in payloads[: 100 + taken]], first + reported)
        dispatcher.produce(b"after")
        assert labels(dispatcher.flush()) == [DELIVERED]


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_outcomes_are_correct_after_a_kill_at_full_speed(
    start_server: StartServer, program: Program, connect: Connect, transport: Literal["unix", "tcp"]
) -> None:
    """The server dies while it writes: messages without a reply are unknown, and stored at most once."""
    server = start_server(program, transport=transport, config=DURABLE)
    sent: list[bytes] = []
    reported: list[Outcome] = []
    with Dispatcher(endpoint_to(server), window_max_entries=1_000) as dispatcher:
        for turn in range(3):
            for start in range(0, 40_000, 2_000):
                payloads = payloads_of(turn * 100_000 + start, 2_000, 100)
                sent += payloads
                if start == 20_000:
                    server.kill()
                dispatcher.produce_batch(batch_of(payloads))
                reported += outcomes(dispatcher.poll())
            reported += outcomes(dispatcher.flush())
            server.restart()
        codes = Counter(outcome.code for outcome in reported)
        assert codes["CONNECT"] > 3 * 10_000
        assert codes[None] > 3 * 10_000
        check_accounting(connect(server), [(KEY, payload) for payload in sent], reported)
        dispatcher.produce(b"after")
        assert labels(dispatcher.flush()) == [DELIVERED]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_silent_server_times_out(
    start_server: StartServer, program: Program, connect: Connect, transport: Literal["unix", "tcp"]
) -> None:
    """After SIGSTOP: TIMEOUT after command_timeout, and the connection is not used again."""
    server = start_server(program, transport=transport)
    client = connect(server)
    payloads = payloads_of(0, 300)
    with Dispatcher(endpoint_to(server, command_timeout=0.5)) as dispatcher:
        produce_all(dispatcher, payloads[:100])
        dispatcher.flush().raise_for_failures()
        before = client.info("stats")["total_connections_received"]
        with stopped(server):
            with lasting(0.5):
                produce_all(dispatcher, payloads[100:200])
                report = dispatcher.flush()
            assert labels(report) == [("retryable", "TIMEOUT", "unknown")] * 100
            assert "sent no complete reply for 0.5" in report.failed[0].message
        produce_all(dispatcher, payloads[200:])
        assert labels(dispatcher.flush()) == [DELIVERED] * 100
        assert client.info("stats")["total_connections_received"] == before + 1
    # The messages that were sent may have been executed, once; the others are stored.
    kept = [payload for _, payload in stored(client)]
    assert kept[:100] == payloads[:100]
    assert kept[-100:] == payloads[200:]
    assert set(kept[100:-100]) <= set(payloads[100:200])
    assert len(set(kept)) == len(kept)


def test_a_server_that_is_silent_at_connect_times_out(any_server: LocalServer) -> None:
    """The kernel accepts the connection; the handshake gets no reply, so nothing can be written."""
    endpoint = endpoint_to(any_server, connect_timeout=0.4, command_timeout=NEVER)
    with Dispatcher(endpoint) as dispatcher, stopped(any_server):
        produce_all(dispatcher, payloads_of(0, 100, 10))
        with lasting(0.4):
            report = dispatcher.flush()
        assert labels(report) == [("retryable", "TIMEOUT", "no")] * 100
        resume(any_server)
        dispatcher.produce(b"after")
        assert labels(dispatcher.flush()) == [DELIVERED]


def test_a_slow_server_does_not_time_out(any_server: LocalServer) -> None:
    """command_timeout limits each silence, not the whole wait."""
    running = True

    def stutter() -> None:
        nonlocal running
        (stop if running else resume)(any_server)
        running = not running

    with Dispatcher(endpoint_to(any_server, command_timeout=2.0), window_max_entries=64) as dispatcher:
        dispatcher.produce(b"x")
        dispatcher.flush().raise_for_failures()
        started = time.monotonic()
        rows = 0
        with ticking(stutter, every=0.1):
            while time.monotonic() - started < 4.5:
                dispatcher.produce_batch(batch_of(payloads_of(rows, 100)))
                rows += 100
        resume(any_server)
        report = dispatcher.flush()
        assert report.ok, report
        assert report.delivered == rows


@pytest.mark.parametrize("connected", [True, False])
def test_flush_ends_at_its_timeout(any_server: LocalServer, connect: Connect, connected: bool) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server, command_timeout=NEVER, connect_timeout=NEVER)) as dispatcher:
        if connected:
            dispatcher.produce(b"first")
            dispatcher.flush().raise_for_failures()
        with stopped(any_server):
            produce_all(dispatcher, payloads_of(0, 50))
            with lasting(0.3):
                report = dispatcher.flush(timeout=0.3)
            assert labels(report) == [("retryable", "TIMEOUT", "unknown" if connected else "no")] * 50
            assert dispatcher.unreported == 0
        again = payloads_of(100, 50)
        produce_all(dispatcher, again)
        assert labels(dispatcher.flush(timeout=PATIENCE)) == [DELIVERED] * 50
    kept = [payload for _, payload in stored(client)]
    assert kept[-50:] == again
    assert len(set(kept)) == len(kept)


def test_flush_with_a_timeout_of_zero_does_not_wait(any_server: LocalServer) -> None:
    """It processes the replies that have arrived."""
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        assert dispatcher.flush(timeout=0).ok
        dispatcher.produce(b"first")
        dispatcher.flush().raise_for_failures()
        with stopped(any_server):
            dispatcher.produce(b"second")
            (label,) = labels(dispatcher.flush(timeout=0))
            assert label in [("retryable", "TIMEOUT", "unknown"), ("retryable", "TIMEOUT", "no")]


def test_client_kill_in_mid_pipeline(server: LocalServer, connect: Connect) -> None:
    """The server holds paused writes, and their replies never arrive."""
    client = connect(server)
    payloads = payloads_of(0, 102)
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce(payloads[0])
        reported = outcomes(dispatcher.flush())
        mine = next(line["id"] for line in client.client_list() if line["name"] == "headrace")
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        produce_all(dispatcher, payloads[1:101])
        assert len(dispatcher.poll()) == 0  # sent, not answered
        client.execute_command("CLIENT", "KILL", "ID", mine)
        reported += outcomes(dispatcher.flush())
        client.execute_command("CLIENT", "UNPAUSE")
        dispatcher.produce(payloads[101])
        reported += outcomes(dispatcher.flush())
    assert reported[0].label == reported[-1].label == DELIVERED
    assert {outcome.label for outcome in reported[1:-1]} <= {("retryable", code, "unknown") for code in LOST}
    check_accounting(client, [(KEY, payload) for payload in payloads], reported)


@pytest.mark.parametrize(
    ("transport", "how"),
    [("unix", "killed"), ("tcp", "killed"), ("unix", "restarted"), ("tcp", "restarted")],
)
def test_a_connection_closed_while_idle_is_replaced(
    start_server: StartServer, program: Program, connect: Connect, transport: Literal["unix", "tcp"], how: str
) -> None:
    """The end is noticed before the first byte is sent: messages use a new connection, and none is unknown."""
    server = start_server(program, transport=transport)
    client = connect(server)

    def is_connected() -> bool:
        return any(line["name"] == "headrace" for line in client.client_list())

    with Dispatcher(endpoint_to(server)) as dispatcher:
        for _ in range(3):
            dispatcher.produce(b"x")
            assert labels(dispatcher.flush()) == [DELIVERED]
            assert is_connected()
            if how == "killed":
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            else:
                server.restart()
            wait_until(lambda: not is_connected())
        produce_all(dispatcher, payloads_of(0, 100))
        assert labels(dispatcher.flush()) == [DELIVERED] * 100
        assert dispatcher.dispatch(b"and again")


def test_a_server_killed_while_idle_fails_the_next_messages(any_server: LocalServer) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [DELIVERED]
        any_server.kill()
        produce_all(dispatcher, payloads_of(0, 100))
        assert labels(dispatcher.flush()) == [("retryable", "CONNECT", "no")] * 100
        any_server.restart()
        dispatcher.produce(b"after")
        assert labels(dispatcher.flush()) == [DELIVERED]


def test_calls_continue_after_other_signal_handlers_run(any_server: LocalServer, connect: Connect) -> None:
    """A program's signal handlers run while a call waits, and the call continues."""
    ran = 0
    ctrl_c = signal.getsignal(signal.SIGINT)

    def tick() -> None:
        nonlocal ran
        ran += 1

    sent: list[bytes] = []
    with Dispatcher(endpoint_to(any_server), window_max_entries=10) as dispatcher, ticking(tick, every=0.001):
        while ran < 10:
            payloads = payloads_of(len(sent), 2_000, 100)
            dispatcher.produce_batch(batch_of(payloads))
            sent += payloads
        report = dispatcher.flush()
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    check_accounting(connect(any_server), [(KEY, payload) for payload in sent], outcomes(report))
