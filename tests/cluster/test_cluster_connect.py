"""Which node an endpoint leads to, with which credentials, and what the errors say."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Consumer, Dispatcher, Endpoint, Group, Reader, RetryPolicy, inspect
from headrace.metrics import PrometheusCollector
from headrace.testing import LocalCluster, LocalServer
from support import Program
from support.certs import Certs
from support.clusters import Move, StartCluster, another_master, endpoint_of, keys_on_all_masters
from support.fake_server import FakeServer, Peer
from support.patience import NEVER, PATIENCE
from support.processes import wait_until


def code_of(endpoint: Endpoint, **options: Any) -> tuple[str, str, str]:
    """Code, kind and message of the failure that a message meets."""
    with Dispatcher(endpoint, **options) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        (failure,) = report.failed
        assert failure.written == "no"
        return failure.code, failure.kind, failure.message


def test_any_stream_is_reachable_from_any_node(cluster: LocalCluster, key: str) -> None:
    owners = set()
    for number in range(12):
        name = f"{key} {number}"
        node = cluster.nodes[number % len(cluster.nodes)]
        endpoint = Endpoint(nodes=[node], stream_key=name)
        owners.add(cluster.owner(name).port)
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce_batch(pa.table({"payload": [b"a", b"b"]}), payload="payload")
            assert dispatcher.flush().delivered == 2
            assert dispatcher.dispatch(b"c")
            assert dispatcher.stats().redirects == 0
        with Reader(endpoint, fields=["payload"], end="latest") as reader:
            assert pa.table(reader)["payload"].to_pylist() == ["a", "b", "c"]
        with Consumer(endpoint, group="g", consumer="c", fields=["payload"]) as consumer:
            batch = consumer.poll(PATIENCE)
            assert batch is not None
            consumer.ack(batch)
        assert pa.table(Group(endpoint, "g").pending()).num_rows == 0
        assert pa.table(inspect(endpoint).streams)["length"].to_pylist() == [3]
    assert len(owners) == 3


def test_a_cluster_of_one_master_has_all_slots(start_cluster: StartCluster, key: str) -> None:
    cluster = start_cluster(masters=1, replicas=0)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        dispatcher.produce_batch(pa.table({"payload": [b"a"] * 50, "key": list(map(str, range(50)))}), stream_key="key")
        assert dispatcher.flush().delivered == 50


def test_urls_and_the_topology_option_reach_the_same_cluster(cluster: LocalCluster, key: str) -> None:
    host, _, port = cluster.nodes[0].partition(":")
    endpoints = [
        endpoint_of(cluster, key),
        Endpoint(nodes=cluster.nodes, topology="cluster", stream_key=key),
        Endpoint.from_url(cluster.url, stream_key=key),
        Endpoint(host=host, port=int(port), topology="cluster", stream_key=key),
        Endpoint.from_url(f"redis://{cluster.nodes[0]}?topology=cluster", stream_key=key),
        Endpoint(host=host, port=int(port), stream_key=key),
    ]
    assert str(endpoints[2]).startswith(f"{cluster.url} stream key ")
    assert endpoints[1] == endpoints[2]
    for endpoint in endpoints:
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
    with Dispatcher(Endpoint(host=host, port=int(port), topology="single", stream_key=key)) as dispatcher:
        dispatcher.produce(b"x")
        assert {failure.code for failure in dispatcher.flush().failed} <= {"MOVED"}, "one server is not left"


def test_slots_match_those_of_the_server(cluster: LocalCluster) -> None:
    """A stream and its dead letters must be in one slot: the error names those of the keys."""
    keys = [b"a", b"{a}", b"x{a}y", b"{}a", b"{a", b"a}", b"{{a}}", b"{a}{b}", b"\x00\xff{\xfe}", b"k" * 300]
    keys += [b"key %d" % number for number in range(200)]
    first = cluster.slot(b"other")
    for key in keys:
        slot = cluster.slot(key)
        assert slot != first
        options = {"group": "g", "consumer": "c", "max_failures": 1, "dead_letter_key": key}
        with pytest.raises(ConfigError) as raised:
            Consumer(endpoint_of(cluster, "s"), [b"other"], **options)  # type: ignore[arg-type]
        assert f"'other' is in slot {first}, " in str(raised.value)
        assert f" in slot {slot};" in str(raised.value)
    Reader(endpoint_of(cluster, "s"), [key for key in keys if cluster.slot(key) == cluster.slot(b"a")])


def test_streams_of_one_slot_are_read_together(cluster: LocalCluster, key: str) -> None:
    keys = [f"{{{key}}}:1", f"{{{key}}}:2"]
    for name in keys:
        with Dispatcher(endpoint_of(cluster, name)) as dispatcher:
            dispatcher.produce(name)
            assert dispatcher.flush().ok
    with Reader(endpoint_of(cluster, "elsewhere"), keys, fields=["payload"], end="latest") as reader:
        assert sorted(pa.table(reader)["payload"].to_pylist()) == keys
    assert pa.table(inspect(endpoint_of(cluster, "elsewhere"), keys).streams).num_rows == 2


def test_streams_of_all_nodes_are_inspected(cluster: LocalCluster, key: str) -> None:
    """One row for each, in the order of their names."""
    keys = keys_on_all_masters(cluster, key)
    for number, name in enumerate(keys):
        with Dispatcher(endpoint_of(cluster, name, consumer_group="g")) as dispatcher:
            for row in range(number + 1):
                dispatcher.produce(b"%d" % row)
            assert dispatcher.flush().ok
        with Consumer(endpoint_of(cluster, name), group="g", consumer="c") as consumer:
            assert consumer.poll(PATIENCE) is not None
    order = [*reversed(keys), f"{key} none"]
    found = inspect(endpoint_of(cluster, key), order)
    assert pa.table(found.streams)["key"].to_pylist() == order
    assert pa.table(found.streams)["length"].to_pylist() == [6, 5, 4, 3, 2, 1, 0]
    for table in (found.groups, found.consumers):
        assert pa.table(table)["stream"].to_pylist() == order[:-1]
    assert len(set(pa.table(found.pending)["stream"].to_pylist())) == 6
    assert found.now is not None


@pytest.mark.needs("redis-8.6")
def test_operations_that_span_several_nodes_are_refused(cluster: LocalCluster, program: Program) -> None:
    endpoint = endpoint_of(cluster, "s")
    with pytest.raises(ConfigError, match=r"^dead_letter_key must be in one slot of the cluster: 's' is in slot"):
        Consumer(endpoint, group="g", consumer="c", dead_letter_key="dead", max_failures=3)
    with pytest.raises(ConfigError, match="a pattern cannot be used with a cluster"):
        inspect(endpoint, "*")


def test_invalid_topology_options_are_refused(cluster: LocalCluster) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topology": "single"}, "with topology 'single' there is one server"),
        ({"topology": "sentinel"}, "topology 'sentinel' needs sentinel_master"),
        ({"topology": "cluster", "sentinel_master": "m"}, "sentinel_master cannot be used with topology 'cluster'"),
        ({"topology": "ring"}, "topology must be one of 'auto', 'single', 'cluster', 'sentinel', got 'ring'"),
        ({"host": "h"}, "host cannot be used with nodes"),
        (
            {"nodes": None, "unix_socket": "/s", "topology": "cluster"},
            "unix_socket cannot be used with topology 'cluster'",
        ),
        ({"nodes": None, "host": "h", "max_redirects": 3}, "max_redirects needs topology 'cluster'"),
        ({"nodes": None, "topology": "sentinel", "host": "h"}, "topology 'sentinel' needs nodes"),
        ({"nodes": None, "topology": "cluster"}, "host is missing (or unix_socket, or nodes)"),
        ({"max_redirects": 0}, "max_redirects must be an integer from 1 to 100, got 0"),
        ({"nodes": ["db1:x"]}, "nodes must be hosts with or without a port ('host:6379'), got 'db1:x'"),
    ]
    for options, start in cases:
        with pytest.raises(ConfigError) as raised:
            endpoint_of(cluster, "s", **options)
        assert str(raised.value).startswith(start), options


def test_nodes_outside_a_cluster_are_refused(server: LocalServer, start_server: Callable[..., LocalServer]) -> None:
    single = start_server(transport="tcp")
    code, kind, message = code_of(Endpoint(nodes=[f"127.0.0.1:{single.port}"], stream_key="s"))
    assert (code, kind) == ("UNSUPPORTED", "permanent")
    assert message == (
        f"the node 127.0.0.1:{single.port} refused CLUSTER SLOTS, which says where a stream is: ERR This instance has "
        "cluster support disabled; for a server that is not a cluster node, give host and topology='single'"
    )
    code, kind, same = code_of(Endpoint(host="127.0.0.1", port=single.port, stream_key="s", topology="cluster"))
    assert (code, kind, same) == ("UNSUPPORTED", "permanent", message)
    single.kill()
    code, kind, message = code_of(Endpoint(nodes=[f"127.0.0.1:{single.port}"], stream_key="s"))
    assert (code, kind) == ("NO_SLOT", "retryable")
    assert message.startswith("no node says which node has slot 3828: cannot connect to the node 127.0.0.1:")


@pytest.mark.needs("redis-8.6")
def test_missing_rights_and_wrong_passwords_are_reported(start_cluster: StartCluster, program: Program) -> None:
    rights = "~* +xadd +client|setinfo +client|setname"
    users = [f"app on >geheim {rights} +cluster|slots +asking", f"blind on >geheim {rights}"]
    cluster = start_cluster(config={"requirepass": "daten", "user": users})
    with Dispatcher(endpoint_of(cluster, "s", username="app", password="geheim")) as dispatcher:
        for _ in range(2):
            dispatcher.produce(b"x")
            assert dispatcher.flush().ok
            cluster.fail_over("s")
    code, kind, message = code_of(endpoint_of(cluster, "s", username="blind", password="geheim"))
    assert (code, kind) == ("NOPERM", "permanent")
    assert "refused CLUSTER SLOTS, which says where a stream is: " in message
    assert "'cluster|slots'" in message
    assert message.endswith(
        "; the user needs the right +cluster|slots, or give host and topology='single' to use this node alone"
    )
    code, kind, message = code_of(endpoint_of(cluster, "s", username="app", password="falsch"))
    assert (code, kind) == ("WRONGPASS", "permanent")
    assert "falsch" not in message
    node: dict[str, Any] = {"host": "127.0.0.1", "port": cluster.servers[0].port, "topology": "cluster"}
    for named in ({"nodes": cluster.nodes}, node):
        code, kind, message = code_of(Endpoint(**named, stream_key="s", password="daten", db=1))
        assert code == "ERR"
        assert "SELECT was refused: " in message
        assert message.endswith(
            "; a cluster has database 0 only, unless cluster-databases of Valkey allows more: leave db out"
        )


@pytest.mark.needs("redis-8.6")
def test_tls_with_every_node(start_cluster: StartCluster, program: Program, certs: Certs) -> None:
    pair = certs.server
    cluster = start_cluster(tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca)
    with Dispatcher(Endpoint.from_url(cluster.url, stream_key="s", tls_ca_cert=certs.ca)) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
        cluster.fail_over("s")
        dispatcher.produce(b"y")
        assert dispatcher.flush().ok
    code, kind, message = code_of(Endpoint.from_url(cluster.url, stream_key="s", tls_ca_cert=certs.other_ca))
    assert (code, kind) == ("TLS", "permanent"), message


def test_tls_on_the_plain_port_of_a_node_times_out(cluster: LocalCluster, key: str) -> None:
    """Redis 7.0 names that one over TLS too, unless its cluster bus has TLS."""
    endpoint = Endpoint(nodes=cluster.nodes[:1], stream_key=key, tls=True, connect_timeout=4.0)
    code, kind, message = code_of(endpoint)
    assert (code, kind) == ("NO_SLOT", "retryable")
    assert "within 4 s: timed out in the TLS handshake; a server that does not speak TLS " in message


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize("kind", ["hostname", "unknown-endpoint"])
def test_nodes_are_found_with_and_without_announced_hostnames(
    start_cluster: StartCluster, program: Program, kind: str
) -> None:
    """Without a name to show (`?`) it is the address in the metadata; without an endpoint, the host that answered."""
    cluster = start_cluster(config={"cluster-preferred-endpoint-type": kind})
    with Dispatcher(endpoint_of(cluster, "s")) as dispatcher:
        for _ in range(2):
            dispatcher.produce(b"x")
            assert dispatcher.flush().ok
            cluster.fail_over("s")
    for server in cluster.servers:
        with redis.Redis(port=server.port or 0) as client:
            client.config_set("cluster-announce-hostname", "localhost")
    with Dispatcher(endpoint_of(cluster, "s")) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


# What no real node sends


def slots(*ports: int) -> bytes:
    """The reply to CLUSTER SLOTS of nodes that share all slots; the first one has that of `s`, 3828."""
    bounds = [0, *(4_000 + number for number in range(len(ports) - 1)), 16_384]
    rows = [
        b"*3\r\n:%d\r\n:%d\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$1\r\nx\r\n" % (first, behind - 1, port)
        for first, behind, port in zip(bounds, bounds[1:], ports, strict=False)
    ]
    return b"*%d\r\n%s" % (len(rows), b"".join(rows))


def node(answer: Callable[[list[bytes]], bytes]) -> FakeServer:
    """A node that answers each command."""

    def script(peer: Peer) -> None:
        while commands := peer.commands(1):
            peer.send(b"+OK\r\n" if commands[0][0] == b"CLIENT" else answer(commands[0]))

    return FakeServer(*[script] * 40, handshake=False)


@pytest.mark.parametrize("says", [b"MOVED", b"ASK"])
def test_a_node_that_the_cluster_does_not_list_is_never_contacted(says: bytes) -> None:
    with FakeServer(handshake=False) as stranger:

        def answer(command: list[bytes]) -> bytes:
            if command[0] == b"CLUSTER":
                return slots(liar.port)
            return b"+OK\r\n" if command[0] == b"AUTH" else b"-%s 3828 127.0.0.1:%d\r\n" % (says, stranger.port)

        with node(answer) as liar:
            endpoint = Endpoint(nodes=[f"127.0.0.1:{liar.port}"], stream_key="s", password="geheim", max_redirects=3)
            with Dispatcher(endpoint) as dispatcher:
                dispatcher.produce(b"x")
                (failure,) = dispatcher.flush().failed
                assert (failure.code, failure.kind, failure.written) == (says.decode(), "retryable", "no")
                assert dispatcher.stats().redirects == 3
        assert stranger.accepted == 0


def test_a_retry_policy_waits_until_the_nodes_agree() -> None:
    """As for a node that takes over its first slot, which no node lists before."""
    asked = 0

    def answer(command: list[bytes]) -> bytes:
        nonlocal asked
        if command[0] == b"CLUSTER":
            return slots(first.port)
        asked += 1
        return b"-ASK 3828 127.0.0.1:1\r\n" if asked <= 10 else b"$3\r\n7-1\r\n"

    with node(answer) as first:
        endpoint = Endpoint(nodes=[f"127.0.0.1:{first.port}"], stream_key="s", max_redirects=3)
        with Dispatcher(endpoint, retry=RetryPolicy(initial_backoff=0.01, max_backoff=0.01)) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
            assert dispatcher.stats().redirects == 8
    assert asked == 11


def test_one_row_is_sent_alone_until_a_node_accepts_it() -> None:
    """A node that gets the slot in the middle of a window would write what comes behind before what it has refused."""
    windows: list[int] = []

    def old(command: list[bytes]) -> bytes:
        return (
            slots(first.port, second.port)
            if command[0] == b"CLUSTER"
            else b"-MOVED 3828 127.0.0.1:%d\r\n" % second.port
        )

    def new(peer: Peer) -> None:
        for _ in range(3):
            peer.commands(1)
            peer.send(b"+OK\r\n")
        replies = [b"-MOVED 3828 127.0.0.1:%d\r\n" % second.port] * 2
        replies += [b"$%d\r\n7-%d\r\n" % (len(f"7-{number}"), number) for number in range(100)]
        for reply in replies:
            (row,) = peer.commands(1)
            windows.append(int(row[row.index(b"payload") + 1]))
            peer.send(reply)
        peer.commands(1)

    with node(old) as first, FakeServer(new, handshake=False) as second:
        endpoint = Endpoint(nodes=[f"127.0.0.1:{first.port}"], stream_key="s", connect_timeout=NEVER)
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce_batch(
                pa.table({"payload": [b"%d" % number for number in range(100)]}), payload="payload"
            )
            report = dispatcher.flush()
            assert report.delivered == 100
    assert windows == [0, 0, *range(100)]


@pytest.mark.parametrize(
    "reply",
    [
        b"*0\r\n",
        b"+OK\r\n",
        b"*1\r\n*2\r\n:0\r\n:16383\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\na\r\n:1\r\n",
    ],
)
def test_messages_fail_when_the_slot_map_is_unusable(reply: bytes) -> None:
    with node(lambda _: reply) as liar:
        code, kind, message = code_of(Endpoint(nodes=[f"127.0.0.1:{liar.port}"], stream_key="s"))
        assert (code, kind) == ("NO_SLOT" if reply == b"*0\r\n" else "PROTOCOL", "retryable"), message


def test_a_message_fails_permanently_when_asking_is_refused() -> None:
    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return slots(first.port, second.port)
        return b"-ASK 3828 127.0.0.1:%d\r\n" % second.port

    def refuse(command: list[bytes]) -> bytes:
        return b"-NOPERM User app has no permissions to run the 'asking' command\r\n"

    with node(answer) as first, node(refuse) as second:
        code, kind, message = "", "", ""
        with Dispatcher(Endpoint(nodes=[f"127.0.0.1:{first.port}"], stream_key="s")) as dispatcher:
            dispatcher.produce(b"x")
            (failure,) = dispatcher.flush().failed
            code, kind, message = failure.code, failure.kind, failure.message
        assert (code, kind) == ("NOPERM", "permanent")
        assert message.startswith("ASKING was refused: ")


def test_metrics_name_the_nodes(cluster: LocalCluster, key: str) -> None:
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        families = list(PrometheusCollector(dispatcher).collect())
        servers = {sample.labels["server"] for family in families for sample in family.samples}
        assert servers == {",".join(cluster.nodes)}


def test_a_new_connection_retries_its_check_while_its_stream_is_moving(cluster: LocalCluster, key: str) -> None:
    """The node that still has the slot refuses the check, until it names the other one."""
    source = cluster.owner(key)
    with redis.Redis(unix_socket_path=source.unix_socket) as client:

        def refused() -> int:
            errors: Any = client.info("errorstats")
            return int(errors.get("errorstat_ASK", {"count": 0})["count"])

        client.xadd(key, {"payload": "before"})
        move = Move(cluster, key, another_master(cluster, key))
        move.take(key)
        before = refused()
        with Dispatcher(endpoint_of(cluster, key), exactly_once="script") as dispatcher, ThreadPoolExecutor() as pool:
            dispatcher.begin("token")
            dispatcher.produce(b"behind")
            flush = pool.submit(dispatcher.flush)
            wait_until(lambda: refused() >= before + 3)
            move.finish()
            assert flush.result().ok
    with redis.Redis(unix_socket_path=cluster.owner(key).unix_socket) as client:
        entries: Any = client.xrange(key)
        assert [fields[b"payload"] for _, fields in entries] == [b"before", b"behind"]
