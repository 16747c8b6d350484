"""LocalCluster: what holds once it has started, and what it says if it does not start."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import redis

from headrace.errors import LocalServerError
from headrace.testing import LocalCluster, LocalServer
from support import Program
from support.clusters import StartCluster


def ask(server: LocalServer, command: str) -> Any:
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        return client.execute_command(command)


@pytest.mark.parametrize(("masters", "replicas"), [(3, 1), (1, 0), (2, 2)])
def test_all_servers_agree_once_a_cluster_has_started(start_cluster: StartCluster, masters: int, replicas: int) -> None:
    cluster = start_cluster(masters=masters, replicas=replicas)
    ids = [ask(server, "CLUSTER MYID").decode() for server in cluster.servers]
    assert len(ids) == masters * (1 + replicas)
    for server in cluster.servers:
        assert ask(server, "CLUSTER INFO")["cluster_state"] == "ok"
        nodes = {node["node_id"]: node for node in ask(server, "CLUSTER NODES").values()}
        assert set(nodes) == set(ids)
        assert {node["flags"].removeprefix("myself,") for node in nodes.values()} <= {"master", "slave"}
        assert [nodes[replica]["master_id"] for replica in ids[masters:]] == ids[:masters] * replicas
        assert len({nodes[master]["epoch"] for master in ids[:masters]}) == masters
    for master in cluster.servers[:masters]:
        assert len(cluster.replicas_of(master)) == replicas


@pytest.mark.needs("redis-7.0")
def test_the_shards_of_a_new_cluster_are_complete(start_cluster: StartCluster) -> None:
    check_shards(start_cluster())


@pytest.mark.needs("valkey")
def test_the_shards_of_a_new_valkey_cluster_are_complete(start_cluster: StartCluster) -> None:
    check_shards(start_cluster())


def check_shards(cluster: LocalCluster) -> None:
    for server in cluster.servers:
        assert [len(shard[b"nodes"]) for shard in ask(server, "CLUSTER SHARDS")] == [2, 2, 2]


def test_a_cluster_starts_on_other_ports_if_one_is_taken(
    program: Program, tcp_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The taken one is the last: the masters run, and know it."""

    class TakenFirst(secrets.SystemRandom):
        def sample(self, population: Any, k: int, **more: Any) -> Any:
            monkeypatch.undo()
            return [*super().sample(population, k, **more)[1:], tcp_server.port]

    monkeypatch.setattr("headrace.testing.local_cluster.secrets.SystemRandom", TakenFirst)
    with LocalCluster(program.path) as cluster:
        assert len({*cluster.nodes} - {f"127.0.0.1:{tcp_server.port}"}) == 6


def test_the_error_says_what_a_cluster_lacks(program: Program) -> None:
    lacking = ", ".join(f"server {number} of 3 has 0 of 3 connections" for number in (1, 2, 3))
    with pytest.raises(LocalServerError) as raised:
        LocalCluster(program.path, config={"rename-command": 'CLUSTER ""'}, start_timeout=0.3)
    assert str(raised.value) == f"the masters made no progress for 0.3 s: {lacking}"
    assert [note.count("eady to accept connections") > 0 for note in raised.value.__notes__] == [True] * 3


def test_slots_are_those_of_the_servers(cluster: LocalCluster) -> None:
    with redis.Redis(unix_socket_path=cluster.servers[0].unix_socket) as client:
        for key in ("", "orders", "{a}b", "a{b}c", "{}a", "a{", "a}b{c}", "{a{b}c}", "ä", "a{}{b}"):
            assert cluster.slot(key) == client.execute_command("CLUSTER KEYSLOT", key), key
