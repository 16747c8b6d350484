"""The ends of a shard consumer: stop, close, Ctrl-C; servers that stand still, restart, or are away."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    ClosedError,
    ConcurrentUseError,
    ConnectionFailedError,
    Endpoint,
    ForgottenWarning,
    RetryPolicy,
    ShardReport,
    StreamReplacedError,
)
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.fixture_types import StartServer
from support.groups import add
from support.interrupts import interrupted
from support.patience import LATE, NEVER, PATIENCE, lasting
from support.pipelines import KEY
from support.processes import after_ticks, kill_and_restart, stopped, wait_until
from support.servers import DURABLE, Program
from support.shard_consumers import SHORT, lease_of, member_of, next_batch, sharded, take

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


@pytest.mark.parametrize("owns", [True, False])
def test_poll_ends_at_its_timeout(any_server: LocalServer, owns: bool) -> None:
    with member_of(any_server, "a") as first, member_of(any_server, "b") as second:
        wait_until(lambda: first.assignment)
        member = first if owns else second
        with lasting(0.3):
            assert member.poll(0.3) is None
        with lasting(0.0):
            assert member.poll(0) is None


def test_a_signal_handler_stops_the_loop(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 5)
    with member_of(any_server, block=NEVER) as member:
        member.commit(next_batch(member))
        with after_ticks(3, member.stop):
            assert member.poll() is None
        assert member.poll() is None
        assert list(member) == []
        assert member.flush().committed == 5


@pytest.mark.parametrize("owns", [True, False])
def test_a_thread_stops_the_loop(any_server: LocalServer, owns: bool) -> None:
    with member_of(any_server, "a") as first, member_of(any_server, "b", block=NEVER) as second:
        wait_until(lambda: first.assignment)
        member = first if owns else second
        thread = threading.Thread(target=member.poll)
        thread.start()
        wait_until(lambda: is_in_use(member))
        member.stop()
        thread.join()


def is_in_use(member: Any) -> bool:
    try:
        member.flush(0)
    except ConcurrentUseError:
        return True
    return False


def test_one_call_at_a_time(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    with member_of(any_server) as member:
        batch = next_batch(member)
        thread = threading.Thread(target=member.poll)
        thread.start()
        wait_until(lambda: is_in_use(member))
        for call in (member.poll, member.flush, member.close):
            with pytest.raises(ConcurrentUseError, match="the consumer is in use by another call"):
                call()
        # These take no turn.
        batch.check()
        member.commit(batch)
        wait_until(lambda: member.report().committed == 3)
        assert member.assignment == [KEY.encode()]
        member.stop()
        thread.join()


@pytest.mark.parametrize("owns", [True, False])
def test_ctrl_c_ends_a_wait_without_losing_entries(any_server: LocalServer, connect: Connect, owns: bool) -> None:
    client = connect(any_server)
    with member_of(any_server, "a") as first, member_of(any_server, "b", block=NEVER) as second:
        wait_until(lambda: first.assignment)
        with interrupted():
            (first if owns else second).poll()
        add(client, 3)
        assert take(first, 3) == {KEY: as_ids([1, 2, 3])}


def test_ctrl_c_ends_a_flush_that_waits(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    with member_of(any_server) as member:
        batch = next_batch(member)
        with stopped(any_server):
            member.commit(batch)
            with interrupted():
                member.flush()
        assert member.flush().committed == 3


def test_use_after_close(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    member = member_of(any_server)
    batch = next_batch(member)
    report = member.close()
    calls: list[Callable[[], object]] = [
        member.poll,
        member.flush,
        lambda: member.commit(batch),
        batch.check,
        lambda: next(member),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the consumer is closed"):
            call()
    assert member.close() == member.report() == report
    assert (report.handed_over, report.committed, report.streams_given_up) == (3, 0, 1)
    assert member.assignment == []
    member.stop()
    # What was returned stays readable.
    assert [entry.id for entry in batch] == as_ids([1, 2, 3])


def test_close_sends_what_was_committed(server: LocalServer, client: Any) -> None:
    for shard in range(3):
        add(client, 100, key=f"orders:{shard}")
    member = member_of(sharded(server, 3), batch_rows=10)
    for _ in range(12):
        member.commit(next_batch(member))
    report = member.close()
    assert (report.committed, report.fenced, report.unknown, report.pending) == (report.handed_over, 0, 0, 0)
    assert all(lease_of(client, f"orders:{shard}")["owner"] == "" for shard in range(3))


def test_close_ends_within_its_timeout_when_the_server_does_not_answer(
    any_server: LocalServer, connect: Connect
) -> None:
    add(connect(any_server), 3)
    member = member_of(any_server)
    batch = next_batch(member)
    with stopped(any_server):
        member.commit(batch)
        began = time.monotonic()
        try:
            report = member.close(timeout=0.3)
        except ConnectionFailedError:
            report = member.report()
        assert time.monotonic() - began < LATE
    assert (report.committed, report.handed_over) == (0, 3)
    assert member.close() == member.report()


def test_the_end_of_the_block_waits_at_most_ten_seconds(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    member = member_of(any_server)
    next_batch(member)
    with stopped(any_server):
        began = time.monotonic()
        member.close(timeout=0.0)
        assert time.monotonic() - began < LATE


def test_a_dropped_consumer_with_commits_that_were_not_sent_warns(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    member = member_of(any_server)
    batch = next_batch(member)
    with stopped(any_server), pytest.warns(ForgottenWarning, match=r"^3 entries were committed by <ShardConsumer"):  # noqa: PT031
        member.commit(batch)
        del member
        gc.collect()


def test_no_thread_and_no_connection_is_left_after_close(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    before = len(client.client_list())
    with member_of(sharded(any_server, 8)) as member:
        wait_until(lambda: len(member.assignment) == 8)
        assert member.poll(0.0) is None
    wait_until(lambda: len(client.client_list()) == before)
    gc.collect()


def test_a_server_that_restarts_keeps_leases_and_places(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, config=DURABLE)
    client = connect(server)
    for shard in range(4):
        add(client, 50, key=f"orders:{shard}")
    with member_of(sharded(server, 4), batch_rows=10, retry=RetryPolicy(deadline=NEVER)) as member:
        first = take(member, 40)
        member.flush()
        held = next_batch(member)
        kill_and_restart(server)
        held.check()
        member.commit(held)
        found = take(member, 150)
        report = member.flush()
        assert (report.committed, report.fenced, report.streams_lost, report.streams_taken) == (200, 0, 0, 4)
    assert sum(map(len, first.values())) + len(held) + sum(map(len, found.values())) == 200


def test_a_server_without_its_data_begins_again(server: LocalServer, client: Any) -> None:
    """Leases are lost with it: each stream is taken anew, from where the group begins."""
    add(client, 10)
    with member_of(server, lease=SHORT, retry=RetryPolicy(deadline=NEVER)) as member:
        take(member, 10)
        member.flush()
        client.flushall()
        add(client, 5)
        found = None
        while found is None:
            with contextlib.suppress(StreamReplacedError):
                found = take(member, 5)
        assert found == {KEY: as_ids(range(1, 6))}
        assert member.flush().streams_lost == 1


def test_a_server_that_was_never_there_is_an_error(closed_port: int) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)
    with pytest.raises(ConnectionFailedError, match=f"cannot connect to 127.0.0.1:{closed_port}"):
        member_of(endpoint)


def test_a_unix_socket_that_is_not_there_is_an_error(any_server: LocalServer) -> None:
    """The constructor does not connect: the first poll says it."""
    endpoint = Endpoint(unix_socket=any_server.unix_socket + "x", stream_key=KEY)
    with member_of(endpoint) as member:
        for _ in range(2):
            with pytest.raises(ConnectionFailedError, match=r"cannot connect to .*: no such file"):
                member.poll(PATIENCE)


@pytest.mark.parametrize("owns", [True, False])
def test_a_server_that_goes_away_is_an_error_and_the_next_call_continues(
    start_server: StartServer, connect: Connect, owns: bool
) -> None:
    server = start_server(config=DURABLE)
    client = connect(server)
    add(client, 3)
    with member_of(server, "a") as first, member_of(server, "b") as second:
        take(first, 3)
        first.flush()
        member = first if owns else second
        assert member.poll(0.05) is None
        server.kill()
        with pytest.raises(ConnectionFailedError, match=r"cannot connect to|connection"):
            member.poll(PATIENCE)
        server.restart()
        add(client, 3, first=4)
        found = None
        while found is None:
            try:
                found = take(first, 3)
            except ConnectionFailedError:
                continue
        assert found == {KEY: as_ids([4, 5, 6])}
        second.close()


def test_a_flush_without_a_server_raises(start_server: StartServer, connect: Connect) -> None:
    """Its lease goes on: the commit is made once the server is back."""
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with member_of(server) as member:
        batch = next_batch(member)
        server.kill()
        member.commit(batch)
        with pytest.raises(ConnectionFailedError):
            member.flush()
        server.restart()
        report: ShardReport | None = None
        while report is None:
            try:
                report = member.flush()
            except ConnectionFailedError:
                continue
        assert report.committed == 3
