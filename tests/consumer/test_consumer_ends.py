"""The ends of a consumer: stop, close, fork, Ctrl-C; groups that go away; connections that break."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from faults.proxy import Direction, Pair, Proxy
from headrace import CommandError, ConnectionFailedError, Endpoint, GroupMissingError, StateError
from headrace.testing import LocalServer
from support.consumers import add_sizes, as_ids, consumer_of, next_batch, take
from support.fixture_types import StartServer
from support.groups import GROUP, add, pending_of
from support.interrupts import interrupted
from support.patience import NEVER
from support.pipelines import KEY
from support.processes import after_ticks, in_child, stopped, wait_until
from support.servers import Program

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def port_of(server: LocalServer) -> int:
    assert server.port is not None
    return server.port


def test_a_signal_handler_stops_the_loop(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 5)
    with consumer_of(any_server, block=NEVER) as consumer:
        consumer.ack(next_batch(consumer))
        with after_ticks(3, consumer.stop):
            assert consumer.poll() is None
        assert consumer.poll() is None
        assert list(consumer) == []
        assert consumer.flush().acked == 5


def test_a_thread_stops_the_loop_and_remaining_entries_are_released(server: LocalServer, client: Any) -> None:
    add(client, 5)
    with consumer_of(server, block=NEVER) as consumer:
        batch = next_batch(consumer)
        consumer.ack(batch, [True, False, False, False, False])
        thread = threading.Thread(target=consumer.poll)
        thread.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        consumer.stop()
        thread.join()
    report = consumer.report()
    assert (report.acked, report.released, report.pending) == (1, 4, 0)
    assert set(pending_of(client).values()) == {(b"c", 0)}
    with consumer_of(server, "other", claim_interval=0.02) as other:
        assert take(other, 4, ack=True) == as_ids(range(2, 6))


def test_prefetched_entries_are_released_on_close(server: LocalServer, client: Any) -> None:
    add(client, 200)
    with consumer_of(server, batch_rows=16) as consumer:
        consumer.ack(next_batch(consumer))
    assert set(pending_of(client).values()) <= {(b"c", 0)}
    with consumer_of(server, "other", claim_interval=0.02) as other:
        assert sorted(take(other, 184, ack=True)) == sorted(as_ids(range(17, 201)))


def test_prefetched_entries_that_are_too_old_are_released_on_close(server: LocalServer, client: Any) -> None:
    add(client, 2_000)
    with consumer_of(server, batch_rows=16, min_idle=2.0, claim=False) as consumer:
        handed = 0
        # It reads ahead unless the batch before took long.
        while len(pending_of(client)) == handed:
            handed += next_batch(consumer).num_rows
        # Longer than half of min_idle: too old to be handed out. What was handed out is renewed.
        wait_until(lambda: client.xpending_range(KEY, GROUP, "-", "+", 2_000, idle=1_200))
    assert set(pending_of(client).values()) == {(b"c", 0)}


@pytest.mark.parametrize("size", [100, 5_000])
def test_entries_delivered_to_a_lost_connection_are_released_on_close(
    size: int, start_server: StartServer, program: Program, connect: Connect
) -> None:
    """The consumer is closed before it has looked which entries these are."""
    server = start_server(program, transport="tcp")
    client = connect(server)
    add_sizes(client, [size] * 1_000, KEY)
    cut = threading.Event()

    def cuts(pair: Pair) -> None:
        pair.reset()
        cut.set()

    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, claim=False, batch_rows=10) as consumer:
            next_batch(consumer)
            proxy.at("replies", 15 * size, cuts)
            while not cut.is_set():
                consumer.poll(0.0)
    assert len(client.xpending_range(KEY, GROUP, "-", "+", 1_000, idle=60_000)) == len(pending_of(client))


@pytest.mark.parametrize("closes", ["second", "first"])
def test_only_the_last_consumer_of_a_name_releases_its_entries(server: LocalServer, client: Any, closes: str) -> None:
    add(client, 10)
    first = consumer_of(server, claim=False)
    batch = next_batch(first)
    second = consumer_of(server, claim=False)
    # What is pending under the name is read after a start, as if the process had crashed before.
    assert sorted(take(second, 10)) == sorted(batch.entry_ids)
    ends, stays = (second, first) if closes == "second" else (first, second)
    ends.close()
    assert client.xpending_range(KEY, GROUP, "-", "+", 100, idle=60_000) == []
    # The last one of the name gives back what it has not acknowledged.
    stays.ack_ids(KEY, as_ids(range(1, 5)))
    assert stays.close().acked == 4
    given_back = client.xpending_range(KEY, GROUP, "-", "+", 100, idle=60_000)
    assert [entry["message_id"].decode() for entry in given_back] == as_ids(range(5, 11))


def test_a_connection_that_stays_listed_for_a_moment_does_not_keep_entries_from_release(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """That of an ended process of the name. Close looks for half a second, so a busy machine may need another one."""
    server = start_server(program, transport="tcp")
    client, other = connect(server), connect(server)
    add(client, 10)
    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)

        def is_released() -> bool:
            consumer = consumer_of(endpoint, claim=False, block=0.02)
            next_batch(consumer)
            other.client_setname("headrace-consumer:g/c")
            proxy.within("replies", b"name=headrace-consumer:g/c ", 1.0, lambda _: other.client_setname("gone"))
            consumer.close()
            return bool(client.xpending_range(KEY, GROUP, "-", "+", 100, idle=60_000))

        wait_until(is_released)


def test_an_old_connection_of_the_consumer_is_not_mistaken_for_another_process(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, transport="tcp")
    client = connect(server)
    # Everything that it asks of connections but CLIENT KILL.
    allowed = [f"+client|{name}" for name in ("id", "list", "setname")]
    client.execute_command("ACL", "SETUSER", "default", "-client", *allowed)
    add(client, 10)
    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, claim=False, batch_rows=5, block=0.05) as consumer:
            next_batch(consumer)

            def leaves(pair: Pair) -> None:
                """The client sees the end of the connection; the server waits for the rest of a request."""
                pair.hold("requests", float("inf"))
                pair.end("replies")

            proxy.at("requests", 1, leaves)
            add(client, 1, first=11)
            # It has connected again when it reads on.
            assert len(take(consumer, 6)) == 6
            connections = client.client_list()
            assert sum(each["name"].startswith("headrace-consumer:") for each in connections) == 2
    assert len(client.xpending_range(KEY, GROUP, "-", "+", 100, idle=60_000)) == 11


def test_entries_delivered_late_to_a_lost_connection_are_released_on_close(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Its read comes after the consumer has looked for what it may have got. It has no right to end the connection."""
    server = start_server(program, transport="tcp")
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "default", "-client")
    held: list[Pair] = []

    def leaves(pair: Pair) -> None:
        """The client sees the end of the connection; the server gets the request later."""
        pair.hold("requests", float("inf"))
        pair.end("replies")
        held.append(pair)

    def looks() -> int:
        return int(client.info("commandstats").get("cmdstat_xpending", {"calls": 0})["calls"])

    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, claim=False, block=0.05, min_idle=2.0) as consumer:
            assert consumer.poll(0.1) is None
            proxy.within("requests", rb"XREADGROUP\r\n.*", 0.0, leaves)
            before = looks()
            # At once when it has connected again, and after `min_idle`.
            while not held or looks() < before + 2:
                consumer.poll(0.05)
            # More than a read gets that waits for entries.
            add(client, 300)
            taken = len(pending_of(client))
            pair = held.pop()
            proxy.after(0.0, lambda: pair.resume("requests"))
            wait_until(lambda: len(pending_of(client)) > taken)
    assert len(client.xpending_range(KEY, GROUP, "-", "+", 1_000, idle=2_000)) == len(pending_of(client))


