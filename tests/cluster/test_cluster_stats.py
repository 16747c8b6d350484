"""What `stats()` says of each node of a cluster, and the log lines of nodes and slots."""

from __future__ import annotations

import logging
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from headrace import Dispatcher, RetryPolicy
from headrace.exported import NODE_METRICS
from headrace.metrics import NodeStats, OpenTelemetryInstruments, PrometheusCollector, Stats
from headrace.testing import LocalCluster, LocalServer
from support.clusters import StartCluster, another_master, endpoint_of, owner_after, rows_of
from support.patience import NEVER
from support.processes import resume, stop, stopped, wait_until
from support.shards import key_of

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


def address(server: LocalServer) -> str:
    return f"127.0.0.1:{server.port}"


def node(stats: Stats, server: LocalServer) -> NodeStats:
    return next(node for node in stats.nodes if node.address == address(server))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines but for those of retries."""
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    texts = [record.getMessage() for record in caplog.records if record.name == "headrace"]
    return [text for text in texts if not text.startswith(("retrying ", "retries "))]


def produce(dispatcher: Dispatcher, keys: list[str], rows: range) -> None:
    columns = {"payload": [b"%d" % n for n in rows], "key": [keys[n % len(keys)] for n in rows]}
    dispatcher.produce_batch(pa.table(columns), payload="payload", stream_key="key")


def slots_of(server: LocalServer) -> int:
    with redis.Redis(port=server.port or 0) as client:
        ranges = client.execute_command("CLUSTER SLOTS")
        owned = [(first, last) for first, last, master, *_ in _pairs(ranges) if master == server.port]
    return sum(last - first + 1 for first, last in owned)


def _pairs(ranges: object) -> list[tuple[int, int, int]]:
    """First slot, last slot and port of the master, in whichever form redis-py returns them."""
    if isinstance(ranges, dict):
        return [(first, last, found["primary"][1]) for (first, last), found in ranges.items()]
    assert isinstance(ranges, list)
    return [(first, last, master[1]) for first, last, master, *_ in ranges]


def test_stats_list_each_master(cluster: LocalCluster, key: str, caplog: pytest.LogCaptureFixture) -> None:
    keys = [key, *(f"{key} {number}" for number in range(1, 64))]
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        assert (dispatcher.stats().nodes, dispatcher.stats().refreshes) == ((), 0)
        for first in (0, 640):
            produce(dispatcher, keys, range(first, first + 640))
            assert dispatcher.flush().ok
        stats = dispatcher.stats()
    masters = {address(cluster.owner(key)) for key in keys}
    assert len(masters) == 3
    assert {node.address for node in stats.nodes} == masters
    assert set(stats.nodes) == {NodeStats(address=address, connections=1) for address in masters}
    assert (stats.connections, stats.reconnects, stats.redirects, stats.refreshes) == (3, 0, 0, 1)
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert lines(caplog) == []


def test_exported_metrics_have_a_node_label(cluster: LocalCluster, key: str) -> None:
    endpoint = endpoint_of(cluster, key)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with Dispatcher(endpoint) as dispatcher:
        produce(dispatcher, [key], range(10))
        assert dispatcher.flush().ok
        families = list(PrometheusCollector(dispatcher).collect())
        OpenTelemetryInstruments(dispatcher, meter_provider=provider)
        metrics: Any = reader.get_metrics_data()
        stats = dispatcher.stats()
    samples = {
        (sample.name.removesuffix("_total"), sample.labels["node"]): sample.value
        for family in families
        for sample in family.samples
        if "node" in sample.labels
    }
    values = [(one, node.address, one.value(node) or 0) for one in NODE_METRICS for node in stats.nodes]
    assert samples == {(one.prometheus, name): value for one, name, value in values}
    points = {
        (metric.name, point.attributes["headrace.node"]): point.value
        for metric in metrics.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if "headrace.node" in point.attributes
    }
    assert points == {(one.opentelemetry, name): value for one, name, value in values}
    provider.shutdown()


def test_a_moved_slot_is_counted_and_logged(cluster: LocalCluster, key: str, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = endpoint_of(cluster, key)
    old, new = cluster.owner(key), another_master(cluster, key)
    with Dispatcher(endpoint) as dispatcher:
        produce(dispatcher, [key], range(500))
        assert dispatcher.flush().ok
        cluster.move_slot(key, new)
        for first in (500, 1_000, 1_500):
            produce(dispatcher, [key], range(first, first + 500))
            assert dispatcher.flush().ok
        stats = dispatcher.stats()
    assert (node(stats, old).redirects, node(stats, new).redirects) == (1, 0)
    assert (stats.redirects, stats.reconnects) == (1, 0)
    # None within 0.1 s of another one.
    assert 1 <= stats.refreshes <= 2
    assert lines(caplog) == [f"1 slot moved from node {address(old)} to {address(new)}: {endpoint}"]
    assert rows_of(cluster, key) == list(range(2_000))


def test_a_replica_that_takes_over_is_logged_once(
    cluster: LocalCluster, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, for all slots of its master and all rows."""
    endpoint = endpoint_of(cluster, key)
    old = cluster.owner(key)
    slots = slots_of(old)
    assert slots > 1
    with Dispatcher(endpoint, retry=PATIENT) as dispatcher:
        produce(dispatcher, [key], range(500))
        assert dispatcher.flush().ok
        new = cluster.fail_over(key)
        for first in (500, 1_000, 1_500):
            produce(dispatcher, [key], range(first, first + 500))
            assert dispatcher.flush().ok
        stats = dispatcher.stats()
    assert lines(caplog) == [f"node {address(new)} took over {slots} slots from {address(old)}: {endpoint}"]
    assert node(stats, old).redirects == stats.redirects
    assert (node(stats, new).connections, node(stats, new).redirects) == (1, 0)


