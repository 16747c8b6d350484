"""Waits for a retry are visible: a log line at the beginning, one at the end, and counters."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import Dispatcher, RetryPolicy
from headrace.metrics import Stats
from headrace.testing import LocalServer
from support.delivery import FAILOVER, free, full
from support.endpoints import CANARY
from support.fixture_types import StartServer
from support.interrupts import interrupted
from support.modes import MODES, SOON
from support.pipelines import KEY, batch_of, endpoint_to, labels, payloads_of
from support.processes import after_ticks, wait_until
from support.servers import DURABLE

Connect = Callable[..., Any]

OOM = r"OOM: OOM command not allowed when used memory > 'maxmemory'\."
AWAY = r"(CONNECT|RESET|EOF): .*"


@dataclass
class Log:
    """The records logged under `headrace`."""

    caplog: pytest.LogCaptureFixture
    server: LocalServer

    def check(self, *patterns: str) -> None:
        """Compare the lines with these patterns, and clear them. `<to>` is the endpoint, `<s>` a time."""
        records = [record for record in self.caplog.records if record.name == "headrace"]
        self.caplog.clear()
        assert {record.levelno for record in records} <= {logging.WARNING}
        lines = [record.getMessage() for record in records]
        assert len(lines) == len(patterns), lines
        to = re.escape(f"unix://{self.server.unix_socket} stream key {KEY}")
        for line, pattern in zip(lines, patterns, strict=True):
            wanted = pattern.replace("<to>", to).replace("<s>", r"\d+\.\d s")
            assert re.fullmatch(wanted, line), line
            assert CANARY not in line


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, any_server: LocalServer) -> Log:
    caplog.set_level(logging.DEBUG, "headrace")
    return Log(caplog, any_server)


def began(what: str, why: str, seconds: str = r"[\d.]+") -> str:
    return rf"retrying {what} to <to> for up to {seconds} s: {why}"


ENDED = r"retries to <to> ended after (\d+) tries in <s>: each message was answered"


def given_up(why: str, tries: str = r"\d+") -> str:
    return rf"retries to <to> were given up after {tries} tries in <s>: {why}"


def waits(stats: Stats) -> tuple[int, bool]:
    return stats.retry_waits, stats.retry_wait_seconds > 0


def test_a_wait_for_memory_is_logged_and_counted(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server), retry=RetryPolicy(deadline=500, max_backoff=0.05), **FAILOVER) as sending:
        sending.produce(CANARY)
        assert sending.flush().ok
        log.check()
        assert waits(sending.stats()) == (0, False)
        full(client)
        rows = batch_of([CANARY.encode()] * 1_000)
        with after_ticks(10, lambda: free(client)):
            sending.produce_batch(rows)
            assert sending.flush().ok
        log.check(began("1000 messages", OOM, r"(500\.0|499\.\d)"), ENDED)
        assert waits(sending.stats()) == (1, True)
        full(client)
        with after_ticks(3, lambda: free(client)):
            sending.dispatch(CANARY)
        log.check(began("1 message", OOM), ENDED)
        assert waits(sending.stats()) == (2, True)
        # Only the two waits count: 13 ticks of 20 ms, and what a busy machine adds.
        assert 0.1 < sending.stats().retry_wait_seconds < 60


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_a_server_restart_is_logged_and_counted(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Also with the default retries of `exactly_once`."""
    server = start_server(needs="redis-8.6", config=DURABLE)
    log = Log(caplog, server)
    options: dict[str, Any] = {"retry": SOON} if mode == "off" else {"exactly_once": mode}
    with Dispatcher(endpoint_to(server), **options) as sending:
        sending.produce(b"first")
        assert sending.flush().ok
        server.kill()
        rows = batch_of(payloads_of(0, 250))
        with after_ticks(10, server.restart):
            sending.produce_batch(rows)
            assert sending.flush().ok
        log.check(began(r"\d+ messages", AWAY), ENDED)
        assert waits(sending.stats()) == (1, True)


