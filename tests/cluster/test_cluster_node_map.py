"""Nodes that show addresses which lead nowhere from here: `node_map` has those that do."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Consumer, Dispatcher, Endpoint, Reader, inspect
from headrace.testing import LocalCluster, LocalServer
from support import Program
from support.certs import Certs
from support.clusters import StartCluster, another_master, rows_of
from support.patience import PATIENCE
from support.processes import wait_until


@pytest.fixture
def hidden(start_cluster: StartCluster, program: Program) -> LocalCluster:
    """A cluster whose nodes show names that do not resolve."""
    cluster = start_cluster(config={"cluster-preferred-endpoint-type": "hostname"})
    hide(cluster)
    return cluster


def hide(cluster: LocalCluster) -> None:
    """Give the nodes names that do not resolve. Each knows its own name at once, and those of the others later."""
    names = {b"node-%d.invalid" % (server.port or 0) for server in cluster.servers}

    def are_known_by(server: LocalServer) -> bool:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            shards = client.execute_command("CLUSTER SHARDS")
        return {node.get(b"hostname") for shard in shards for node in shard[b"nodes"]} == names

    for server in cluster.servers:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            client.config_set("cluster-announce-hostname", f"node-{server.port}.invalid")
    wait_until(lambda: all(are_known_by(server) for server in cluster.servers))


def map_of(cluster: LocalCluster) -> dict[str, str]:
    return {f"node-{server.port}.invalid:{server.port}": f"127.0.0.1:{server.port}" for server in cluster.servers}


@pytest.mark.needs("redis-8.6")
def test_slots_and_redirects_are_mapped(hidden: LocalCluster, key: str) -> None:
    keys = [f"{key} {number}" for number in range(8)]
    rows = {"payload": [b"%d" % row for row in range(80)], "to": [keys[row % 8] for row in range(80)]}
    endpoint = Endpoint(nodes=hidden.nodes[:1], stream_key=keys[0], node_map=map_of(hidden))
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(pa.table(rows), payload="payload", stream_key="to")
        assert dispatcher.flush().delivered == 80
        hidden.move_slot(keys[0], another_master(hidden, keys[0]))
        hidden.fail_over(keys[1])
        dispatcher.produce_batch(pa.table(rows), payload="payload", stream_key="to")
        assert dispatcher.flush().delivered == 80
        assert dispatcher.stats().redirects >= 1
    assert rows_of(hidden, keys[0]) == list(range(0, 80, 8)) * 2
    with Reader(endpoint, fields=["payload"], end="latest") as reader:
        assert pa.table(reader).num_rows == 20
    with Consumer(endpoint, group="g", consumer="c", fields=["payload"]) as consumer:
        assert consumer.poll(PATIENCE) is not None
    assert pa.table(inspect(endpoint).streams)["length"].to_pylist() == [20]


@pytest.mark.needs("redis-8.6")
def test_hidden_nodes_are_unreachable_without_a_node_map(hidden: LocalCluster, key: str) -> None:
    with Dispatcher(Endpoint(nodes=hidden.nodes[:1], stream_key=key)) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
        assert (failure.code, failure.written) == ("DNS", "no")
        assert ".invalid:" in failure.message


@pytest.mark.needs("redis-8.6")
def test_the_node_map_is_accepted_in_urls_json_and_text(hidden: LocalCluster, key: str) -> None:
    pairs = ",".join(f"{shown}={used}" for shown, used in sorted(map_of(hidden).items()))
    host, _, port = hidden.nodes[0].partition(":")
    url = f"redis+cluster://{hidden.nodes[0]}?node_map={pairs.replace('=', '%3D')}"
    for endpoint in (
        Endpoint.from_url(url, stream_key=key),
        Endpoint(nodes=hidden.nodes[0], stream_key=key, node_map=json.dumps(map_of(hidden))),
        Endpoint(host=host, port=int(port), stream_key=key, topology="cluster", node_map=pairs),
    ):
        assert endpoint.node_map == pairs
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().ok


@pytest.mark.needs("redis-8.6")
def test_certificates_are_verified_against_the_mapped_address(
    start_cluster: StartCluster, program: Program, certs: Certs
) -> None:
    """Not the one that the nodes show: a name that comes over the network proves nothing."""
    pair = certs.server
    types = {"cluster-preferred-endpoint-type": "hostname"}
    cluster = start_cluster(config=types, tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca)
    hide(cluster)
    named: dict[str, Any] = {"nodes": cluster.nodes[:1], "stream_key": "s", "tls": True, "tls_ca_cert": certs.ca}
    with Dispatcher(Endpoint(**named, node_map=map_of(cluster))) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
    with Dispatcher(Endpoint(**named, node_map=map_of(cluster), tls_server_name="other.invalid")) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
        assert failure.code == "TLS"


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"node_map": {}}, "node_map must be a mapping from addresses 'host:port' to addresses"),
        ({"node_map": {"a:1": 7}}, "node_map must be a mapping from addresses 'host:port' to addresses"),
        ({"node_map": ["a:1"]}, "node_map must be a mapping from addresses 'host:port' to addresses"),
        ({"node_map": "a:1"}, "node_map must be a mapping from addresses 'host:port' to addresses"),
        ({"node_map": {"a:1": "b:x"}}, "node_map must be hosts with or without a port ('host:6379'), got 'b:x'"),
        ({"node_map": {"a:0": "b:1"}}, "node_map must be hosts with or without a port ('host:6379'), got 'a:0'"),
        ({"node_map": {"a": "b", "A:6379": "c"}}, "node_map must map each address once, got 'a:6379' twice"),
        ({"node_map": {"a": "b"}, "topology": "single"}, "node_map needs topology 'cluster'"),
        ({"node_map": {"a": "b"}, "host": None, "unix_socket": "/s"}, "node_map needs topology 'cluster'"),
        (
            {"node_map": {"a": "b"}, "host": None, "nodes": ["s:1"], "sentinel_master": "m"},
            "node_map needs topology 'cluster'",
        ),
    ],
)
def test_invalid_node_maps_are_refused(options: dict[str, Any], start: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Endpoint(**{"host": "h", "stream_key": "s", **options})
    assert str(raised.value).startswith(start)
    assert raised.value.option == "node_map"
