"""Messages that are retried while a server is down or refuses them, and the limits of retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import ConfigError, ConnectionFailedError, DeliveryError, Dispatcher, RetryPolicy
from headrace.testing import LocalServer
from support import Program
from support.delivery import FAILOVER, free, full
from support.fixture_types import StartServer
from support.modes import SOON
from support.patience import NEVER
from support.pipelines import (
    DELIVERED,
    KEY,
    batch_of,
    check_accounting,
    endpoint_to,
    labels,
    outcomes,
    payloads_of,
    stored,
)
from support.processes import StuckError, after_ticks, kill_and_restart, resume, stop
from support.servers import DURABLE

Connect = Callable[..., Any]


def test_the_call_waits_for_a_server_to_start(start_server: StartServer, program: Program, connect: Connect) -> None:
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 20_000, 100)
    server.kill()
    with Dispatcher(endpoint_to(server), retry=SOON) as dispatcher:
        record_batch = batch_of(payloads)
        with after_ticks(10, server.restart):
            dispatcher.produce_batch(record_batch)
        report = dispatcher.flush()
        assert (report.ok, report.delivered, report.possible_duplicates) == (True, 20_000, 0)
        assert report.retries > 0
        check_accounting(connect(server), [(KEY, payload) for payload in payloads], outcomes(report))


@pytest.mark.parametrize("again", [False, True], ids=["unknown-reported", "unknown-again"])
def test_messages_lost_with_a_killed_server_are_sent_again_in_order(
    start_server: StartServer, program: Program, connect: Connect, again: bool
) -> None:
    """Messages that were not written are retried; those of unknown fate only with `retry_unknown`, and counted."""
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 20_000, 500)
    policy = RetryPolicy(initial_backoff=0.01, max_backoff=0.05, retry_unknown=again)
    with Dispatcher(endpoint_to(server, command_timeout=NEVER), retry=policy) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        first = dispatcher.flush()
        stop(server)
        record_batch = batch_of(payloads[500:])
        with after_ticks(10, lambda: kill_and_restart(server)):
            dispatcher.produce_batch(record_batch)
        report = dispatcher.flush()
        entries = [payload for _, payload in stored(connect(server))]
        if not again:
            reported = Counter(labels(first, report))
            assert set(reported) == {DELIVERED, ("retryable", "RESET", "unknown")} or set(reported) == {
                DELIVERED,
                ("retryable", "EOF", "unknown"),
            }
            assert report.possible_duplicates == 0
            check_accounting(connect(server), [(KEY, payload) for payload in payloads], outcomes(first, report))
            return
        assert (report.ok, first.delivered + report.delivered) == (True, 20_000)
        twice = len(entries) - len(payloads)
        assert 0 <= twice <= report.possible_duplicates <= 8_192
        assert report.possible_duplicates > 0
        assert list(dict.fromkeys(entries)) == payloads, "a message is missing or out of order"


@pytest.mark.parametrize("mode", ["again", "script"])
def test_a_silent_server_is_retried_on_a_new_connection(any_server: LocalServer, connect: Connect, mode: str) -> None:
    """A silence of command_timeout counts as a lost connection."""
    options: dict[str, Any] = {"retry": RetryPolicy(initial_backoff=0.01, max_backoff=0.05, retry_unknown=True)}
    if mode == "script":
        options = {"retry": SOON, "exactly_once": "script"}
    payloads = payloads_of(0, 300)
    endpoint = endpoint_to(any_server, command_timeout=0.2, connect_timeout=0.2)
    with Dispatcher(endpoint, **options) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:100]))
        first = dispatcher.flush()
        stop(any_server)
        record_batch = batch_of(payloads[100:])
        with after_ticks(25, lambda: resume(any_server)):
            dispatcher.produce_batch(record_batch)
            report = dispatcher.flush()
        assert (first.ok, report.ok, first.delivered + report.delivered) == (True, True, 300), report
        assert report.retries > 0
    entries = [payload for _, payload in stored(connect(any_server))]
    assert list(dict.fromkeys(entries)) == payloads
    assert len(entries) - 300 <= report.possible_duplicates


def test_messages_refused_for_memory_are_delivered_later(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    payloads = payloads_of(0, 3_000, 20)
    with Dispatcher(endpoint_to(server), retry=SOON, **FAILOVER) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:1_000]))
        first = dispatcher.flush()
        full(client)
        record_batch = batch_of(payloads[1_000:])
        with after_ticks(10, lambda: free(client)):
            dispatcher.produce_batch(record_batch)
            report = dispatcher.flush()
        assert (report.ok, report.possible_duplicates) == (True, 0)
        assert report.retries >= 2_000
        # Memory may come back within a window: later messages overtake those refused before.
        sent = [(KEY, payload) for payload in payloads]
        check_accounting(client, sent, outcomes(first, report), overtaking=True)


def test_permanent_failures_are_reported_beside_retried_rows(server: LocalServer, connect: Connect) -> None:
    """Outcomes belong to their messages, whatever the order of the replies."""
    client = connect(server)
    client.set("no-stream", "x")
    rows = 900
    batch = pa.record_batch(
        {
            "payload": pa.array([None if n % 3 == 1 else b"%d" % n for n in range(rows)], pa.binary()),
            "key": pa.array(["no-stream" if n % 3 == 2 else None for n in range(rows)]),
        }
    )
    with Dispatcher(endpoint_to(server), retry=SOON, **FAILOVER) as dispatcher:
        dispatcher.dispatch(b"first")
        full(client)
        with after_ticks(10, lambda: free(client)):
            dispatcher.produce_batch(batch, stream_key="key")
            report = dispatcher.flush()
        assert labels(report) == [
            DELIVERED,
            ("permanent", "NULL_PAYLOAD", "no"),
            ("permanent", "WRONGTYPE", "no"),
        ] * (rows // 3)
        taken = Counter(payload for _, payload in stored(client))  # later messages may overtake refused ones
        assert taken == Counter([b"first", *(b"%d" % n for n in range(0, rows, 3))])


def test_failures_that_waiting_cannot_fix_are_reported_at_once(server: LocalServer, connect: Connect) -> None:
    """NO_STREAM and an ID that is too small are retryable, but waiting does not help."""
    batch = pa.record_batch({"payload": ["a", "b"], "id": ["5-5", "5-4"]})
    with Dispatcher(endpoint_to(server), retry=RetryPolicy(deadline=600)) as dispatcher:
        dispatcher.produce_batch(batch, entry_id="id")
        report = dispatcher.flush()
        assert labels(report) == [DELIVERED, ("retryable", "ERR", "no")]
        assert report.retries == 0
    with Dispatcher(endpoint_to(server, stream_key="none", nomkstream=True), retry=SOON) as dispatcher:
        dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [("retryable", "NO_STREAM", "no")]
    overrides: dict[str, Any] = {"error_overrides": {"NO_STREAM": "retryable"}}
    with Dispatcher(endpoint_to(server, stream_key="none", nomkstream=True), retry=SOON, **overrides) as dispatcher:
        dispatcher.produce(b"x")
        with after_ticks(5, lambda: connect(server).xadd("none", {"payload": b"made"})):
            assert dispatcher.flush().ok


def test_a_code_that_an_override_calls_permanent_is_not_retried(any_server: LocalServer, connect: Connect) -> None:
    policy = RetryPolicy(max_attempts=3, initial_backoff=0, max_backoff=0)
    overrides: dict[str, Any] = {"error_overrides": {"OOM": "permanent"}}
    with Dispatcher(endpoint_to(any_server), retry=policy, **FAILOVER, **overrides) as dispatcher:
        full(connect(any_server))
        dispatcher.produce(b"refused")
        report = dispatcher.flush()
        assert labels(report) == [("permanent", "OOM", "no")]
        assert report.retries == 0


def test_after_the_deadline_the_rest_of_the_batch_fails_at_once(start_server: StartServer) -> None:
    server = start_server()
    server.kill()
    policy = RetryPolicy(initial_backoff=0.01, max_backoff=0.01, deadline=0.2)
    with Dispatcher(endpoint_to(server), retry=policy) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads_of(0, 50_000, 10)))
        report = dispatcher.flush()
        assert Counter(labels(report)) == {("retryable", "CONNECT", "no"): 50_000}
        assert "given up after" in report.failed[0].message
        assert report.retries <= 8_192 * 21, "more than the first window was sent again"
        server.restart()
        dispatcher.produce(b"next batch")
        assert dispatcher.flush().ok


def test_max_attempts_ends_the_retries(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    policy = RetryPolicy(max_attempts=3, initial_backoff=0, max_backoff=0)
    with Dispatcher(endpoint_to(server), retry=policy, **FAILOVER) as dispatcher:
        full(client)
        dispatcher.produce(b"refused")
        report = dispatcher.flush()
        assert labels(report) == [("retryable", "OOM", "no")]
        assert report.failed[0].message.count("given up after 3 tries") == 1
        assert report.retries == 2
        with pytest.raises(DeliveryError, match="given up after 3 tries"):
            dispatcher.dispatch(b"refused too")
        free(client)
        dispatcher.produce(b"taken")
        assert dispatcher.flush().ok


def test_dispatch_retries(start_server: StartServer) -> None:
    server = start_server()
    server.kill()
    with Dispatcher(endpoint_to(server), retry=SOON) as dispatcher:
        with after_ticks(5, server.restart):
            assert dispatcher.dispatch(b"x")
        server.kill()
    given_up = Dispatcher(endpoint_to(server), retry=RetryPolicy(deadline=0))
    with given_up as dispatcher, pytest.raises(ConnectionFailedError):
        dispatcher.dispatch(b"x")


def test_a_flush_that_times_out_ends_the_retries(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with Dispatcher(endpoint_to(server), retry=RetryPolicy(deadline=600), **FAILOVER) as dispatcher:
        full(client)
        dispatcher.produce_batch(batch_of(payloads_of(0, 100)))
        assert labels(dispatcher.flush(0.2)) == [("retryable", "OOM", "no")] * 100
        free(client)
        assert client.xlen(KEY) == 0
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


def test_a_flush_continues_after_an_interrupted_wait(server: LocalServer, connect: Connect) -> None:
    client = connect(server)

    def interrupt() -> None:
        raise StuckError

    with Dispatcher(endpoint_to(server), retry=RetryPolicy(deadline=600), **FAILOVER) as dispatcher:
        full(client)
        dispatcher.produce_batch(batch_of(payloads_of(0, 100)))
        with pytest.raises(StuckError), after_ticks(5, interrupt):
            dispatcher.flush()
        assert dispatcher.poll().delivered == 0
        assert dispatcher.unreported == 100
        free(client)
        assert dispatcher.flush().delivered == 100
        assert client.xlen(KEY) == 100


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_attempts", 0, "retry_max_attempts must be an integer from 1 to 4294967295, got 0"),
        ("initial_backoff", -1, "retry_initial_backoff must be a number of seconds from 0 to 3600, got -1"),
        ("initial_backoff", 2, r"retry_initial_backoff must be at most retry_max_backoff \(0.5\), got 2"),
        ("multiplier", 0.5, "retry_multiplier must be a number from 1 to 100, got 0.5"),
        ("jitter", float("nan"), "retry_jitter must be a number from 0 to 1, got NaN"),
        ("deadline", "soon", "retry_deadline must be a number of seconds from 0 to 86400, got 'soon'"),
        ("retry_unknown", 1, r"retry_unknown must be a boolean \(true or false\), got 1"),
    ],
)
def test_invalid_policies_are_refused(any_server: LocalServer, option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dispatcher(endpoint_to(any_server), retry=RetryPolicy(**{option: value}))


def test_a_boolean_retry_policy_is_refused(any_server: LocalServer) -> None:
    with pytest.raises(ConfigError, match="retry must be a RetryPolicy or None, got True"):
        Dispatcher(endpoint_to(any_server), retry=True)  # type: ignore[arg-type]