def test_a_wait_for_a_paused_server_is_logged(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    endpoint = endpoint_to(any_server, command_timeout=0.2, connect_timeout=0.2)
    with Dispatcher(endpoint, exactly_once="script", retry=SOON) as sending:
        sending.produce(b"first")
        assert sending.flush().ok
        client.client_pause(60_000, all=False)
        sending.produce(b"second")
        with after_ticks(30, client.client_unpause):
            assert sending.flush().ok
        why = rf"TIMEOUT: unix://{any_server.unix_socket} stream key {KEY} sent no complete reply for [\d.]+ s"
        log.check(began("1 message", why), ENDED)


def test_abandoned_retries_log_the_reason(any_server: LocalServer, connect: Connect, log: Log) -> None:
    full(connect(any_server))
    policy = RetryPolicy(max_attempts=3, initial_backoff=0, max_backoff=0)
    with Dispatcher(endpoint_to(any_server), retry=policy, **FAILOVER) as sending:
        for _ in range(2):
            sending.produce_batch(batch_of(payloads_of(0, 10)))
            assert labels(sending.flush()) == [("retryable", "OOM", "no")] * 10
            log.check(began("10 messages", OOM), given_up(OOM, "3"))
        assert waits(sending.stats()) == (2, True)
    any_server.kill()
    with Dispatcher(endpoint_to(any_server), retry=RetryPolicy(max_backoff=0.05, deadline=0.1)) as sending:
        sending.produce_batch(batch_of(payloads_of(0, 10)))
        assert labels(sending.flush()) == [("retryable", "CONNECT", "no")] * 10
        why = r"CONNECT: cannot connect to .*: (connection refused|no such file)[^(]*"
        log.check(began("10 messages", why), given_up(why))


def test_failures_without_a_retry_are_not_logged(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    full(client)
    once = RetryPolicy(max_attempts=1)
    for options in ({}, {"retry": once}, {"retry": RetryPolicy(deadline=0)}, {"exactly_once": "script", "retry": once}):
        with Dispatcher(endpoint_to(any_server), **options, **FAILOVER) as sending:
            sending.produce(b"x")
            assert labels(sending.flush()) == [("retryable", "OOM", "no")]
            log.check()
            assert waits(sending.stats()) == (0, False)


def test_a_flush_that_times_out_abandons_retries(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server), retry=RetryPolicy(deadline=600), **FAILOVER) as sending:
        full(client)
        sending.produce_batch(batch_of(payloads_of(0, 100)))
        assert labels(sending.flush(0.2)) == [("retryable", "OOM", "no")] * 100
        log.check(began("100 messages", OOM), given_up(OOM))
        free(client)


def test_a_permanent_refusal_ends_the_wait(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    client.set(KEY, "no stream")
    with Dispatcher(endpoint_to(any_server), retry=SOON, **FAILOVER) as sending:
        full(client)
        sending.produce_batch(batch_of(payloads_of(0, 100)))
        with after_ticks(5, lambda: free(client)):
            assert labels(sending.flush()) == [("permanent", "WRONGTYPE", "no")] * 100
        log.check(began("100 messages", OOM), ENDED)


def test_an_interrupted_wait_continues_as_the_same_wait(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server), retry=RetryPolicy(deadline=600), **FAILOVER) as sending:
        full(client)
        sending.produce_batch(batch_of(payloads_of(0, 100)))
        for _ in range(2):
            with interrupted(lambda: sending.stats().retry_waits):
                sending.flush()
        log.check(began("100 messages", OOM))
        free(client)
        assert sending.flush().delivered == 100
        log.check(ENDED)
        assert waits(sending.stats()) == (1, True)


def test_polls_log_waits(any_server: LocalServer, connect: Connect, log: Log) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server), retry=SOON, **FAILOVER) as sending:
        assert sending.dispatch(b"first")
        full(client)
        sending.produce(b"second")
        wait_until(lambda: not sending.poll().delivered and sending.stats().retry_waits)
        log.check(began("1 message", OOM))
        free(client)
        wait_until(lambda: sending.poll().delivered)
        log.check(ENDED)


def test_the_counters_change_while_a_call_waits(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with Dispatcher(endpoint_to(any_server), retry=RetryPolicy(deadline=600), **FAILOVER) as sending:
        full(client)
        sending.produce(b"x")
        flushing = threading.Thread(target=sending.flush)
        flushing.start()
        wait_until(lambda: sending.stats().retry_waits == 1)
        seconds = sending.stats().retry_wait_seconds
        wait_until(lambda: sending.stats().retry_wait_seconds > seconds + 0.1)
        free(client)
        flushing.join()
        stats = sending.stats()
    assert stats.retry_waits == 1
    assert sending.stats().retry_wait_seconds == stats.retry_wait_seconds


def failing_filter(error: BaseException, *, at: int) -> Callable[[logging.LogRecord], bool]:
    """A log filter that raises an exception at one of the records."""
    records = 0

    def check(_: logging.LogRecord) -> bool:
        nonlocal records
        records += 1
        if records == at:
            raise error
        return True

    return check


@pytest.fixture
def add_filter() -> Any:
    logger, added = logging.getLogger("headrace"), []

    def add(check: Any) -> None:
        logger.addFilter(check)
        added.append(check)

    yield add
    for check in added:
        logger.removeFilter(check)


@pytest.mark.parametrize("at", [1, 2], ids=["first line", "last line"])
def test_a_failing_log_filter_loses_no_outcome(
    any_server: LocalServer,
    connect: Connect,
    log: Log,
    add_filter: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    client, raised, error = connect(any_server), [], ValueError("of the application")
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    add_filter(failing_filter(error, at=at))
    with Dispatcher(endpoint_to(any_server), retry=SOON, **FAILOVER) as sending:
        full(client)
        sending.produce_batch(batch_of(payloads_of(0, 100)))
        with after_ticks(3, lambda: free(client)):
            report = sending.flush()
    assert (report.delivered, raised) == (100, [error])
    log.check(*([ENDED] if at == 1 else [began("100 messages", OOM)]))


@pytest.mark.parametrize("call", ["flush", "produce_batch", "dispatch"])
@pytest.mark.parametrize("at", [1, 2], ids=["first line", "last line"])
def test_ctrl_c_during_logging_ends_the_call(
    any_server: LocalServer, connect: Connect, add_filter: Callable[[Any], None], call: str, at: int
) -> None:
    client = connect(any_server)
    add_filter(failing_filter(KeyboardInterrupt(), at=at))
    with Dispatcher(endpoint_to(any_server), window_max_entries=10, retry=SOON, **FAILOVER) as sending:
        full(client)
        rows = batch_of(payloads_of(0, 100))
        calls: dict[str, Callable[[], object]] = {
            "flush": sending.flush,
            "produce_batch": lambda: sending.produce_batch(rows),
            "dispatch": lambda: sending.dispatch(b"x"),
        }
        if call == "flush":
            sending.produce(b"x")
        with pytest.raises(KeyboardInterrupt), after_ticks(3, lambda: free(client)):
            calls[call]()
        free(client)
        report = sending.flush()
        reported = set(labels(report))
        if call == "produce_batch":
            assert reported <= {(None, None, None), ("retryable", "INTERRUPTED", "no")}
            assert len(report) == 100
        elif call == "flush":
            assert report.delivered == 1
        else:
            assert len(report) == 0
        stored = client.xlen(KEY)
        # `dispatch` ends on its way to the server or before another try.
        assert stored in (0, 1) if call == "dispatch" else stored == report.delivered
