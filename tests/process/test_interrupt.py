"""Ctrl-C: noticed wherever a call waits or works, and nothing is lost by it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.fake_server import FakeServer, Peer, answer_all, entry_id
from support.interrupts import interrupted
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, batch_of, check_accounting, endpoint_to, labels, outcomes, stored
from support.processes import after_ticks, resume, stop, stopped

Connect = Callable[..., Any]


def payloads_of(count: int, size: int = 1_000) -> list[bytes]:
    return [b"%d-" % number + b"x" * size for number in range(count)]


@pytest.fixture
def waiting(any_server: LocalServer) -> Iterator[Dispatcher]:
    """A dispatcher connected to a suspended server."""
    with Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
        assert dispatcher.dispatch(b"first")
        with stopped(any_server):
            yield dispatcher


def test_ctrl_c_in_flush(any_server: LocalServer, connect: Connect, waiting: Dispatcher) -> None:
    payloads = payloads_of(100, 10)
    for payload in payloads:
        waiting.produce(payload)
    for _ in range(2):
        with interrupted():
            waiting.flush()
        assert waiting.unreported == 100
    resume(any_server)
    report = waiting.flush()
    assert labels(report) == [DELIVERED] * 100
    assert [payload for _, payload in stored(connect(any_server))] == [b"first", *payloads]


def test_ctrl_c_in_flush_with_a_timeout(any_server: LocalServer, waiting: Dispatcher) -> None:
    waiting.produce(b"x")
    with interrupted():
        waiting.flush(timeout=NEVER)
    resume(any_server)
    assert labels(waiting.flush()) == [DELIVERED]


def test_ctrl_c_right_before_a_report_is_returned() -> None:
    """The signal arrives before the last reply, which is what ends the wait: the report must not be lost."""

    def script(peer: Peer) -> None:
        peer.commands(1)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # in the main thread it would end the wait itself
        peer.send(entry_id(1))
        answer_all(peer)

    with (
        FakeServer(script) as fake,
        Dispatcher(Endpoint(host="127.0.0.1", port=fake.port, stream_key=KEY)) as dispatcher,
    ):
        dispatcher.produce(b"x", "mine")
        with pytest.raises(KeyboardInterrupt):
            dispatcher.flush()
        assert dispatcher.unreported == 1
        (reported,) = outcomes(dispatcher.flush())
    assert (reported.message_id, reported.entry_id) == ("mine", "7-1")


def test_ctrl_c_in_produce_batch(any_server: LocalServer, connect: Connect, waiting: Dispatcher) -> None:
    """Rows that were not accepted fail; the others continue."""
    payloads = payloads_of(10_000)
    rows = batch_of(payloads)  # outside the block: it takes a while and could be interrupted
    client = connect(any_server)
    with interrupted():
        waiting.produce_batch(rows)
    assert waiting.unreported == 10_000
    resume(any_server)
    reported = outcomes(waiting.flush())
    taken = sum(outcome.entry_id is not None for outcome in reported)
    assert 0 < taken < 9_000
    assert [outcome.label for outcome in reported[taken:]] == [("retryable", "INTERRUPTED", "no")] * (10_000 - taken)
    client.xtrim(KEY, maxlen=taken, approximate=False)  # without `first`
    check_accounting(client, [(KEY, payload) for payload in payloads], reported)


def test_ctrl_c_in_the_second_record_batch_of_a_table(any_server: LocalServer, waiting: Dispatcher) -> None:
    """Later record batches were not read and are in no report."""
    small, large = batch_of(payloads_of(10)), batch_of(payloads_of(5_000))
    with interrupted():
        waiting.produce_batch(pa.Table.from_batches([small, large, small]))
    resume(any_server)
    reported = labels(waiting.flush())
    assert len(reported) == 5_010
    assert reported[-1] == ("retryable", "INTERRUPTED", "no")


def test_ctrl_c_while_all_rows_fail(any_server: LocalServer) -> None:
    """They need no room in the window, so the call never waits."""
    count = 10_000_000  # takes some seconds
    rows = pa.record_batch({"payload": pa.nulls(count, pa.utf8())})
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with interrupted():
            dispatcher.produce_batch(rows)
        assert dispatcher.unreported == count
        report = dispatcher.flush()
        codes = report.failed_by_code
        assert set(codes) == {"NULL_PAYLOAD", "INTERRUPTED"}
        assert sum(codes.values()) == len(report) == count
        assert not report.ok


def test_ctrl_c_in_record_batches_without_a_server(closed_port: int) -> None:
    """Each fails at once, but there are many."""
    rows = pa.Table.from_batches([batch_of([b"x"])] * 2_000_000)  # takes some seconds
    with Dispatcher(Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)) as dispatcher:
        dispatcher.produce(b"x" * 100_000)  # more than a chunk, so it connects
        with interrupted():
            dispatcher.produce_batch(rows)
        report = dispatcher.flush()
        assert 0 < len(report) < rows.num_rows
        codes = report.failed_by_code
        assert codes.pop("INTERRUPTED") == 1
        assert set(codes) == {"CONNECT"}
        assert not report.ok


def test_ctrl_c_in_produce(any_server: LocalServer, waiting: Dispatcher) -> None:
    """The message was not accepted."""
    with interrupted():
        for _ in range(10_000):
            waiting.produce(b"x" * 1_000)
    taken = waiting.unreported
    assert 0 < taken < 8_192
    resume(any_server)
    waiting.produce(b"x", "the next")
    report = waiting.flush()
    assert labels(report) == [DELIVERED] * (taken + 1)
    assert outcomes(report)[-1].message_id == "the next"


def test_ctrl_c_in_dispatch(any_server: LocalServer, connect: Connect, waiting: Dispatcher) -> None:
    """Its outcome is dropped; the outcomes of other messages are kept."""
    waiting.produce(b"before", "before")
    with interrupted():
        waiting.dispatch(b"interrupted")
    waiting.produce(b"after", "after")
    resume(any_server)
    reported = outcomes(waiting.flush())
    assert [outcome.message_id for outcome in reported] == ["before", "after"]
    kept = stored(connect(any_server))
    assert [payload for _, payload in kept] == [b"first", b"before", b"interrupted", b"after"]
    assert [outcome.entry_id for outcome in reported] == [kept[1][0], kept[3][0]]


@pytest.mark.parametrize("call", ["flush", "produce_batch", "dispatch"])
def test_ctrl_c_in_connect(any_server: LocalServer, connect: Connect, call: str) -> None:
    client = connect(any_server)
    endpoint = endpoint_to(any_server, connect_timeout=NEVER)
    rows = batch_of(payloads_of(200))
    stop(any_server)
    with Dispatcher(endpoint) as dispatcher:
        for payload in (b"a", b"b"):
            dispatcher.produce(payload)
        with interrupted():
            if call == "flush":
                dispatcher.flush()
            elif call == "dispatch":
                dispatcher.dispatch(b"c")
            else:
                dispatcher.produce_batch(rows)
        resume(any_server)
        reported = labels(dispatcher.flush())
    taken = [label for label in reported if label == DELIVERED]
    assert reported == taken + [("retryable", "INTERRUPTED", "no")] * (len(reported) - len(taken))
    assert len(reported) == (202 if call == "produce_batch" else 2)
    assert len(taken) >= 2
    kept = [payload for _, payload in stored(client)]
    assert kept[:2] == [b"a", b"b"]
    assert len(kept) - (call == "dispatch" and b"c" in kept) == len(taken)


@pytest.mark.parametrize("how", ["close", "with"])
def test_ctrl_c_in_close(waiting: Dispatcher, how: str) -> None:
    """The dispatcher is closed, and warns of the messages without an outcome."""
    for _ in range(2_000):
        waiting.produce(b"x")
    leave = waiting.close if how == "close" else lambda: waiting.__exit__(None, None, None)
    with interrupted() as caught:
        leave()
    assert caught.value.__notes__ == ["headrace: closed with 2,000 messages without an outcome in a report"]
    assert waiting.closed


def test_ctrl_c_in_the_flush_after_an_exception(waiting: Dispatcher) -> None:
    """The exception of the block is still raised."""

    def work() -> None:
        with waiting:
            waiting.produce(b"x")
            raise LookupError("of the block")

    with (
        pytest.raises(LookupError, match="of the block") as caught,
        after_ticks(3, lambda: os.kill(os.getpid(), signal.SIGINT)),
    ):
        work()
    assert caught.value.__notes__ == [
        "headrace: 1 message without an outcome in a report",
        "headrace: cannot flush after this exception: KeyboardInterrupt()",
    ]
    assert waiting.closed


def test_an_exception_from_a_signal_handler_is_raised(any_server: LocalServer, waiting: Dispatcher) -> None:
    """The call raises the exception of the handler."""

    def handler(*_: object) -> None:
        raise LookupError("from the handler")

    previous = signal.signal(signal.SIGINT, handler)
    try:
        waiting.produce(b"x")
        with (
            pytest.raises(LookupError, match="from the handler"),
            after_ticks(2, lambda: os.kill(os.getpid(), signal.SIGINT)),
        ):
            waiting.flush()
    finally:
        signal.signal(signal.SIGINT, previous)
    resume(any_server)
    assert labels(waiting.flush()) == [DELIVERED]
