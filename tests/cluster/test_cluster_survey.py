"""The look at streams of all nodes, over connections that are kept."""

from __future__ import annotations

import pytest
import redis

from headrace import CommandError, ConnectionFailedError, _headrace
from headrace.testing import LocalCluster
from support.clusters import StartCluster, another_master, endpoint_of, keys_on_all_masters
from support.processes import wait_until


def fill(cluster: LocalCluster, keys: list[str], replicas: int = 0) -> None:
    """Stream n gets n + 1 entries, which that number of replicas has."""
    for number, key in enumerate(keys):
        with redis.Redis(port=cluster.owner(key).port or 0) as client:
            for entry in range(number + 1):
                client.xadd(key, {"n": entry}, id=f"1-{entry + 1}")
            assert client.wait(replicas, 20_000) >= replicas


def kept(cluster: LocalCluster) -> list[int]:
    """How many connections that asked about a stream last each master has, sorted."""
    counts = []
    for server in {cluster.owner(str(number)).port: None for number in range(50)}:
        with redis.Redis(port=server or 0) as client:
            counts.append(sum(found["cmd"].startswith("xinfo") for found in client.client_list()))
    return sorted(counts)


def lengths(survey: _headrace.Survey, keys: list[str]) -> list[int | None]:
    found = survey.streams([key.encode() for key in keys])
    return [None if info.is_missing else info.length for info in found]


def test_a_survey_covers_the_streams_of_all_nodes(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 12)
    fill(cluster, keys)
    survey = _headrace.Survey(endpoint_of(cluster, key))
    try:
        for _ in range(2):
            assert lengths(survey, [*keys, f"{key} none"]) == [*range(1, 13), None]
            ranges = [(name.encode(), (1, number), (1, 99)) for number, name in enumerate(keys, 1)]
            assert survey.first_ids(ranges) == [(1, number) for number in range(1, 13)]
            found = survey.groups([name.encode() for name in keys])
            assert [(info.length, groups) for info, groups in found] == [(number, []) for number in range(1, 13)]
            assert kept(cluster) == [1, 1, 1]
    finally:
        survey.close()
    wait_until(lambda: kept(cluster) == [0, 0, 0])


def test_a_survey_follows_a_moved_slot(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    fill(cluster, keys)
    survey = _headrace.Survey(endpoint_of(cluster, key))
    try:
        for name in keys[::2]:
            assert lengths(survey, keys) == [*range(1, 7)]
            cluster.move_slot(name, another_master(cluster, name))
        assert lengths(survey, keys) == [*range(1, 7)]
        cluster.fail_over(keys[0])
        assert lengths(survey, keys) == [*range(1, 7)]
    finally:
        survey.close()


def test_a_survey_finds_streams_while_their_slot_is_moving(start_cluster: StartCluster) -> None:
    """It is where it was, or where it goes: both nodes say which, and only the way there needs ASKING."""
    cluster = start_cluster(replicas=0)
    fill(cluster, ["{s}1", "{s}2"])
    source, target = cluster.owner("{s}"), another_master(cluster, "{s}")
    slot = cluster.slot("{s}")
    survey = _headrace.Survey(endpoint_of(cluster, "{s}1"))
    with redis.Redis(port=source.port or 0) as here, redis.Redis(port=target.port or 0) as there:
        try:
            assert lengths(survey, ["{s}1", "{s}2", "{s}3"]) == [1, 2, None]
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", here.execute_command("CLUSTER MYID"))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", there.execute_command("CLUSTER MYID"))
            here.migrate("127.0.0.1", target.port or 0, ["{s}1"], 0, 10_000)
            assert lengths(survey, ["{s}1", "{s}2", "{s}3"]) == [1, 2, None]
        finally:
            survey.close()


def test_a_survey_recovers_after_a_master_is_killed(start_cluster: StartCluster) -> None:
    """Its replica is asked, once it has taken over; until then the node is named."""
    cluster = start_cluster()
    keys = ["a", "b", "c"]
    fill(cluster, keys, replicas=1)
    old = cluster.owner("a")
    for server in cluster.servers:
        with redis.Redis(port=server.port or 0) as client:
            client.config_set("cluster-require-full-coverage", "no")
    survey = _headrace.Survey(endpoint_of(cluster, "a", connect_timeout=1.0))
    try:
        assert lengths(survey, keys) == [1, 2, 3]
        old.kill()
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{old.port}"):
            survey.streams([b"a"])

        def is_found() -> bool:
            try:
                return lengths(survey, keys) == [1, 2, 3]
            except (CommandError, ConnectionFailedError):
                return False

        wait_until(is_found)
    finally:
        survey.close()


def test_a_survey_names_the_slot_that_no_node_serves(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0)
    for server in cluster.servers:
        with redis.Redis(port=server.port or 0) as client:
            client.config_set("cluster-require-full-coverage", "no")
            client.execute_command("CLUSTER", "DELSLOTS", cluster.slot("s"))
    survey = _headrace.Survey(endpoint_of(cluster, "t"))
    try:
        assert lengths(survey, ["t"]) == [None]
        with pytest.raises((CommandError, ConnectionFailedError), match=f"no node has slot {cluster.slot('s')}"):
            survey.streams([b"t", b"s"])
        assert lengths(survey, ["t"]) == [None]
    finally:
        survey.close()
