"""A replica takes over from the master of a stream while rows go out."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalCluster
from support.clusters import StartCluster, another_master, endpoint_of, rows_of
from support.load import BATCH, RATE, Load
from support.patience import NEVER, PATIENCE
from support.pipelines import DELIVERED, labels
from support.processes import stopped, wait_until

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


@pytest.mark.parametrize(
    "mode", [{}, {"exactly_once": "script"}, {"wait_replicas": 1}], ids=lambda mode: " ".join(mode) or "plain"
)
def test_a_manual_failover_loses_no_messages(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher)
        running = pool.submit(load.run)
        try:
            for _ in range(2):
                before = load.rows
                wait_until(lambda before=before: load.rows >= before + 4 * BATCH or running.done())  # type: ignore[misc]
                cluster.fail_over(key)
            before = load.rows
            wait_until(lambda: load.rows >= before + 2 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
        stats = dispatcher.stats()
    # A new master has no replica for a moment. On a busy machine nodes may miss each other: the cluster then refuses.
    assert {*load.codes} <= {"NOT_REPLICATED", "CLUSTERDOWN"}
    there = rows_of(cluster, key)
    assert load.acknowledged <= set(there)
    assert there == sorted(set(there))
    assert len(there) == load.rows - load.codes["CLUSTERDOWN"]
    assert stats.redirects >= 2


@pytest.mark.parametrize("mode", ["off", "script"])
def test_delivered_messages_are_kept_when_a_master_is_killed(start_cluster: StartCluster, mode: str) -> None:
    """At this rate the replica has what was acknowledged. Until the nodes agree that it is gone, all refuse."""
    cluster = start_cluster()
    options: dict[str, Any] = {"retry": PATIENT, "exactly_once": mode}
    with Dispatcher(endpoint_of(cluster, "{s}"), wait_replicas=1, wait_timeout=NEVER) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok, "its replica is not there yet"
    with (
        Dispatcher(endpoint_of(cluster, "s"), **options) as dispatcher,
        ThreadPoolExecutor() as pool,
    ):
        load = Load(dispatcher, RATE // 4)
        running = pool.submit(load.run)
        try:
            wait_until(lambda: load.rows >= 4 * BATCH)
            old = cluster.owner("s")
            old.kill()
            before = load.rows
            wait_until(lambda: load.rows >= before + 4 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
        stats = dispatcher.stats()
    there = rows_of(cluster, "s", old)
    assert load.acknowledged <= set(there)
    assert len(there) == len(set(there))
    assert there == sorted(there)
    assert set(range(load.rows)) - set(there) <= load.unknown
    if mode == "script":
        assert load.codes == {}
        assert there == list(range(load.rows))
    assert stats.retries > 0


def test_wait_replicas_all_counts_only_replicas_of_the_owning_node(start_cluster: StartCluster) -> None:
    """The node says how many it has; those of other nodes do not count."""
    cluster = start_cluster()
    # The first acknowledgement of a new replica may take a second.
    with Dispatcher(endpoint_of(cluster, "s"), wait_replicas="all", wait_timeout=PATIENCE) as dispatcher:
        dispatcher.produce(b"1")
        assert labels(dispatcher.flush()) == [DELIVERED]
    (replica,) = cluster.replicas_of(cluster.owner("s"))
    with (
        Dispatcher(endpoint_of(cluster, "s"), wait_replicas="all", wait_timeout=0.2) as dispatcher,
        stopped(replica),
    ):
        dispatcher.produce(b"2")
        (failure,) = dispatcher.flush().failed
    assert failure.code == "NOT_REPLICATED"
    assert failure.message == "0 of 1 replicas had the entry within 0.2 s; the server itself has it"


@pytest.mark.parametrize("mode", ["off", "script"])
def test_no_message_fails_when_another_master_is_killed(start_cluster: StartCluster, mode: str) -> None:
    """All masters refuse everything until its replica takes over. They are not asked about it for each refused row."""
    cluster = start_cluster()
    options: dict[str, Any] = {"retry": PATIENT, "exactly_once": mode}
    with Dispatcher(endpoint_of(cluster, "s"), **options) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher)
        running = pool.submit(load.run)
        try:
            wait_until(lambda: load.rows >= 4 * BATCH)
            other = another_master(cluster, "s")
            asked, began = asked_for_slots(cluster), time.monotonic()
            other.kill()
            wait_until(lambda: dispatcher.stats().retries > 0 or running.done())
            before = load.rows
            wait_until(lambda: load.rows >= before + 10 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
        seconds = time.monotonic() - began
        assert dispatcher.stats().retries > 0
    assert load.codes == {}
    assert sorted(rows_of(cluster, "s")) == list(range(load.rows))
    assert asked_for_slots(cluster) - asked <= 10 * seconds + 5


def asked_for_slots(cluster: LocalCluster) -> int:
    """How often the servers that run were asked who has which slots."""
    calls = 0
    for server in cluster.servers:
        if server.running:
            with redis.Redis(port=server.port or 0) as client:
                calls += client.info("commandstats").get("cmdstat_cluster|slots", {"calls": 0})["calls"]
    return calls
