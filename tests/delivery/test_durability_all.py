"""Durability: `wait_replicas="all"` counts the replicas, and a number below theirs is warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace import ConfigError, Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalServer
from support.fake_server import FakeServer, Peer, entry_id
from support.fixture_types import Replicate, StartServer
from support.modes import MODES
from support.modes import dispatcher as dispatcher_of
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, endpoint_to, labels
from support.processes import stopped, wait_until

Connect = Callable[..., Any]

MISSING = ("retryable", "NOT_REPLICATED", "unknown")


@pytest.fixture
def three(replicate: Replicate, start_server: StartServer, connect: Connect) -> list[LocalServer]:
    """A server and its two replicas."""
    master, replica = replicate()
    other = start_server(transport="tcp")
    connect(other).replicaof("127.0.0.1", master.port)
    client = connect(master)
    # Without a write WAIT counts a replica before its first acknowledgement, which may take a second.
    client.set("second", "write")
    wait_until(lambda: client.wait(2, 100) == 2)
    return [master, replica, other]


def outcome_of(dispatcher: Dispatcher) -> tuple[object, str]:
    """Label and message of the outcome of a message."""
    dispatcher.produce(b"x")
    report = dispatcher.flush()
    (label,) = labels(report)
    return label, "".join(failure.message for failure in report.failed)


def test_all_requires_the_replicas_that_were_counted_at_connect(three: list[LocalServer]) -> None:
    master, replica, other = three
    with Dispatcher(endpoint_to(master), wait_replicas="all", wait_timeout=1) as dispatcher:
        assert outcome_of(dispatcher) == (DELIVERED, "")
        missing = "1 of 2 replicas had the entry within 1 s; the server itself has it"
        with stopped(replica):
            assert outcome_of(dispatcher) == (MISSING, missing)
        other.kill()
        assert outcome_of(dispatcher) == (MISSING, missing)
        assert dispatcher.stats().connections == 1


def test_replicas_are_counted_before_a_wait_is_due(three: list[LocalServer]) -> None:
    """Messages are encoded before there is a connection; with few per WAIT, one of them covers these together."""
    options: dict[str, Any] = {"wait_replicas": "all", "wait_every": 2, "wait_timeout": NEVER}
    with Dispatcher(endpoint_to(three[0]), window_max_entries=8, **options) as dispatcher:
        for number in range(100):
            dispatcher.produce(b"x", number)
        report = dispatcher.flush()
        assert labels(report) == [DELIVERED] * 100


@pytest.mark.parametrize("mode", MODES)
def test_without_a_replica_no_message_is_sent(start_server: StartServer, connect: Connect, mode: str) -> None:
    server = start_server(needs=["idmp"] if mode == "idmp" else [])
    with dispatcher_of(endpoint_to(server), mode, wait_replicas="all") as dispatcher:
        label, message = outcome_of(dispatcher)
    assert label == ("retryable", "NOREPLICAS", "no")
    assert message.startswith("wait_replicas 'all' needs at least one replica, and the server has none")
    assert connect(server).xlen(KEY) == 0


def test_a_retry_policy_waits_for_the_first_replica(replicate: Replicate, connect: Connect) -> None:
    master, replica = replicate()
    connect(replica).replicaof("NO", "ONE")
    client = connect(master)
    wait_until(lambda: client.info("replication")["connected_slaves"] == 0)
    retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.01, deadline=NEVER)
    with Dispatcher(endpoint_to(master), wait_replicas="all", wait_timeout=NEVER, retry=retry) as dispatcher:
        dispatcher.produce(b"x")
        connect(replica).replicaof("127.0.0.1", master.port)
        assert labels(dispatcher.flush()) == [DELIVERED]


def test_a_user_without_permission_for_info_is_refused_before_the_first_message(
    three: list[LocalServer], connect: Connect
) -> None:
    client = connect(three[0])
    client.execute_command("ACL", "SETUSER", "writer", "on", ">pass", "~*", "+@all", "-info")
    endpoint = endpoint_to(three[0], username="writer", password="pass")
    with Dispatcher(endpoint, wait_replicas="all") as dispatcher:
        label, message = outcome_of(dispatcher)
    assert label == ("permanent", "NOPERM", "no")
    assert message.startswith("wait_replicas 'all' has to count the replicas: INFO was refused: NOPERM")
    assert client.exists(KEY) == 0
    # With a number they need not be counted.
    with Dispatcher(endpoint, wait_replicas=1, wait_timeout=NEVER) as dispatcher:
        assert outcome_of(dispatcher) == (DELIVERED, "")


@pytest.mark.parametrize(("wanted", "code"), [(1, None), ("all", "PROTOCOL")])
def test_all_fails_if_the_server_does_not_report_its_replicas(wanted: Any, code: str | None) -> None:
    """A proxy may leave the field out of INFO. With a number it is not needed."""

    def script(peer: Peer) -> None:
        while commands := peer.commands(1):
            match commands[0][0]:
                case b"INFO":
                    peer.send(b"$13\r\nrole:master\r\n\r\n")
                case b"WAIT":
                    peer.send(b":1\r\n")
                case b"XADD":
                    peer.send(entry_id(1))
                case _:
                    peer.send(b"+OK\r\n")

    with FakeServer(script) as fake:
        endpoint = Endpoint(host="127.0.0.1", port=fake.port, stream_key=KEY)
        with Dispatcher(endpoint, wait_replicas=wanted) as dispatcher:
            dispatcher.produce(b"x")
            (label,) = labels(dispatcher.flush())
    assert label[1] == code


@pytest.mark.parametrize("wanted", [0, 1, 2, 3, "all"])
def test_a_number_below_the_replica_count_logs_one_warning(
    three: list[LocalServer], caplog: pytest.LogCaptureFixture, connect: Connect, wanted: Any
) -> None:
    with (
        caplog.at_level(logging.WARNING, "headrace"),
        Dispatcher(endpoint_to(three[0]), wait_replicas=wanted) as dispatcher,
    ):
        outcome_of(dispatcher)
        connect(three[0]).client_kill_filter(_type="normal", skipme=True)
        outcome_of(dispatcher)
        outcome_of(dispatcher)
        assert dispatcher.stats().connections == 2
    warnings = [record.getMessage() for record in caplog.records]
    if wanted == 1:
        (warning,) = warnings
        assert warning.startswith("wait_replicas is 1, and ")
        assert " has 2 replicas: one that did not confirm a message may be promoted" in warning
    else:
        assert warnings == []


@pytest.mark.parametrize("wrong", ["ALL", "2", "", 1.5, True, -1])
def test_invalid_values_of_wait_replicas_are_refused(any_server: LocalServer, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="wait_replicas must be an integer of at least 0, or 'all', got "):
        Dispatcher(endpoint_to(any_server), wait_replicas=wrong)
