"""A node takes over its first slot: the cluster has it, and no list of slots does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Dispatcher
from headrace.testing import LocalCluster, LocalServer
from support import Program
from support.clusters import StartCluster, endpoint_of
from support.processes import wait_until


def ask(server: LocalServer, *command: Any) -> Any:
    """The reply of a node of a cluster, of which the user `default` has no password."""
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        return client.execute_command(*command)


def begin_to_move(cluster: LocalCluster, key: str, target: LocalServer) -> None:
    """Add an empty master, and begin to move the slot of `key` there: it gets what is not written yet."""
    slot, source = cluster.slot(key), cluster.owner(key)
    ask(source, "CLUSTER MEET", "127.0.0.1", target.port)

    def knows(server: LocalServer, other: LocalServer) -> bool:
        found = ask(server, "CLUSTER NODES").get(f"127.0.0.1:{other.port}")
        is_master = found is not None and found["flags"] == "master" and found["connected"]
        return is_master and ask(server, "CLUSTER INFO")["cluster_state"] == "ok"

    wait_until(lambda: knows(source, target) and knows(target, source))
    ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", ask(source, "CLUSTER MYID").decode())
    ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", ask(target, "CLUSTER MYID").decode())


def produce(dispatcher: Dispatcher, count: int) -> list[str]:
    """The codes of the failures of this many messages."""
    dispatcher.produce_batch(pa.table({"payload": [b"x"] * count}), payload="payload")
    return [failure.code for failure in dispatcher.flush().failed]


@pytest.mark.needs("redis-7.0")
@pytest.mark.parametrize("may_ask", [True, False])
def test_a_node_without_slots_is_used_only_if_cluster_nodes_lists_it(
    start_cluster: StartCluster, start_server: Callable[..., LocalServer], program: Program, may_ask: bool
) -> None:
    """The credentials too: so the node that has the slot must say that the cluster has the other one."""
    rights = "+xadd +client +cluster|slots +asking" + (" +cluster|nodes" if may_ask else "")
    config = {"user": [f"app on >geheim ~* {rights}"]}
    cluster = start_cluster(config=config, replicas=0)
    enabled = {"cluster-enabled": True, "cluster-node-timeout": 1000, **config}
    new = start_server(program, transport="tcp", config=enabled)
    begin_to_move(cluster, "s", new)
    endpoint = endpoint_of(cluster, "s", username="app", password="geheim")
    with Dispatcher(endpoint) as dispatcher:
        codes = produce(dispatcher, 300)
        if not may_ask:
            assert codes == ["ASK"] * 300
            with redis.Redis(port=new.port or 0) as client:
                assert [one for one in client.client_list() if one["name"] == "headrace"] == []
            return
        assert codes == []
        slot = cluster.slot("s")
        for server in (new, *cluster.servers):
            ask(server, "CLUSTER SETSLOT", slot, "NODE", ask(new, "CLUSTER MYID").decode())
        assert produce(dispatcher, 300) == []
        assert dispatcher.stats().redirects <= 6
    with redis.Redis(port=new.port or 0) as client:
        assert client.xlen("s") == 600
