"""Readers and consumers whose server is away or busy: they wait for it as their retry policy says."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import CommandError, ConfigError, ConnectionFailedError, Consumer, Endpoint, Reader, RetryPolicy
from headrace.testing import LocalServer
from support.consumers import consumer_of, next_batch
from support.fixture_types import StartServer
from support.groups import add
from support.interrupts import interrupted
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import after_ticks, resume, stop, stopped, wait_until
from support.servers import DURABLE

Connect = Callable[..., Any]

AWAY = r"(CONNECT|RESET|EOF): .*"
ENDED = r"retries to read from <to> ended after \d+ tries in <s>: the server answered"


def given_up(why: str) -> str:
    return rf"retries to read from <to> were given up after \d+ tries in <s>: {why}"


def began(why: str, seconds: str = "500.0") -> str:
    return rf"retrying to read from <to> for up to {seconds} s: {why}"


@dataclass
class Log:
    """The records logged under `headrace`."""

    caplog: pytest.LogCaptureFixture

    def check(self, server: LocalServer, *patterns: str) -> None:
        """Compare the lines with these patterns, and clear them. `<to>` is the endpoint, `<s>` a time."""
        records = [record for record in self.caplog.records if record.name == "headrace"]
        self.caplog.clear()
        assert {record.levelno for record in records} <= {logging.WARNING}
        lines = [record.getMessage() for record in records]
        assert len(lines) == len(patterns), lines
        to = re.escape(f"unix://{server.unix_socket} stream key {KEY}")
        for line, pattern in zip(lines, patterns, strict=True):
            assert re.fullmatch(pattern.replace("<to>", to).replace("<s>", r"\d+\.\d s"), line), line


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.DEBUG, "headrace")
    return Log(caplog)


@dataclass
class Reading:
    """A reader or a consumer."""

    source: Reader | Consumer

    def next(self, timeout: float | None = None) -> list[str] | None:
        """The IDs of the next batch, which are acknowledged."""
        if isinstance(self.source, Reader):
            batch = self.source.read(timeout)
            return None if batch is None else [batch.first_id, batch.last_id]
        delivered = self.source.poll(timeout)
        if delivered is None:
            return None
        self.source.ack(delivered)
        return [delivered.entry_ids[0], delivered.entry_ids[-1]]


#: Makes a reader or a consumer of `KEY`.
Make = Callable[..., contextlib.AbstractContextManager[Reading]]


@pytest.fixture(params=["reader", "consumer"])
def make(request: pytest.FixtureRequest) -> Make:
    @contextlib.contextmanager
    def made(where: LocalServer | Endpoint, **options: Any) -> Iterator[Reading]:
        endpoint = where if isinstance(where, Endpoint) else endpoint_to(where)
        if request.param == "reader":
            with Reader(endpoint, linger=0.0, **options) as reader:
                yield Reading(reader)
        else:
            consumer = consumer_of(endpoint, **options)
            try:
                yield Reading(consumer)
            finally:
                consumer.close(timeout=0.1)

    return made


PATIENT = RetryPolicy(initial_backoff=0.005, max_backoff=0.02, deadline=500)
#: A policy that ends before a server is back.
HASTY = RetryPolicy(max_attempts=3, initial_backoff=0.001, max_backoff=0.001)


def test_a_server_that_is_restarted_is_waited_for(
    make: Make, start_server: StartServer, connect: Connect, log: Log
) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with make(server, retry=PATIENT) as reading:
        assert reading.next() == ["1-0", "3-0"]

        def back() -> None:
            server.restart()
            add(connect(server), 2, first=4)

        server.kill()
        with after_ticks(10, back):
            assert reading.next() == ["4-0", "5-0"]
        log.check(server, began(AWAY), ENDED)


def test_a_server_that_stays_unreachable_is_given_up(
    make: Make, start_server: StartServer, connect: Connect, log: Log
) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with make(server, retry=HASTY) as reading:
        assert reading.next() == ["1-0", "3-0"]
        server.kill()
        for _ in range(2):
            with pytest.raises(ConnectionFailedError, match=r"\(given up after 3 tries in \d+\.\d s\)"):
                reading.next()
            log.check(server, began(AWAY, "120.0"), given_up(AWAY))
        server.restart()
        add(connect(server), 1, first=4)
        assert reading.next() == ["4-0", "4-0"]
        log.check(server)
    server.kill()
    with pytest.raises(ConnectionFailedError, match="given up after 3 tries"), make(server, retry=HASTY):
        pass
    log.check(server, began(AWAY, "120.0"), given_up(AWAY))


def test_one_outage_spans_several_calls_with_a_timeout(
    make: Make, start_server: StartServer, connect: Connect, log: Log
) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with make(server, retry=PATIENT) as reading:
        reading.next()
        server.kill()
        for timeout in (0.1, 0.0, 0.05):
            assert reading.next(timeout) is None
        log.check(server, began(AWAY))
        server.restart()
        add(connect(server), 1, first=4)
        assert reading.next() == ["4-0", "4-0"]
        log.check(server, ENDED)


def test_ctrl_c_ends_the_wait_for_a_server(make: Make, start_server: StartServer, connect: Connect, log: Log) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    policy = RetryPolicy(initial_backoff=600, max_backoff=600, jitter=0, deadline=500)
    with make(server, retry=policy) as reading:
        reading.next()
        server.kill()
        for _ in range(2):
            with interrupted():
                reading.next()
        log.check(server, began(AWAY))


def test_stop_ends_the_wait_for_a_server(start_server: StartServer, connect: Connect) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    consumer = consumer_of(server, retry=RetryPolicy(initial_backoff=600, max_backoff=600, deadline=6_000))
    consumer.ack(next_batch(consumer))
    consumer.flush()
    server.kill()
    with after_ticks(5, consumer.stop):
        assert consumer.poll() is None
    assert consumer.close(timeout=0.1).acked == 3


def test_a_replica_without_its_primary_is_waited_for(any_server: LocalServer, connect: Connect, log: Log) -> None:
    """MASTERDOWN, also when the reader is made."""
    client = connect(any_server)
    add(client, 3)
    client.config_set("replica-serve-stale-data", "no")

    def away() -> None:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)

    def back() -> None:
        client.execute_command("REPLICAOF", "NO", "ONE")

    away()
    with pytest.raises(CommandError, match="MASTERDOWN"):
        Reader(endpoint_to(any_server), end="latest")
    with after_ticks(10, back), Reader(endpoint_to(any_server), retry=PATIENT, linger=0.0) as reader:
        batch = reader.read()
    assert batch is not None
    assert batch.last_id == "3-0"
    log.check(any_server, began("MASTERDOWN: .*"), ENDED)


def test_a_blocked_read_fails_when_its_server_becomes_a_replica(
    make: Make, server: LocalServer, connect: Connect, log: Log
) -> None:
    """Its group is not missing."""
    client = connect(server)
    add(client, 3)

    def demote() -> None:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)

    def promote() -> None:
        client.execute_command("REPLICAOF", "NO", "ONE")
        add(client, 1, first=4)

    with make(server, block=NEVER) as reading:
        reading.next()
        with after_ticks(5, demote), pytest.raises(CommandError, match="UNBLOCKED"):
            reading.next()
        promote()
        assert reading.next() == ["4-0", "4-0"]


def test_a_busy_server_is_waited_for(make: Make, any_server: LocalServer, connect: Connect, log: Log) -> None:
    """BUSY: a script that does not end."""
    client = connect(any_server)
    add(client, 3)
    client.config_set("lua-time-limit", 1)
    with make(any_server, retry=PATIENT, block=0.05) as reading:
        reading.next()

        def run() -> None:
            with contextlib.suppress(redis.ResponseError):  # it is killed
                connect(any_server).eval("while true do end", 0)

        running = threading.Thread(target=run)
        running.start()

        def is_busy() -> bool:
            try:
                client.get("x")
            except redis.exceptions.ResponseError as error:
                return "BUSY" in str(error) or "busy" in str(error)
            return False

        wait_until(is_busy)

        def back() -> None:
            client.script_kill()
            running.join()
            add(client, 1, first=4)

        with after_ticks(10, back):
            assert reading.next() == ["4-0", "4-0"]
        log.check(any_server, began("BUSY: .*"), ENDED)


#: How long a server may be silent in the next tests: longer than a busy machine makes it.
SILENCE = 1.5


def silent_after(server: LocalServer) -> Endpoint:
    return endpoint_to(server, command_timeout=SILENCE, connect_timeout=SILENCE)


def test_a_server_that_falls_silent_during_a_wait_is_noticed(
    make: Make, any_server: LocalServer, connect: Connect
) -> None:
    """The kernel takes the bytes, and nothing comes back: as behind a firewall that drops packets."""
    client = connect(any_server)
    add(client, 3)
    with make(silent_after(any_server), block=0.05) as reading:
        assert reading.next() == ["1-0", "3-0"]
        with stopped(any_server), pytest.raises(ConnectionFailedError, match=r"timed out while|sent no complete reply"):
            reading.next()
        add(client, 1, first=4)
        assert reading.next() == ["4-0", "4-0"]


def test_a_server_that_falls_silent_is_waited_for(
    make: Make, any_server: LocalServer, connect: Connect, log: Log
) -> None:
    client = connect(any_server)
    add(client, 3)
    with make(silent_after(any_server), block=0.05, retry=PATIENT) as reading:
        assert reading.next() == ["1-0", "3-0"]
        stop(any_server)

        def back() -> None:
            resume(any_server)
            add(client, 1, first=4)

        with after_ticks(round(2 * SILENCE / 0.02), back):
            assert reading.next() == ["4-0", "4-0"]
        assert re.search(r"for up to 500\.0 s: TIMEOUT: .* sent no complete reply for \d", log.caplog.text)


def test_permanent_errors_are_raised_immediately(
    make: Make, any_server: LocalServer, connect: Connect, log: Log
) -> None:
    client = connect(any_server)
    client.set(KEY, "no stream")
    refused = pytest.raises(CommandError, match=r"WRONGTYPE|does not hold a stream")
    with refused, make(any_server, retry=PATIENT) as reading:
        reading.next()
    log.check(any_server)


@pytest.mark.parametrize("attempts", [None, 1])
def test_a_lost_connection_is_replaced_once_unless_a_policy_has_one_attempt(
    make: Make, any_server: LocalServer, connect: Connect, log: Log, attempts: int | None
) -> None:
    client = connect(any_server)
    add(client, 3)
    policy = None if attempts is None else RetryPolicy(max_attempts=attempts)
    with make(any_server, retry=policy, block=NEVER) as reading:
        reading.next()

        client.client_kill_filter(_type="normal", skipme=True)
        add(client, 1, first=4)
        if policy is None:
            assert reading.next() == ["4-0", "4-0"]
        else:
            with pytest.raises(ConnectionFailedError, match=r"^(?!.*given up)"):
                reading.next()
            assert reading.next() == ["4-0", "4-0"]
    log.check(any_server)


def test_the_keeper_of_a_consumer_reconnects_to_a_restarted_server(start_server: StartServer, connect: Connect) -> None:
    """It does not give up with the policy: what the caller says leaves without another call that reads."""
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with consumer_of(server, retry=HASTY, min_idle=NEVER) as consumer:
        batch = next_batch(consumer)
        server.kill()
        consumer.ack(batch)
        with pytest.raises(ConnectionFailedError):
            consumer.flush()
        refuse_twice(server)
        server.restart()
        wait_until(lambda: consumer.report().acked == 3)


def test_the_keeper_sends_what_the_reading_connection_could_not(start_server: StartServer, connect: Connect) -> None:
    """The keeper has nothing to do while an acknowledgement is in flight on the other connection, and then sleeps."""
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with consumer_of(server, retry=HASTY, min_idle=NEVER) as consumer:
        batch = next_batch(consumer)
        with stopped(server):
            consumer.ack(batch)
            assert consumer.flush(timeout=0.5).acked == 0
            server.kill()
        with pytest.raises(ConnectionFailedError):
            consumer.flush()
        server.restart()
        wait_until(lambda: consumer.report().acked == 3)


def refuse_twice(server: LocalServer) -> None:
    """Close two connections to the address of a killed server."""
    assert server.unix_socket is not None
    wait_until(lambda: not server.running)
    Path(server.unix_socket).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(server.unix_socket))
        listener.listen()
        listener.settimeout(PATIENCE)
        for _ in range(2):
            listener.accept()[0].close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "retry must be a RetryPolicy or None, got 3"),
        ({"retry_deadline": 3.0}, "unknown option 'retry_deadline'; did you mean 'retry'?"),
        ({"reconnect": True}, "unknown option 'reconnect'"),
        ({"retry": RetryPolicy(initial_backoff=2.0, max_backoff=1.0)}, "retry_initial_backoff must be at most"),
    ],
)
def test_invalid_retry_policies_are_refused(make: Make, any_server: LocalServer, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)), make(any_server, **options):
        pass