def test_a_restarted_master_is_reported_down_and_back(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster()
    endpoint = endpoint_of(cluster, "s")
    with Dispatcher(endpoint, retry=PATIENT) as dispatcher:
        produce(dispatcher, ["s"], range(10))
        assert dispatcher.flush().ok
        old, began = cluster.owner("s"), time.time()
        slots = slots_of(old)
        old.kill()
        for first in (10, 20):
            produce(dispatcher, ["s"], range(first, first + 10))
            dispatcher.flush()
        new = owner_after(cluster, "s", old)
        down, took_over = lines(caplog)
        start = f"node {address(old)} of {endpoint} is down: CONNECT: cannot connect to {address(old)}: "
        assert down.startswith(start)
        assert took_over == f"node {address(new)} took over {slots} slots from {address(old)}: {endpoint}"
        stats = dispatcher.stats()
        gone, there = node(stats, old), node(stats, new)
        assert gone.down_since is not None
        assert began <= gone.down_since <= time.time()
        assert there.down_since is None
        assert (gone.connections, there.connections, there.in_flight) == (1, 1, 0)
        old.restart()
        cluster.fail_over("s")
        produce(dispatcher, ["s"], range(30, 40))
        assert dispatcher.flush().ok
        assert node(dispatcher.stats(), old).down_since is None
    *_, one, other = lines(caplog)
    back = rf"node {address(old)} of {re.escape(str(endpoint))} is back after \d+\.\d s"
    assert [text for text in (one, other) if re.fullmatch(back, text)]
    assert f"node {address(old)} took over {slots} slots from {address(new)}: {endpoint}" in (one, other)
    assert len(lines(caplog)) == 4


def test_an_unresponsive_node_is_reported_down_and_back(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster(replicas=0, node_timeout=NEVER)
    endpoint = endpoint_of(cluster, "s", command_timeout=1.0, connect_timeout=1.0)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"1")
        assert dispatcher.flush().ok
        still = cluster.owner("s")
        with stopped(still):
            for _ in range(2):
                dispatcher.produce(b"2")
                assert dispatcher.flush().failed
            assert node(dispatcher.stats(), still).down_since is not None
        dispatcher.produce(b"3")
        assert dispatcher.flush().ok
        stats = dispatcher.stats()
    assert (node(stats, still).down_since, node(stats, still).connections) == (None, 2)
    assert (stats.connections, stats.reconnects) == (2, 1)
    down, back = lines(caplog)
    assert down.startswith(f"node {address(still)} of {endpoint} is down: TIMEOUT: ")
    assert re.fullmatch(rf"node {address(still)} of {re.escape(str(endpoint))} is back after \d+\.\d s", back)


@pytest.mark.parametrize("mode", ["off", "script"])
def test_stats_show_the_node_that_a_full_window_waits_for(start_cluster: StartCluster, mode: str) -> None:
    cluster = start_cluster(replicas=0, node_timeout=NEVER)
    keys = [f"s{number}" for number in range(30)]
    endpoint = endpoint_of(cluster, "s0", command_timeout=NEVER)
    with (
        Dispatcher(endpoint, window_max_entries=600, exactly_once=mode) as dispatcher,  # type: ignore[arg-type]
        ThreadPoolExecutor(1) as pool,
    ):
        produce(dispatcher, keys, range(30))
        assert dispatcher.flush().ok
        assert not any(node.fills_window for node in dispatcher.stats().nodes)
        still = cluster.owner("s0")
        stop(still)
        try:
            running = pool.submit(produce, dispatcher, keys, range(30, 6_030))

            def waits_for() -> list[str]:
                assert not running.done()
                return [node.address for node in dispatcher.stats().nodes if node.fills_window]

            wait_until(lambda: waits_for() == [address(still)] and waiting(dispatcher.stats()) == {address(still)})
            stats = dispatcher.stats()
            # Outcomes that wait for one before them take room as well, and with the script rows that were not sent yet.
            assert node(stats, still).in_flight >= (100 if mode == "off" else 1), stats.nodes
            assert node(stats, still).in_flight_bytes > 30 * node(stats, still).in_flight
            text = generate_latest(registry(dispatcher)).decode()
            assert sorted(re.findall(r'headrace_node_fills_window{.*node="([^"]*)".*} 1\.0', text)) == [address(still)]
        finally:
            resume(still)
        running.result()
        assert dispatcher.flush().ok
        assert all((node.in_flight, node.fills_window) == (0, False) for node in dispatcher.stats().nodes)


def test_stats_show_the_shard_that_a_full_window_waits_for(start_cluster: StartCluster) -> None:
    cluster = start_cluster(replicas=0, node_timeout=NEVER)
    endpoint = endpoint_of(cluster, "orders", shards=3, command_timeout=NEVER)
    with Dispatcher(endpoint, window_max_entries=600) as dispatcher, ThreadPoolExecutor(1) as pool:
        dispatcher.produce_batch(pa.table({"payload": [b"x"] * 30}), payload="payload")
        assert dispatcher.flush().ok
        assert {node.waiting_shard for node in dispatcher.stats().nodes} == {None}
        still = cluster.owner("orders:1")
        theirs = [shard for shard in range(3) if cluster.owner(f"orders:{shard}") is still]
        stop(still)
        try:
            many = pa.table({"payload": [b"x"] * 60_000, "key": [key_of(1, 3)] * 60_000})
            running = pool.submit(dispatcher.produce_batch, many, payload="payload", shard_key="key")
            wait_until(lambda: [node.fills_window for node in dispatcher.stats().nodes].count(True) == 1)
            wait_until(lambda: node(dispatcher.stats(), still).waiting_shard == 1)
            assert 1 in theirs
            assert not running.done()
        finally:
            resume(still)
        running.result()
        assert dispatcher.flush().ok
        assert {node.waiting_shard for node in dispatcher.stats().nodes} == {None}


def waiting(stats: Stats) -> set[str]:
    return {node.address for node in stats.nodes if node.in_flight}


def registry(dispatcher: Dispatcher) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(PrometheusCollector(dispatcher))
    return made
