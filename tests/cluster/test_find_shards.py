"""Shards that the server names, for those who read what others write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import CommandError, ConfigError, ConnectionFailedError, Dispatcher, Endpoint
from headrace.testing import LocalCluster, LocalServer
from support.clusters import endpoint_of
from support.pipelines import endpoint_to


def write(endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"1", key="a")
        assert dispatcher.flush().ok


@pytest.mark.parametrize("names", ["plain", "spread"])
@pytest.mark.parametrize("shard_hash", ["murmur2", "crc32"])
def test_the_shards_of_a_cluster_are_found(cluster: LocalCluster, key: str, names: str, shard_hash: str) -> None:
    right = endpoint_of(cluster, key, shards=7, shard_hash=shard_hash, shard_names=names, maxlen=100)
    write(right)
    found = endpoint_of(cluster, key, maxlen=100).find_shards()
    assert type(found) is Endpoint
    assert found._state() == right._state()
    assert found.stream_keys == right.stream_keys


def test_shards_are_found_from_any_node(cluster: LocalCluster, key: str) -> None:
    write(endpoint_of(cluster, key, shards=3))
    for server in cluster.servers[:3]:
        assert Endpoint(host="127.0.0.1", port=server.port, stream_key=key).find_shards().shards == 3


def test_an_explicit_number_of_shards_is_checked(any_server: LocalServer) -> None:
    right = endpoint_to(any_server, stream_key="orders", shards=3)
    write(right)
    assert right.find_shards()._state() == right._state()
    with pytest.raises(CommandError, match=r"has 3 shards .* but the endpoint says 4") as failure:
        endpoint_to(any_server, stream_key="orders", shards=4).find_shards()
    assert (failure.value.code, failure.value.kind) == ("BAD_SHARDS", "permanent")


def test_a_stream_without_shards_is_refused(any_server: LocalServer, connect: Any) -> None:
    connect(any_server).xadd("orders", {"payload": "1"})
    message = r"the stream 'orders' has no shards: no producer has written the key '\{orders\}:shards'"
    with pytest.raises(CommandError, match=message) as failure:
        endpoint_to(any_server, stream_key="orders").find_shards()
    assert failure.value.code == "BAD_SHARDS"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"n": "3", "hash": "murmur2"}, "it has no field 'names'"),
        ({"n": "0", "hash": "murmur2", "names": "plain"}, "its field 'n' must be a number from 1 to 1024, got '0'"),
        ({"n": "3", "hash": "md5\n", "names": "plain"}, r"must be one of murmur2, crc32, got 'md5\\n'"),
    ],
)
def test_invalid_shard_registries_are_refused(
    any_server: LocalServer, connect: Any, fields: dict[str, str], why: str
) -> None:
    connect(any_server).hset("{orders}:shards", mapping=fields)
    with pytest.raises(CommandError, match=f"does not say which shards exist: .*{why}") as failure:
        endpoint_to(any_server, stream_key="orders").find_shards()
    assert failure.value.code == "BAD_SHARDS"


def test_a_key_of_another_type_is_refused(any_server: LocalServer, connect: Any) -> None:
    connect(any_server).set("{orders}:shards", "3")
    with pytest.raises(CommandError) as failure:
        endpoint_to(any_server, stream_key="orders").find_shards()
    assert failure.value.code == "WRONGTYPE"


def test_a_stream_key_with_braces_is_refused(any_server: LocalServer, connect: Any) -> None:
    connect(any_server).hset("{{a}}:shards", mapping={"n": "3", "hash": "murmur2", "names": "plain"})
    with pytest.raises(ConfigError, match=r"shards need a stream_key without braces, got .\{a\}."):
        endpoint_to(any_server, stream_key="{a}").find_shards()


def test_a_missing_right_is_named(server: LocalServer, connect: Any) -> None:
    write(endpoint_to(server, stream_key="orders", shards=3))
    connect(server).acl_setuser(
        "reader", enabled=True, passwords=["+secret"], keys=["orders*"], commands=["+xread", "+hello"]
    )
    with pytest.raises(CommandError, match=r"the ACL user needs \+hgetall ~\{orders\}:shards") as failure:
        endpoint_to(server, stream_key="orders", username="reader", password="secret").find_shards()
    assert failure.value.code == "NOPERM"
    assert "secret" not in str(failure.value)


def test_an_unreachable_server_raises_connection_failed_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailedError):
        Endpoint(unix_socket=tmp_path / "none", stream_key="orders").find_shards()
