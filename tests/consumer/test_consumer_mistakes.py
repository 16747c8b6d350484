"""Mistakes that consumers of groups are known for, where the other files of this folder have no test of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from faults.proxy import Pair, Proxy
from headrace import ConfigError, ConnectionFailedError, Consumer, Endpoint, Reader
from headrace.testing import LocalServer
from support.consumers import add_sizes, as_ids, consumer_of, next_batch, take
from support.fixture_types import StartServer
from support.groups import GROUP, add, pending_of, read
from support.patience import NEVER
from support.pipelines import KEY, endpoint_to
from support.processes import stopped, wait_until
from support.servers import Program

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

MIB = 1 << 20


def looks(client: Any) -> int:
    """How often consumers have looked at their pending entries."""
    return client.info("commandstats").get("cmdstat_xpending", {"calls": 0})["calls"]  # type: ignore[no-any-return]


def connections(client: Any) -> int:
    """How many connections the server has accepted so far."""
    return client.info("stats")["total_connections_received"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.ack("1-0"),
            "batch must be one that poll returned, or an entry of one, got str; ack_ids takes entry IDs",
        ),
        (
            lambda c: c.fail(["1-0"], "why"),
            "batch must be one that poll returned, or an entry of one, got list; fail_ids takes entry IDs",
        ),
        (
            lambda c: c.release(5),
            "batch must be one that poll returned, or an entry of one, got int; release_ids takes entry IDs",
        ),
        (lambda c: c.ack(c.poll(0)), "batch is None: poll returned no batch"),
        (lambda c: c.poll("1"), "timeout must be a number of seconds of at least 0, got '1'"),
        (lambda c: c.close("1"), "timeout must be a number of seconds of at least 0, got '1'"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(
    call: Callable[[Consumer], object], message: str, server: LocalServer
) -> None:
    with consumer_of(server) as consumer, pytest.raises((TypeError, ConfigError)) as caught:
        call(consumer)
    assert str(caught.value) == message


@pytest.mark.parametrize("may_kill", [True, False])
def test_a_read_that_is_executed_late_strands_no_entries(
    may_kill: bool, start_server: StartServer, program: Program, connect: Connect
) -> None:
    """The server gets a read of the lost connection when the new one has found nothing pending already."""
    server = start_server(program, transport="tcp")
    client = connect(server)
    if not may_kill:
        client.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-client")
    late: list[Pair] = []

    def cut(pair: Pair) -> None:
        """Keep the rest of the request, and leave the client without a connection."""
        pair.hold("requests", 3_600)
        pair.end("replies")
        late.append(pair)

    with Proxy(server.port or 0) as proxy:
        rights: dict[str, Any] = {} if may_kill else {"username": "u", "password": "p"}
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY, **rights)
        min_idle = 600.0 if may_kill else 1.0
        with consumer_of(endpoint, block=0.02, claim=False, renew=False, min_idle=min_idle) as consumer:
            assert consumer.poll(0.05) is None
            before = looks(client)
            proxy.at("requests", 1, cut)
            while looks(client) == before:
                assert consumer.poll(0.05) is None
            assert consumer.poll(0.05) is None
            wait_until(lambda: client.info("clients")["blocked_clients"] == 0)
            stored = add(client, 5)
            proxy.after(0.0, lambda: late[0].resume("requests"))
            wait_until(lambda: late[0].over)
            # Without the right to end the lost connection, its read was executed.
            assert pending_of(client) == ({} if may_kill else dict.fromkeys(stored, (b"c", 1)))
            assert take(consumer, 5, ack=True) == stored
    assert pending_of(client) == {}


def test_the_entries_of_a_cut_reply_are_replayed_once_and_in_order(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, transport="tcp")
    client = connect(server)
    add_sizes(client, [100] * 1_000, KEY)
    with Proxy(server.port or 0) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with consumer_of(endpoint, metadata=["entry_id", "deliveries"], block=0.02) as consumer:
            proxy.at("replies", 20_000, Pair.reset)
            rows: list[dict[str, Any]] = []
            while len(rows) < 1_000:
                rows += pa.record_batch(next_batch(consumer)).select(["entry_id", "deliveries"]).to_pylist()
            assert [row["entry_id"] for row in rows] == as_ids(range(1, 1_001))
            assert {row["deliveries"] for row in rows} == {1, 2}
            assert {deliveries for _, deliveries in pending_of(client).values()} == {1, 2}
            assert consumer.poll(0.05) is None


def test_pending_entries_are_replayed_once_before_any_is_acknowledged(
    any_server: LocalServer, connect: Connect
) -> None:
    """What is in hand is still pending: looked at from the beginning again, it would come for ever."""
    client = connect(any_server)
    stored = add(client, 2_500)
    client.xgroup_create(KEY, GROUP, id="0")
    assert read(client, "c", 2_500) == stored
    add(client, 1, first=2_501)
    with consumer_of(any_server) as consumer:
        assert take(consumer, 2_501) == [*stored, "2501-0"]
        counted = {entry: deliveries for entry, (_, deliveries) in pending_of(client).items()}
        assert counted == dict.fromkeys(stored, 2) | {"2501-0": 1}
        consumer.close(release=False)


Reads = Callable[[Endpoint], Any]

#: Both wait for new entries, for less time than the server is silent.
READERS: dict[str, Reads] = {
    "reader": lambda endpoint: Reader(endpoint, block=0.05, linger=0.0),
    "consumer": lambda endpoint: Consumer(endpoint, group="g", consumer="c", block=0.05, linger=0.0),
}


def poll(reader: Any) -> Any:
    return reader.read() if isinstance(reader, Reader) else reader.poll()


@pytest.mark.parametrize("kind", READERS)
def test_a_reply_that_arrives_long_after_block_is_waited_for(
    any_server: LocalServer, connect: Connect, kind: str
) -> None:
    client = connect(any_server)
    client.config_set("lua-time-limit", 0)  # on a busy machine the script takes longer
    with READERS[kind](endpoint_to(any_server, command_timeout=NEVER)) as reader:
        batches: list[Any] = []
        thread = threading.Thread(target=lambda: batches.append(poll(reader)))
        thread.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        before = connections(client)
        # The server is busy for ten times as long as the reader wanted to wait. In a script its own clock stands still.
        client.eval("local till = os.clock() + 0.5; while os.clock() < till do end", 0)
        add(client, 1)
        thread.join()
        assert batches[0].num_rows == 1
        assert connections(client) == before


@pytest.mark.parametrize("kind", READERS)
def test_a_silent_server_is_noticed(any_server: LocalServer, connect: Connect, kind: str) -> None:
    client = connect(any_server)
    with READERS[kind](endpoint_to(any_server, command_timeout=0.3, connect_timeout=0.3)) as reader:
        add(client, 1)
        assert poll(reader).num_rows == 1
        with stopped(any_server), pytest.raises(ConnectionFailedError):
            poll(reader)
        add(client, 1, first=2)
        rows = 0
        while rows < 1:
            try:
                rows = poll(reader).num_rows
            except ConnectionFailedError:
                continue


@pytest.mark.parametrize("kind", READERS)
def test_pages_of_large_entries_stay_below_the_client_output_buffer_limit(
    any_server: LocalServer, connect: Connect, kind: str
) -> None:
    """A COUNT without a look at sizes asks for 64 MiB: the server cuts such a reply, each time."""
    client = connect(any_server)
    client.config_set("client-output-buffer-limit", f"normal {40 * MIB} 0 0")
    add_sizes(client, [2 * MIB] * 48, KEY)
    with READERS[kind](endpoint_to(any_server)) as reader:
        before = connections(client)
        rows = 0
        while rows < 48:
            rows += poll(reader).num_rows
        assert rows == 48
        assert connections(client) == before


def test_replays_and_restarts_are_not_failures_and_failures_survive_a_restart(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Servers count the entries that are read again, and forget it in a restart; what counts here is stored."""
    server = start_server(program, config={"appendonly": "yes", "appendfsync": "always"})
    client = connect(server)
    stored = add(client, 30)
    options: dict[str, Any] = {"max_failures": 2, "dead_letter_key": "dead", "block": 0.02, "claim": False}
    for replay in range(7):
        consumer = consumer_of(server, **options)
        assert take(consumer, 30) == stored
        if replay == 6:
            consumer.fail_ids(KEY, ["7-0"], "first", delay=0)
            consumer.flush()
        # As a crash: nothing is given back.
        consumer.close(release=False)
    counted = {entry: deliveries for entry, (_, deliveries) in pending_of(client).items()}
    assert counted == dict.fromkeys(stored, 7) | {"7-0": 21}
    server.kill()
    server.restart()
    client = connect(server)
    assert pending_of(client)["7-0"] == (b"c", 21)
    with consumer_of(server, **options) as consumer:
        seen: list[str] = []
        while consumer.report().dead + consumer.report().acked < 30:
            if (batch := consumer.poll(0.05)) is None:
                continue
            seen += batch.entry_ids
            if "7-0" in batch.entry_ids:
                assert batch.entry_ids == ["7-0"]
                consumer.fail(batch, "second", delay=0)
            else:
                consumer.ack(batch)
            consumer.flush()
        report = consumer.flush()
        assert (sorted(seen), report.acked, report.dead) == (sorted(stored), 29, 1)
    (letter,) = client.xrange("dead")
    assert (letter[1][b"dead:id"], letter[1][b"dead:reason"], letter[1][b"dead:failures"]) == (b"7-0", b"second", b"2")
    assert pending_of(client) == {}