def test_claimed_entries_that_were_not_read_are_released_on_close(server: LocalServer, client: Any) -> None:
    """Entries that came back several times are read one after the other."""
    add(client, 8)
    client.xgroup_create(KEY, GROUP, "0")
    client.xreadgroup(GROUP, "other", {KEY: ">"})
    # Idle for long, and delivered often.
    client.xclaim(KEY, GROUP, "other", 0, as_ids(range(1, 9)), idle=120_000, retrycount=20, justid=True)
    with consumer_of(server, batch_rows=8, claim_interval=0.02) as consumer:
        assert next_batch(consumer).num_rows == 1
        assert {name for name, _ in pending_of(client).values()} == {b"c"}
    assert len(client.xpending_range(KEY, GROUP, "-", "+", 100, idle=60_000)) == 8


def test_an_exception_keeps_entries_pending(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with pytest.raises(ZeroDivisionError), consumer_of(server) as consumer:  # noqa: PT012
        batch = next_batch(consumer)
        consumer.ack(batch, [True, False, False])
        raise ZeroDivisionError
    assert pending_of(client) == {"2-0": (b"c", 1), "3-0": (b"c", 1)}


def test_ctrl_c_ends_a_wait_without_losing_entries(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with consumer_of(any_server, block=NEVER) as consumer:
        with interrupted():
            consumer.poll()
        add(client, 3)
        assert take(consumer, 3, ack=True) == as_ids([1, 2, 3])


def test_a_forked_child_is_refused_and_the_parent_continues(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    add(client, 40)
    with consumer_of(any_server, batch_rows=16) as consumer:
        batch = next_batch(consumer)

        def use() -> list[str]:
            calls: list[Callable[[], object]] = [
                consumer.poll,
                consumer.flush,
                consumer.poll,
                consumer.report,
                batch.check,
                lambda: consumer.ack(batch),
                lambda: consumer.release(batch),
            ]
            errors = []
            for call in calls:
                with pytest.raises(StateError) as raised:
                    call()
                errors.append(str(raised.value))
            consumer.close()
            return errors

        assert set(in_child(use)) == {"the consumer belongs to the process that made it: make one in each process"}
        consumer.ack(batch)
        take(consumer, 24, ack=True)
        assert consumer.flush().acked == 40
    assert pending_of(client) == {}


def test_close_returns_the_report_when_the_server_is_unreachable(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    consumer = consumer_of(any_server)
    batch = next_batch(consumer)
    any_server.kill()
    consumer.ack(batch)
    report = consumer.close(timeout=NEVER)
    assert (report.acked, report.pending) == (0, 3)
    assert consumer.close() == consumer.report() == report


def test_close_returns_at_its_timeout_when_the_server_does_not_answer(
    any_server: LocalServer, connect: Connect
) -> None:
    add(connect(any_server), 3)
    consumer = consumer_of(any_server)
    consumer.ack(next_batch(consumer))
    with stopped(any_server):
        report = consumer.close(timeout=0.3)
    assert report.acked == 0


def test_a_missing_group_is_not_created(server: LocalServer, client: Any) -> None:
    with pytest.raises(GroupMissingError, match=f"the consumer group '{GROUP}' of the stream '{KEY}' does not exist"):
        consumer_of(server, create=False)
    assert client.exists(KEY) == 0
    client.xgroup_create(KEY, GROUP, id="0", mkstream=True)
    add(client, 1)
    with consumer_of(server, create=False) as consumer:
        assert take(consumer, 1, ack=True) == ["1-0"]


@pytest.mark.parametrize("how", ["destroy", "delete"])
def test_a_group_deleted_during_a_blocking_read_raises_an_error(server: LocalServer, client: Any, how: str) -> None:
    with consumer_of(server, "c", ["first", KEY], block=NEVER) as consumer:
        errors: list[BaseException] = []

        def read() -> None:
            try:
                consumer.poll()
            except GroupMissingError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        if how == "destroy":
            client.xgroup_destroy(KEY, GROUP)
        else:
            client.delete(KEY)
        thread.join()
        assert len(errors) == 1
        add(client, 1, key="first")
        assert take(consumer, 1) == ["1-0"]
        assert consumer.poll(0.01) is None
        # It is made by a person, or by a new consumer.
        assert how == "delete" or client.xinfo_groups(KEY) == []
        client.xgroup_create(KEY, GROUP, id="0", mkstream=True)
        add(client, 2)
        assert take(consumer, 2, ack=True) == as_ids([1, 2])


def test_entries_are_delivered_again_when_the_position_is_set_back(server: LocalServer, client: Any) -> None:
    add(client, 4)
    with consumer_of(server) as consumer:
        assert take(consumer, 4, ack=True) == as_ids(range(1, 5))
        consumer.flush()
        client.xgroup_setid(KEY, GROUP, "2-0")
        assert take(consumer, 2, ack=True) == as_ids([3, 4])
        assert consumer.flush().acked == 6
    assert pending_of(client) == {}


def test_acknowledgements_are_stale_after_the_consumer_was_deleted(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(server) as consumer:
        batch = next_batch(consumer)
        assert client.xgroup_delconsumer(KEY, GROUP, "c") == 3
        consumer.ack(batch)
        assert consumer.flush().stale == 3
        add(client, 2, first=4)
        assert take(consumer, 2, ack=True) == as_ids([4, 5])


def test_an_acknowledgement_with_a_lost_reply_is_counted_once(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, transport="tcp")
    client = connect(server)
    add(client, 5)
    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, block=0.05) as consumer:
            batch = next_batch(consumer)
            assert consumer.poll(0.1) is None
            # The first byte of the next reply ends the connection, whichever of the two sends it.
            proxy.at("replies", 1, Pair.reset)
            consumer.ack(batch, [True, True, True, False, False])
            report = None
            while report is None:
                try:
                    report = consumer.flush()
                except ConnectionFailedError:
                    continue
            assert (report.acked, report.stale, report.unknown, report.pending) == (3, 0, 0, 2)
            assert consumer.poll(0.1) is None, "what is in hand is not delivered again"
            consumer.ack(batch)
            assert consumer.flush().acked == 5
    assert pending_of(client) == {}


@pytest.mark.parametrize("seed", range(3))
def test_entries_are_delivered_once_while_connections_break_at_random(
    seed: int, start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Every entry is handed over at least once, none that is in hand twice, and at the end nothing is pending."""
    random = Random(seed)
    server = start_server(program, transport="tcp")
    client = connect(server)
    add(client, 600)
    handed: set[str] = set()
    with Proxy(port_of(server)) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, block=0.02, batch_rows=50, min_idle=5.0) as consumer:
            while len(handed) < 600:
                if random.random() < 0.5:
                    direction: Direction = random.choice(["requests", "replies"])
                    proxy.at(direction, random.choice([1, 7, 60, 600, 9_000]), random.choice([Pair.reset, Pair.finish]))
                try:
                    batch = consumer.poll(0.05)
                except ConnectionFailedError:
                    continue
                if batch is not None:
                    assert not handed & set(batch.entry_ids)
                    handed.update(batch.entry_ids)
                    consumer.ack(batch)
            proxy.disarm()
            while True:
                try:
                    report = consumer.flush()
                    break
                except (ConnectionFailedError, CommandError):
                    continue
            assert (report.handed_over, report.acked, report.stale, report.pending) == (600, 600, 0, 0)
    wait_until(lambda: pending_of(client) == {})


def test_a_forked_child_does_not_close_the_connection_of_its_parent(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with consumer_of(any_server, block=0.05) as consumer:
        child = os.fork()
        if child == 0:
            del consumer
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        add(client, 1)
        assert take(consumer, 1) == ["1-0"]
