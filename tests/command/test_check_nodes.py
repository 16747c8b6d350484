"""`headrace check` on clusters and sentinels: each server has its lines."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import redis

from command.conftest import Command, Ended
from headrace.testing import LocalCluster, LocalSentinel
from support import Program
from support.processes import wait_until

pytestmark = pytest.mark.needs("redis-7.0")


def steps(ended: Ended) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ended.out)["steps"]
    return found


@pytest.mark.thorough
def test_each_node_of_a_cluster_is_checked(command: Command, program: Program) -> None:
    with LocalCluster(program.path) as cluster:
        nodes = ("--nodes", ",".join(cluster.nodes))
        # A replica is named once it is known to have got something.
        with redis.Redis(port=cluster.owner("s").port or 0) as client:
            slots = partial(client.execute_command, "CLUSTER SLOTS")
            wait_until(lambda: all(len(one) == 4 for one in slots()))
        ended = command("check", "s", "--for", "plain", "--for", "wait_replicas", *nodes, "-o", "json")
        assert ended.code == 0, ended
        found = steps(ended)
        members = [step for step in found if step["step"] == "node"]
        assert {step["node"] for step in members} == {f"127.0.0.1:{server.port}" for server in cluster.servers}
        assert sorted(step["role"] for step in members) == ["master"] * 3 + ["replica"] * 3
        assert {step["state"] for step in members} == {"ok"}
        (state,) = [step for step in found if step["step"] == "cluster"]
        assert (state["state"], state["slots_ok"]) == ("ok", 16_384)
        cluster.replicas_of(cluster.owner("s"))[0].kill()
        later = steps(command("check", "s", *nodes, "-o", "json"))
        assert [step["state"] for step in later if step["step"] == "node"].count("warn") <= 1
        owner = cluster.owner("s")
        host = ("--host", "127.0.0.1", "--port", str(owner.port))
        found = steps(command("check", "s", *host, "-o", "json"))
        (topology,) = [step for step in found if step["step"] == "topology"]
        assert (topology["state"], topology["text"]) == ("ok", "a cluster")
        # The killed replica is not among the nodes any longer once the others have noticed.
        assert sum(step["step"] == "node" for step in found) in (len(members) - 1, len(members))
        (topology,) = [
            step
            for step in steps(command("check", "s", *host, "--topology", "single", "-o", "json"))
            if step["step"] == "topology"
        ]
        assert (topology["state"], "--topology cluster" in topology["text"]) == ("warn", True)
        with redis.Redis(port=owner.port or 0) as client:
            client.execute_command("ACL SETUSER default -cluster|slots")
        refused = command("check", "s", *host)
        assert (refused.code, "+cluster|slots" in refused.err) == (3, True), refused


def test_each_sentinel_is_checked(command: Command, program: Program) -> None:
    with LocalSentinel(program.path) as group:
        master = ("--sentinel-master", group.master_name)
        nodes = [*group.nodes, "127.0.0.1:1"]
        ended = command("check", "s", "--for", "plain", "--nodes", ",".join(nodes), *master, "-o", "json")
        assert ended.code == 0, ended
        found = steps(ended)
        for node in group.nodes:
            of_node = {step["step"]: step for step in found if step.get("node") == f"the sentinel {node}"}
            assert (of_node["master"]["state"], of_node["quorum"]["state"]) == ("ok", "ok"), of_node
        dead = [step for step in found if step.get("node") == "the sentinel 127.0.0.1:1"]
        assert [step["state"] for step in dead] == ["warn"]
        other = command("check", "s", "--nodes", ",".join(group.nodes), "--sentinel-master", "nobody")
        assert (other.code, "--sentinel-master" in other.err) == (3, True), other
        plain = command("check", "s", "--host", "127.0.0.1", "--port", group.nodes[0].rpartition(":")[2])
        assert (plain.code, "with sentinel_master" in plain.err) == (3, True), plain
