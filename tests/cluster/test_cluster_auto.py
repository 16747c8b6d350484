"""`topology="auto"`: the server of `host` says in its reply to HELLO whether it is a node of a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import (
    CommandError,
    ConfigError,
    Consumer,
    Dispatcher,
    Endpoint,
    Group,
    Reader,
    RetryPolicy,
    inspect,
)
from headrace.testing import LocalCluster, LocalSentinel, LocalServer
from support import Program
from support.certs import Certs
from support.clusters import StartCluster, another_master, keys_on_all_masters, rows_of
from support.fake_node import FakeNode
from support.fixture_types import StartServer
from support.patience import NEVER, PATIENCE

#: How messages are sent. Each is a row in one of the streams, or in a shard.
MODES: dict[str, dict[str, Any]] = {
    "off": {},
    "retry": {"retry": RetryPolicy()},
    "script": {"exactly_once": "script"},
    "wait_replicas": {"wait_replicas": 1, "wait_timeout": PATIENCE, "wait_every": 50},
    "small window": {"window_max_entries": 8},
}
IN_EACH_MODE = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
IDMP = {"exactly_once": "idmp"}


def auto(server: LocalServer, key: str | bytes, **options: Any) -> Endpoint:
    return Endpoint(**{"host": "127.0.0.1", "port": server.port, "stream_key": key, **options})


def connect(server: LocalServer) -> redis.Redis:
    """A client that does not send HELLO itself."""
    return redis.Redis(port=server.port or 0, protocol=2)


def foreign(cluster: LocalCluster, key: str) -> LocalServer:
    """A node that would send a message for `key` elsewhere."""
    return another_master(cluster, key)


def table(keys: list[str], rows: range) -> pa.Table:
    columns: dict[str, Any] = {"payload": [b"%d" % n for n in rows], "key": [keys[n % len(keys)] for n in rows]}
    return pa.table(columns)


def failure_of(endpoint: Endpoint) -> tuple[str, str, str]:
    """Code, kind and message of the failure that a message meets."""
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
        assert failure.written == "no"
        return failure.code, failure.kind, failure.message


# The dispatcher


@IN_EACH_MODE
def test_messages_go_directly_to_the_node_of_their_stream(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    write_to_one_stream(cluster, key, mode)


@pytest.mark.needs("idmp")
def test_messages_with_idmp_go_directly_to_the_node_of_their_stream(cluster: LocalCluster, key: str) -> None:
    write_to_one_stream(cluster, key, IDMP)


def write_to_one_stream(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    with Dispatcher(auto(foreign(cluster, key), key), **mode) as dispatcher:
        dispatcher.produce(b"0")
        dispatcher.produce_batch(pa.table({"payload": [b"%d" % n for n in range(1, 300)]}), payload="payload")
        assert dispatcher.flush().delivered == 300
        dispatcher.produce(b"300")
        assert dispatcher.flush().delivered == 1
        stats = dispatcher.stats()
        assert (stats.connections, stats.redirects) == (1, 0)
        assert [node.address for node in stats.nodes if node.connections] == [f"127.0.0.1:{cluster.owner(key).port}"]
    assert rows_of(cluster, key) == list(range(301))


@IN_EACH_MODE
def test_messages_go_directly_to_streams_on_all_nodes(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    keys = keys_on_all_masters(cluster, key)
    with Dispatcher(auto(cluster.servers[0], keys[0]), **mode) as dispatcher:
        dispatcher.produce_batch(table(keys, range(1_200)), payload="payload", stream_key="key")
        assert dispatcher.flush().delivered == 1_200
        stats = dispatcher.stats()
        assert (stats.connections, stats.redirects) == (3, 0)
    for number, name in enumerate(keys):
        assert rows_of(cluster, name) == list(range(number, 1_200, len(keys))), name


@IN_EACH_MODE
def test_messages_go_directly_to_the_nodes_of_their_shards(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    endpoint = auto(foreign(cluster, key), key, shards=12)
    with Dispatcher(endpoint, **mode) as dispatcher:
        for n in range(50):
            dispatcher.produce(b"%d" % n)
        dispatcher.produce_batch(table([key], range(50, 600)).drop(["key"]), payload="payload")
        assert dispatcher.flush().delivered == 600
        assert (dispatcher.stats().connections, dispatcher.stats().redirects) == (3, 0)
    assert sorted(row for shard in range(12) for row in rows_of(cluster, f"{key}:{shard}")) == list(range(600))
    with Reader(endpoint, fields=["payload"], end="latest") as reader:
        assert sorted(map(int, pa.table(reader)["payload"].to_pylist())) == list(range(600))


def test_maxlen_consumer_group_and_nomkstream_apply_in_a_cluster(cluster: LocalCluster, key: str) -> None:
    node = foreign(cluster, key)
    assert failure_of(auto(node, key, nomkstream=True))[0] == "NO_STREAM"
    endpoint = auto(node, key, maxlen=10, maxlen_approximate=False, consumer_group="g")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(pa.table({"payload": [b"%d" % n for n in range(100)]}), payload="payload")
        assert dispatcher.flush().delivered == 100
        assert dispatcher.dispatch(b"100")
    assert rows_of(cluster, key) == list(range(91, 101))
    with connect(cluster.owner(key)) as client:
        assert [group["name"] for group in client.xinfo_groups(key)] == [b"g"]


def test_messages_follow_a_moved_slot(cluster: LocalCluster, key: str) -> None:
    with Dispatcher(auto(foreign(cluster, key), key)) as dispatcher:
        for n in range(10):
            dispatcher.produce(b"%d" % n)
            assert dispatcher.flush().ok
            cluster.move_slot(key, another_master(cluster, key))
        assert dispatcher.stats().redirects == 9
    assert rows_of(cluster, key) == list(range(10))


def test_deduplication_does_not_depend_on_how_the_cluster_was_found(cluster: LocalCluster, key: str) -> None:
    """Tokens and markers do not depend on how the cluster was found."""
    rows = pa.table({"payload": [b"%d" % n for n in range(20)]})
    reports = []
    ways = [
        Endpoint(nodes=cluster.nodes, stream_key=key),
        auto(foreign(cluster, key), key),
        auto(cluster.owner(key), key, topology="single"),
    ]
    for endpoint in ways:
        with Dispatcher(endpoint, exactly_once="script") as dispatcher:
            dispatcher.begin("token")
            dispatcher.produce_batch(rows, payload="payload")
            reports.append(dispatcher.flush())
    assert [report.deduplicated for report in reports] == [0, 20, 20]
    assert rows_of(cluster, key) == list(range(20))


# What was encoded before the first connect goes where the server turns out to have it.


@IN_EACH_MODE
def test_messages_wait_for_a_cluster_that_is_down(start_cluster: StartCluster, mode: dict[str, Any]) -> None:
    write_while_away(start_cluster(masters=1).servers[0], list("abcdef"), mode, is_of_cluster=True)


@pytest.mark.parametrize("mode", [MODES["off"], MODES["script"], MODES["small window"]], ids=str)
def test_messages_wait_for_a_single_server_that_is_down(
    start_server: StartServer, program: Program, mode: dict[str, Any]
) -> None:
    write_while_away(start_server(program, transport="tcp"), list("abcdef"), mode, is_of_cluster=False)


@pytest.mark.needs("idmp")
@pytest.mark.parametrize("is_of_cluster", [True, False])
def test_messages_with_idmp_wait_for_a_server_that_is_down(
    start_cluster: StartCluster, start_server: StartServer, program: Program, is_of_cluster: bool
) -> None:
    server = start_cluster(masters=1).servers[0] if is_of_cluster else start_server(program, transport="tcp")
    write_while_away(server, ["a"], IDMP, is_of_cluster)


def write_while_away(server: LocalServer, keys: list[str], mode: dict[str, Any], is_of_cluster: bool) -> None:
    server.kill()
    names: dict[str, Any] = {"stream_key": "key"} if len(keys) > 1 else {}
    rows = table(keys, range(600)) if names else table(keys, range(600)).drop(["key"])
    count = mode.get("window_max_entries", 301) - 1
    waits = {**mode, "retry": RetryPolicy(initial_backoff=0.01, max_backoff=0.05, deadline=NEVER)}
    with Dispatcher(auto(server, keys[0]), **waits) as dispatcher:
        dispatcher.produce_batch(rows.slice(0, count), payload="payload", **names)
        report = dispatcher.flush(0.2)
        assert (report.delivered, len(report.failed)) == (0, count)
        dispatcher.skip_failed()
        dispatcher.produce_batch(rows.slice(0, count), payload="payload", **names)
        dispatcher.poll()
        server.restart()
        dispatcher.produce_batch(rows.slice(count), payload="payload", **names)
        assert dispatcher.flush().delivered == 600
        dispatcher.produce(b"last")
        assert dispatcher.flush().delivered == 1
        assert len(dispatcher.stats().nodes) == is_of_cluster
    with connect(server) as client:
        for number, name in enumerate(keys):
            found = [fields[b"payload"] for _, fields in client.xrange(name) if fields[b"payload"] != b"last"]
            if is_of_cluster and mode != MODES["script"]:
                # A restarted cluster is down at first: with a policy alone that may end in the middle of a window.
                found.sort(key=int)
            assert found == [b"%d" % n for n in range(number, 600, len(keys))], name


# Readers and administration


def fill(cluster: LocalCluster, keys: list[str], count: int = 40) -> list[tuple[str, int]]:
    for name in keys:
        with connect(cluster.owner(name)) as client:
            for n in range(count):
                client.xadd(name, {"payload": n})
    return [(name, n) for name in sorted(keys) for n in range(count)]


def rows_read(batches: Any) -> list[tuple[str, int]]:
    rows = pa.table(batches).to_pylist()
    return sorted(((row["stream"], int(row["payload"])) for row in rows), key=lambda row: row[0])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reader_reads_and_resumes_streams_of_all_nodes(cluster: LocalCluster, key: str, reverse: bool) -> None:
    keys = keys_on_all_masters(cluster, f"{key} {reverse}")
    written = fill(cluster, keys)
    options: dict[str, Any] = {"fields": ["payload"], "metadata": ["stream"]}
    options |= {"reverse": True} if reverse else {"end": "latest"}
    endpoint = auto(cluster.servers[0], "elsewhere")
    with Reader(endpoint, keys, limit=100, **options) as reader:
        first = rows_read(reader)
        position = reader.position
    assert len(first) == 100
    with Reader(endpoint, keys, start=position, **options) as reader:
        rest = rows_read(reader)
    assert sorted(first + rest) == written
    with Reader(Endpoint(nodes=cluster.nodes, stream_key="elsewhere"), keys, start=position, **options) as reader:
        assert rows_read(reader) == rest, "a position does not depend on how the cluster was found"


def test_a_reader_follows_a_moved_stream(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    written = fill(cluster, keys)
    with Reader(auto(cluster.servers[0], keys[0]), keys, fields=["payload"], metadata=["stream"]) as reader:
        found: list[tuple[str, int]] = []
        while len(found) < len(written):
            batch = reader.read(PATIENCE)
            assert batch is not None
            found += rows_read(batch)
        cluster.move_slot(keys[1], another_master(cluster, keys[1]))
        written += fill(cluster, keys)
        while len(found) < len(written):
            batch = reader.read(PATIENCE)
            assert batch is not None
            found += rows_read(batch)
    assert sorted(found) == sorted(written)


def test_a_consumer_and_its_group_follow_a_moved_slot(cluster: LocalCluster, key: str) -> None:
    keys = [f"{{{key}}}:1", f"{{{key}}}:2"]
    written = fill(cluster, keys)
    endpoint = auto(foreign(cluster, key), keys[0])
    group = Group(endpoint, "g")
    assert group.create(start="earliest")
    assert not group.create()
    with Consumer(endpoint, keys, group="g", consumer="c", fields=["payload"], metadata=["stream"]) as consumer:
        found: list[tuple[str, int]] = []
        while len(found) < len(written):
            batch = consumer.poll(PATIENCE)
            assert batch is not None
            found += rows_read(batch)
            consumer.ack(batch)
        consumer.flush()
        cluster.move_slot(key, another_master(cluster, key))
        fill(cluster, keys, 1)
        batch = consumer.poll(PATIENCE)
        assert batch is not None
        assert pa.table(group.pending()).num_rows <= 1
        consumer.ack(batch)
    assert sorted(found) == written


def test_inspect_shows_streams_of_all_nodes(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    fill(cluster, keys, 3)
    endpoint = auto(cluster.servers[0], keys[0])
    found = pa.table(inspect(endpoint, keys).streams)
    assert found["key"].to_pylist() == keys
    assert found["length"].to_pylist() == [3] * len(keys)
    with pytest.raises(ConfigError, match="a pattern cannot be used with a cluster"):
        inspect(endpoint, "*")


# What the server says, and what follows


def test_an_endpoint_from_a_url_detects_the_cluster_after_pickling(cluster: LocalCluster, key: str) -> None:
    endpoint = Endpoint.from_url(f"redis://127.0.0.1:{foreign(cluster, key).port}", stream_key=key)
    with Dispatcher(pickle.loads(pickle.dumps(endpoint))) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1
    assert endpoint.topology == "auto"
    assert str(endpoint).startswith("redis://")
    assert rows_of(cluster, key) == [0]


@pytest.mark.needs("redis-8.6")
def test_tls(start_cluster: StartCluster, certs: Certs) -> None:
    pair = certs.server
    cluster = start_cluster(replicas=0, tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca)
    with Dispatcher(auto(foreign(cluster, "s"), "s", tls=True, tls_ca_cert=certs.ca)) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


def commands_of(server: LocalServer) -> set[str]:
    """The commands that the server was sent since it began to count."""
    with connect(server) as client:
        return {name.removeprefix("cmdstat_") for name in client.info("commandstats")}


def forget_commands(server: LocalServer) -> int:
    """Begin to count. Returns the number of connections so far, this one included."""
    with connect(server) as client:
        client.config_resetstat()
        return int(client.info("stats")["total_connections_received"])


def test_topology_single_neither_discovers_nodes_nor_follows_redirects(cluster: LocalCluster, key: str) -> None:
    """A proxy that speaks for the cluster needs that."""
    node = foreign(cluster, key)
    forget_commands(node)
    code, kind, message = failure_of(auto(node, key, topology="single"))
    assert (code, kind) == ("MOVED", "retryable")
    assert message.startswith(f"MOVED {cluster.slot(key)} ")
    assert not {"hello", "cluster", "cluster|slots"} & commands_of(node)
    with pytest.raises(CommandError, match="MOVED"):
        Group(auto(node, key, topology="single"), "g").create()


def test_topology_detection_needs_no_extra_connection(start_server: StartServer, program: Program) -> None:
    server = start_server(program, transport="tcp")
    endpoint = auto(server, "s", consumer_group="g")
    before = forget_commands(server)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1
        with connect(server) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        dispatcher.produce(b"1")
        assert dispatcher.flush().delivered == 1
        assert dispatcher.stats().nodes == ()
    with Reader(endpoint, ["s", "t"], fields=["payload"], end="latest") as reader:
        assert pa.table(reader)["payload"].to_pylist() == ["0", "1"]
    assert pa.table(inspect(endpoint, ["s", "t"]).streams)["length"].to_pylist() == [2, 0]
    assert pa.table(Group(endpoint, "g").pending()).num_rows == 0
    with connect(server) as client:
        stats = client.info("commandstats")
        # Of these two connections of this test.
        assert int(client.info("stats")["total_connections_received"]) - before == 5 + 2
        if server.version != "6.2":
            assert stats["cmdstat_hello"]["calls"] == 4


@pytest.mark.parametrize("db", [0, 1])
def test_a_server_that_refuses_hello_is_used_as_a_single_server(
    start_server: StartServer, program: Program, db: int
) -> None:
    """An ACL cannot refuse it: that is done by proxies, by servers before 6.0, and where it has another name."""
    server = start_server(program, transport="tcp", config={"rename-command": 'HELLO ""'})
    with connect(server) as client, pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("HELLO", 2)
    endpoint = auto(server, "s", db=db)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1
    with Reader(endpoint, fields=["payload"], end="latest") as reader:
        assert pa.table(reader)["payload"].to_pylist() == ["0"]


def test_redirects_are_not_followed_when_a_cluster_refuses_hello(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0, config={"rename-command": 'HELLO ""'})
    assert failure_of(auto(foreign(cluster, "s"), "s"))[0] == "MOVED"


def test_hello_needs_no_acl_right(start_cluster: StartCluster) -> None:
    """It is how a connection begins: every user may."""
    cluster = start_cluster(replicas=0, config={"user": "app on >geheim ~* +xadd +cluster|slots"})
    with Dispatcher(auto(foreign(cluster, "s"), "s", username="app", password="geheim")) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1


def test_the_missing_right_to_cluster_slots_is_named(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0, config={"user": "blind on >geheim ~* +@all -cluster"})
    endpoint = auto(foreign(cluster, "s"), "s", username="blind", password="geheim")
    code, kind, message = failure_of(endpoint)
    assert (code, kind) == ("NOPERM", "permanent")
    expected = "; the user needs the right +cluster|slots, or give host and topology='single'"
    assert expected in message
    for start in (Reader, inspect, partial(Consumer, group="g", consumer="c")):
        with pytest.raises(CommandError) as raised:
            start(endpoint)
        assert expected in str(raised.value)
        assert raised.value.code == "NOPERM"


def test_a_missing_password_is_reported_as_noauth(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0, config={"requirepass": "daten"})
    with Dispatcher(auto(foreign(cluster, "s"), "s", password="daten")) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1
    code, kind, message = failure_of(auto(foreign(cluster, "s"), "s"))
    assert (code, kind) == ("NOAUTH", "permanent")
    assert "HELLO" not in message


def test_a_cluster_refuses_databases_other_than_0(
    cluster: LocalCluster, start_server: StartServer, program: Program, key: str
) -> None:
    code, _, message = failure_of(auto(foreign(cluster, key), key, db=1))
    assert code == "ERR"
    assert message.endswith(
        "; a cluster has database 0 only, unless cluster-databases of Valkey allows more: leave db out"
    )
    server = start_server(program, transport="tcp")
    code, _, message = failure_of(auto(server, key, db=99))
    assert code == "ERR"
    assert "cluster has" not in message
    with Dispatcher(auto(server, key, db=1)) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1


@pytest.mark.needs("valkey-9.1")
def test_a_cluster_with_several_databases_accepts_database_1(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0, config={"cluster-databases": "4"})
    with Dispatcher(auto(foreign(cluster, "s"), "s", db=1)) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().delivered == 1
    with redis.Redis(port=cluster.owner("s").port or 0, db=1) as client:
        assert client.xlen("s") == 1


@pytest.fixture
def sentinel(program: Program) -> Iterator[LocalSentinel]:
    with LocalSentinel(program.path) as group:
        yield group


@pytest.mark.parametrize("db", [0, 1])
def test_a_sentinel_as_host_is_refused(sentinel: LocalSentinel, db: int) -> None:
    host, _, port = sentinel.nodes[0].partition(":")
    endpoint = Endpoint(host=host, port=int(port), stream_key="s", db=db)
    code, kind, message = failure_of(endpoint)
    assert (code, kind) == ("UNSUPPORTED", "permanent")
    assert message == (
        f"cannot connect to {host}:{port}: it is a sentinel, which holds no streams but knows the server that does: "
        "pass it as nodes instead of host, with sentinel_master, the name of the master"
    )
    with pytest.raises(CommandError, match="sentinel_master"):
        Reader(endpoint)


def test_a_later_redirect_does_not_change_the_detected_topology() -> None:
    """Of what waits, or is in doubt, the place is among the messages of one server: a later node is not followed."""

    def first(command: list[bytes]) -> bytes:
        return b"+OK\r\n" if command[0] in (b"HELLO", b"CLIENT") else b"$3\r\n7-1\r\n"

    def moved(command: list[bytes]) -> bytes:
        return b"+OK\r\n" if command[0] in (b"HELLO", b"CLIENT") else b"-MOVED 3828 127.0.0.1:1\r\n"

    with FakeNode(first) as node:
        with Dispatcher(Endpoint(host="127.0.0.1", port=node.port, stream_key="s")) as dispatcher:
            dispatcher.produce(b"0")
            assert dispatcher.flush().delivered == 1
            node.answer = moved
            dispatcher.produce(b"1")
            (failure,) = dispatcher.flush().failed
            assert (failure.code, failure.kind) == ("MOVED", "retryable")
        assert node.count(b"HELLO") == 1
        assert node.count(b"CLUSTER") == 0


@pytest.mark.parametrize(
    "hello",
    [
        b"-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n",
        b"-NOPERM this user has no permissions to run the 'hello' command\r\n",
        b"*0\r\n",
        b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n",
        b"*2\r\n$4\r\nmode\r\n:7\r\n",
        b"*2\r\n$4\r\nmode\r\n$-1\r\n",
        b"*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n",
        b"$7\r\ncluster\r\n",
    ],
)
def test_a_hello_reply_without_cluster_mode_means_a_single_server(hello: bytes) -> None:
    def answer(command: list[bytes]) -> bytes:
        return {b"HELLO": hello, b"CLIENT": b"+OK\r\n"}.get(command[0], b"$3\r\n7-1\r\n")

    with FakeNode(answer) as node:
        with Dispatcher(Endpoint(host="127.0.0.1", port=node.port, stream_key="s")) as dispatcher:
            dispatcher.produce(b"0")
            assert dispatcher.flush().delivered == 1
        assert (node.count(b"HELLO"), node.count(b"CLUSTER"), node.accepted) == (1, 0, 1)
