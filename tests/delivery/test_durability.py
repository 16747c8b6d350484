"""Durability: when `wait_replicas` and `wait_aof` count a message as delivered, and its outcome otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import DeliveryError, DeliveryReport, RetryPolicy
from headrace.testing import LocalServer
from support.delivery import MISSING, to_replicas, waits
from support.patience import NEVER, lasting
from support.pipelines import (
    DELIVERED,
    KEY,
    batch_of,
    check_accounting,
    connections,
    labels,
    outcomes,
    payloads_of,
    stored,
)
from support.processes import after_ticks, resume, stop, stopped, ticking, wait_until

Connect = Callable[..., Any]


def kill_dispatchers(client: Any) -> int:
    return sum(client.client_kill_filter(_id=each) for each in connections(client))


def test_a_delivered_message_is_on_the_replica(replicated: tuple[LocalServer, LocalServer], connect: Connect) -> None:
    master, replica = replicated
    payloads = payloads_of(0, 20_000, 50)
    with to_replicas(master) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads))
        report = dispatcher.flush()
        # At once, without waiting for the replica.
        assert stored(connect(replica)) == [
            (outcome.entry_id, payload) for outcome, payload in zip(outcomes(report), payloads, strict=True)
        ]
        assert report.ok


def test_a_stalled_replica_fails_the_messages(replicated: tuple[LocalServer, LocalServer], connect: Connect) -> None:
    """It takes `wait_timeout`, which does not count as silence under `command_timeout`."""
    master, replica = replicated
    with to_replicas(master, {"command_timeout": 1}, wait_timeout=1.5) as dispatcher:
        with stopped(replica):
            for payload in payloads_of(0, 3):
                dispatcher.produce(payload)
            with lasting(1.5):
                report = dispatcher.flush()
        assert labels(report) == [MISSING] * 3
        said = "0 of 1 replicas had the entry within 1.5 s; the server itself has it"
        assert {failure.message for failure in report.failed} == {said}
        assert connect(master).xlen(KEY) == 3
        wait_until(lambda: connect(replica).xlen(KEY) == 3)
        dispatcher.produce(b"later")
        assert dispatcher.flush().ok
        assert connect(replica).xlen(KEY) == 4
        assert dispatcher.stats().connections == 1
        assert dispatcher.stats().failed_by_code == {"NOT_REPLICATED": 3}


def test_missing_replicas_fail_the_messages(any_replicated: tuple[LocalServer, LocalServer]) -> None:
    with to_replicas(any_replicated[0], wait_replicas=2, wait_timeout=2) as dispatcher:
        dispatcher.produce(b"x")
        failures = dispatcher.flush().failed
        assert [(failure.code, failure.message.split(" had")[0]) for failure in failures] == [
            ("NOT_REPLICATED", "1 of 2 replicas")
        ]


@pytest.mark.parametrize("how", ["produce", "produce_batch", "produce_batch of large ones", "exactly once"])
def test_wait_is_sent_after_every_wait_every_entries(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect, how: str
) -> None:
    master, _ = any_replicated
    options: dict[str, Any] = {"exactly_once": "script", "script_run_rows": 5} if how == "exactly once" else {}
    payloads = payloads_of(0, 95, 20_000 if "large" in how else 10)
    with to_replicas(master, wait_every=10, **options) as dispatcher:
        for asked in (10, 20):
            if how == "produce":
                for payload in payloads:
                    dispatcher.produce(payload)
            else:
                dispatcher.produce_batch(batch_of(payloads))
            assert dispatcher.flush().ok
            assert waits(connect(master)) == asked
        assert dispatcher.flush().delivered == 0
        assert waits(connect(master)) == 20, "nothing was left to be asked for"
    assert [payload for _, payload in stored(connect(master))] == payloads * 2


@pytest.mark.parametrize(
    "layout", [{"rows_per_entry": 10}, {"arrow_ipc": True, "rows_per_entry": 10}], ids=["rows", "ipc"]
)
def test_wait_covers_entries_of_several_rows(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect, layout: dict[str, Any]
) -> None:
    master, replica = any_replicated
    with to_replicas(master, wait_every=4, wait_timeout=2) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads_of(0, 100)), **layout)
        assert labels(dispatcher.flush()) == [DELIVERED] * 100
        assert waits(connect(master)) == 3
        with stopped(replica):
            dispatcher.produce_batch(batch_of(payloads_of(0, 35)), **layout)
            assert labels(dispatcher.flush()) == [MISSING] * 35


@pytest.mark.parametrize("alive", [True, False])
def test_outcomes_stay_in_order_around_refused_messages(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect, alive: bool
) -> None:
    master, replica = any_replicated
    connect(master).set("bad", "no stream")
    kinds = ["good", "bad", "null", "good", "good", "null", "bad", "good"] * 20
    batch = pa.record_batch(
        {
            "payload": pa.array([None if kind == "null" else b"x" for kind in kinds], pa.binary()),
            "key": ["bad" if kind == "bad" else "good" for kind in kinds],
        }
    )
    if not alive:
        stop(replica)
    expected = {
        "good": DELIVERED if alive else MISSING,
        "bad": ("permanent", "WRONGTYPE", "no"),
        "null": ("permanent", "NULL_PAYLOAD", "no"),
    }
    with to_replicas(master, wait_every=7, wait_timeout=NEVER if alive else 0.02) as dispatcher:
        dispatcher.produce_batch(batch, stream_key="key")
        reports = [dispatcher.poll(), dispatcher.flush()]
        assert labels(*reports) == [expected[kind] for kind in kinds]
        # Failures are bounded even while a message waits: each of these is a separate run of outcomes.
        dispatcher.produce_batch(batch.slice(0, 1), stream_key="key")
        for _ in range(50):
            dispatcher.produce_batch(batch.slice(1, 2), stream_key="key")
        assert labels(dispatcher.flush()) == [expected["good"], *[expected["bad"], expected["null"]] * 50]


@pytest.mark.parametrize("retry", [None, RetryPolicy(retry_unknown=True, initial_backoff=0.01)], ids=["once", "retry"])
def test_messages_fail_when_the_connection_ends_before_the_wait_reply(
    replicated: tuple[LocalServer, LocalServer], connect: Connect, retry: RetryPolicy | None
) -> None:
    """The entries have their IDs and WAIT is in flight: WAIT on another connection would not cover them."""
    master, replica = replicated
    client = connect(master)
    with to_replicas(master, wait_timeout=NEVER, retry=retry) as dispatcher:
        with stopped(replica):
            dispatcher.produce_batch(batch_of(payloads_of(0, 5)))
            with after_ticks(5, lambda: kill_dispatchers(client)):
                report = dispatcher.flush()
        assert labels(report) == [MISSING] * 5
        assert report.retries == 0, "that would write them twice"
        assert report.failed[0].message.startswith("the connection ended before the reply to WAIT: ")
        assert client.xlen(KEY) == 5
        dispatcher.produce(b"on")
        assert dispatcher.flush().ok
        dispatcher.produce(b"and on")
        wait_until(lambda: dispatcher.poll().delivered)


def test_retried_messages_wait_for_replicas_again(
    replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """Memory runs out in mid-batch, and comes back while the replica is stalled."""
    master, replica = replicated
    client = connect(master)
    payloads = payloads_of(0, 2_000, 100)
    policy = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)
    with to_replicas(master, classify="failover", retry=policy, wait_every=100, wait_timeout=1) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        assert dispatcher.flush().ok
        for rows, label in ((payloads[500:1_000], DELIVERED), (payloads[1_000:], MISSING)):

            def act(label: object = label) -> None:
                if label == MISSING:
                    stop(replica)
                client.config_set("maxmemory", 0)

            client.config_set("maxmemory", 1)
            record_batch = batch_of(rows)
            with after_ticks(5, act):
                dispatcher.produce_batch(record_batch)
                report = dispatcher.flush()
            assert report.retries >= len(rows)
            assert labels(report) == [label] * len(rows)
            # Later messages may overtake a refused one.
            assert sorted(payload for _, payload in stored(client)[-len(rows) :]) == sorted(rows)
        resume(replica)


def test_repeated_disconnects_lose_no_replicated_message(
    replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """Delivered messages are on the replica, in order; messages without a WAIT reply fail."""
    master, replica = replicated
    client = connect(master)
    payloads = payloads_of(0, 30_000, 100)
    policy = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)
    reports = []
    with to_replicas(master, retry=policy, wait_every=100) as dispatcher:
        with ticking(lambda: kill_dispatchers(client)):
            for start in range(0, 30_000, 1_000):
                dispatcher.produce_batch(batch_of(payloads[start : start + 1_000]))
                reports.append(dispatcher.poll())
            reports.append(dispatcher.flush())
        reported = outcomes(*reports)
    lost = {("retryable", code, "unknown") for code in ("RESET", "EOF")}
    assert {outcome.label for outcome in reported} <= {DELIVERED, MISSING, *lost}
    sent = [(KEY, payload) for payload in payloads]
    check_accounting(client, sent, reported)
    check_accounting(connect(replica), sent, reported)


@pytest.mark.parametrize("alive", [True, False])
def test_dispatch_waits_for_replicas(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect, alive: bool
) -> None:
    master, replica = any_replicated
    with to_replicas(master, wait_timeout=NEVER if alive else 0.05) as dispatcher:
        dispatcher.produce(b"before")
        if alive:
            entry_id = dispatcher.dispatch(b"x")
            assert [entry for entry, _ in stored(connect(replica))][1] == entry_id
        else:
            with stopped(replica), pytest.raises(DeliveryError, match=r"NOT_REPLICATED .*0 of 1 replicas") as raised:
                dispatcher.dispatch(b"x")
            assert raised.value.failures[0].written == "unknown"
        assert labels(dispatcher.flush()) == [DELIVERED if alive else MISSING]


def test_poll_alone_returns_all_outcomes(any_replicated: tuple[LocalServer, LocalServer], connect: Connect) -> None:
    """It waits for nothing: while WAIT is outstanding it returns at once, again and again."""
    master, replica = any_replicated
    with to_replicas(master, wait_timeout=1) as dispatcher:
        dispatcher.dispatch(b"poll opens no connection")
        for turn, expected in enumerate((DELIVERED, MISSING), 2):
            if expected == MISSING:
                stop(replica)
            for payload in payloads_of(0, 10):
                dispatcher.produce(payload)
            reports: list[DeliveryReport] = []
            while sum(map(len, reports)) < 10:
                reports.append(dispatcher.poll())
            assert labels(*reports) == [expected] * 10
            assert expected == DELIVERED or len(reports) > 20
            assert waits(connect(master)) <= turn + 1, "one after the other"
        resume(replica)


def test_poll_returns_no_retried_outcome_before_its_wait(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """Outcomes after a message that is given up wait for it, and then for the WAIT reply."""
    master, replica = any_replicated
    connect(master).set("bad", "no stream")
    batch = pa.record_batch({"payload": ["1", "2", "3"], "key": ["good", "bad", "good"]})
    policy = RetryPolicy(max_attempts=1)
    with to_replicas(master, retry=policy, error_overrides={"WRONGTYPE": "retryable"}, wait_timeout=0.1) as dispatcher:
        dispatcher.dispatch(b"poll opens no connection")
        reports: list[DeliveryReport] = []
        with stopped(replica):
            dispatcher.produce_batch(batch, stream_key="key")

            def poll() -> bool:
                reports.append(dispatcher.poll())
                return not dispatcher.unreported

            wait_until(poll)
        assert labels(*reports) == [MISSING, ("retryable", "WRONGTYPE", "no"), MISSING]


def test_failures_between_entries_do_not_delay_wait(any_replicated: tuple[LocalServer, LocalServer]) -> None:
    """They make more runs of outcomes than the entries that trigger WAIT: it is sent earlier."""
    with to_replicas(any_replicated[0], wait_every=100, window_max_entries=64) as dispatcher:
        column = pa.array([None if n % 2 else b"x" for n in range(2_000)], pa.binary())
        dispatcher.produce_batch(pa.record_batch({"payload": column}))
        report = dispatcher.flush()
        assert labels(report) == [DELIVERED, ("permanent", "NULL_PAYLOAD", "no")] * 1_000


def test_flush_ends_after_its_timeout(any_replicated: tuple[LocalServer, LocalServer], connect: Connect) -> None:
    master, replica = any_replicated
    with to_replicas(master, wait_timeout=NEVER) as dispatcher:
        dispatcher.dispatch(b"connect")
        with stopped(replica):
            dispatcher.produce(b"x")
            with lasting(0.2):
                report = dispatcher.flush(0.2)
        assert labels(report) == [MISSING]
        assert "flush timed out" in report.failed[0].message
        assert connect(master).xlen(KEY) == 2
        # Ctrl-C loses nothing.
        with stopped(replica):
            dispatcher.produce(b"y")

            def interrupt() -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt), after_ticks(3, interrupt):
                dispatcher.flush()
        assert labels(dispatcher.flush()) == [DELIVERED]


def test_a_batch_begun_again_waits_for_the_replica(
    replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """Each attempt uses a new connection, where WAIT covers only what was written on it."""
    master, replica = replicated
    payloads = payloads_of(0, 1_000, 20)

    def attempt(rows: list[bytes], version: int = 1, timeout: float = 10) -> tuple[set[Any], int]:
        with to_replicas(master, exactly_once="script", wait_timeout=timeout) as dispatcher:
            dispatcher.begin("batch", version)
            dispatcher.produce_batch(batch_of(rows))
            report = dispatcher.flush()
            assert len(labels(report)) == len(rows)
            return set(labels(report)), report.deduplicated

    with stopped(replica):
        assert attempt(payloads[:600], timeout=0.1) == ({MISSING}, 0)
        assert attempt(payloads[:600], timeout=0.1) == ({MISSING}, 0), "it recognises them, and proves nothing"
        assert attempt(payloads[:600], version=0, timeout=0.1) == ({MISSING}, 0)
    assert attempt(payloads) == ({DELIVERED}, 600)
    assert attempt(payloads) == ({DELIVERED}, 1_000)
    assert [payload for _, payload in stored(connect(replica))] == payloads
    assert attempt(payloads[:5], version=2) == ({DELIVERED}, 0)
    connect(master).config_set("maxmemory", 1)
    assert attempt(payloads[:5], version=2) == ({MISSING}, 0), "nothing can be written that WAIT would cover"
    assert attempt(payloads[:10], version=2) == ({("permanent", "OOM", "unknown")}, 0), "nor beside others"
