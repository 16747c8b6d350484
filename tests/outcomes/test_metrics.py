"""`headrace.metrics`: the counters of dispatchers, and their export by Prometheus and OpenTelemetry."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, openmetrics
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from headrace import Dispatcher, Endpoint, RetryPolicy
from headrace.exported import DISPATCHER_METRICS, NODE_METRICS, READ_METRICS
from headrace.metrics import (
    ConsumerStats,
    NodeStats,
    OpenTelemetryInstruments,
    PrometheusCollector,
    ReaderStats,
    Stats,
)
from headrace.tables import COUNTERS
from headrace.testing import LocalServer
from support.endpoints import CANARY
from support.processes import wait_until

Connect = Callable[..., redis.Redis]

#: Names that no release may change, and units: Prometheus without `_total`, OpenTelemetry, unit. There may be more.
RELEASED = """
headrace_messages headrace.messages {message}
headrace_delivered headrace.delivered {message}
headrace_deduplicated headrace.deduplicated {message}
headrace_possible_duplicates headrace.possible_duplicates {message}
headrace_retries headrace.retries {message}
headrace_retry_waits headrace.retry_waits {wait}
headrace_retry_wait_seconds headrace.retry_wait.time s
headrace_connections headrace.connections {connection}
headrace_reconnects headrace.reconnects {connection}
headrace_redirects headrace.redirects {redirect}
headrace_refreshes headrace.refreshes {refresh}
headrace_sent_bytes headrace.sent By
headrace_script_calls headrace.script_calls {call}
headrace_script_rows_shared headrace.script_rows_shared {message}
headrace_script_rows_whole headrace.script_rows_whole {message}
headrace_node_connections headrace.node.connections {connection}
headrace_node_redirects headrace.node.redirects {redirect}
headrace_node_in_flight headrace.node.in_flight {message}
headrace_node_in_flight_bytes headrace.node.in_flight.size By
headrace_node_down_seconds headrace.node.down.time s
headrace_node_fills_window headrace.node.fills_window 1
headrace_read_batches headrace.read.batches {batch}
headrace_read_entries headrace.read.entries {entry}
headrace_read_rows headrace.read.rows {row}
headrace_read_lost headrace.read.lost {entry}
headrace_read_received_bytes headrace.read.received By
headrace_read_requests headrace.read.requests {request}
headrace_read_connections headrace.read.connections {connection}
headrace_read_reconnects headrace.read.reconnects {connection}
headrace_read_retry_waits headrace.read.retry_waits {wait}
headrace_read_retry_wait_seconds headrace.read.retry_wait.time s
headrace_read_redelivered headrace.read.redelivered {entry}
headrace_read_reclaimed headrace.read.reclaimed {entry}
headrace_read_acked headrace.read.acked {entry}
headrace_read_stale headrace.read.stale {entry}
headrace_read_unknown headrace.read.unknown {entry}
headrace_read_released headrace.read.released {entry}
headrace_read_dead headrace.read.dead {entry}
headrace_read_renewals headrace.read.renewals {entry}
headrace_read_behind_seconds headrace.read.behind.time s
headrace_read_pending headrace.read.pending {entry}
"""


def read_by_prometheus(registry: CollectorRegistry) -> list[Any]:
    """The text that a Prometheus server scrapes."""
    write: Any = generate_latest
    read: Any = text_string_to_metric_families
    return list(read(write(registry).decode()))


def scrape(collector: PrometheusCollector) -> dict[tuple[str, ...], float]:
    """The samples by name and label values, without the server's label."""
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "server")): sample.value
        for family in read_by_prometheus(registry)
        for sample in family.samples
    }


def fill(dispatcher: Dispatcher, messages: int) -> None:
    for n in range(messages):
        dispatcher.produce(b"%d" % n)
    assert dispatcher.flush().delivered == messages


# --- the counters -----------------------------------------------------------------------------------------------------


def test_stats_count_what_a_dispatcher_did(client: redis.Redis, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        nothing = dispatcher.stats()
        assert (nothing.messages, nothing.connections, nothing.bytes_sent, nothing.flushes) == (0, 0, 0, 0)
        fill(dispatcher, 1_000)
        dispatcher.dispatch(b"one more")
        client.delete("events")
        client.set("events", "not a stream")
        dispatcher.produce(b"refused")
        assert dispatcher.flush().failed_ids == [0]
        stats = dispatcher.stats()
        assert (stats.messages, stats.delivered, stats.failed_by_code) == (1_002, 1_001, {"WRONGTYPE": 1})
        assert (stats.failed, stats.deduplicated, stats.possible_duplicates, stats.retries) == (1, 0, 0, 0)
        assert (stats.connections, stats.reconnects, stats.flushes) == (1, 0, 2)
        assert 1_002 * len("*7\r\n$4\r\nXADD\r\n") < stats.bytes_sent < 1_002 * 200
        assert 0 < stats.flush_seconds_sum < 30
        bounds = [bound for bound, _ in stats.flush_seconds]
        assert bounds == sorted(bounds)
        assert math.isinf(bounds[-1])
    # Leaving `with` flushes as well.
    assert dispatcher.stats() == replace(
        stats,
        flush_seconds=dispatcher.stats().flush_seconds,
        flush_seconds_sum=dispatcher.stats().flush_seconds_sum,
    )


def test_retries_and_reconnects_are_counted(any_server: LocalServer, client: redis.Redis, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint, retry=RetryPolicy(retry_unknown=True)) as dispatcher:
        fill(dispatcher, 10)
        any_server.kill()
        restart = threading.Timer(0.3, any_server.restart)
        restart.start()
        fill(dispatcher, 10)
        restart.join()
        stats = dispatcher.stats()
    assert (stats.messages, stats.delivered, stats.failed_by_code) == (20, 20, {})
    assert (stats.connections, stats.reconnects) == (2, 1)
    assert stats.retries >= 10
    assert stats.retry_waits == 1
    assert stats.retry_wait_seconds > 0


def test_a_slow_flush_is_counted_in_its_bucket(client: redis.Redis, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        fill(dispatcher, 1)
        client.client_pause(300, all=False)
        fill(dispatcher, 1)
        stats = dispatcher.stats()
        slow = [(bound, count) for bound, count in stats.flush_seconds if count and bound > 0.2]
        assert sum(count for _, count in slow) == 1
        assert stats.flush_seconds_sum > 0.2
        assert stats.flushes == 2


def test_reading_stats_does_not_wait(client: redis.Redis, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        collector = PrometheusCollector(dispatcher)
        fill(dispatcher, 1)
        client.client_pause(3_600_000, all=False)
        dispatcher.produce(b"waits")
        flushing = threading.Thread(target=dispatcher.flush)
        flushing.start()
        wait_until(lambda: scrape(collector)["headrace_messages_total", "events"] == 2)
        for _ in range(100):
            scrape(collector)
        samples = scrape(collector)
        assert samples["headrace_messages_total", "events"] == 2
        assert samples["headrace_delivered_total", "events"] == 1
        assert flushing.is_alive()
        client.client_unpause()
        flushing.join()
        assert scrape(collector)["headrace_delivered_total", "events"] == 2


def test_stats_are_added_up() -> None:
    one = Stats(messages=3, failed_by_code={"OOM": 1, "EOF": 1}, flush_seconds=((1.0, 2), (math.inf, 0)), bytes_sent=7)
    other = Stats(messages=4, failed_by_code={"EOF": 2}, flush_seconds=((1.0, 1), (math.inf, 1)), flush_seconds_sum=2.5)
    both = one + other
    assert (both.messages, both.bytes_sent, both.flush_seconds_sum) == (7, 7, 2.5)
    assert both.failed_by_code == {"OOM": 1, "EOF": 3}
    assert (both.flush_seconds, both.flushes, both.failed) == (((1.0, 3), (math.inf, 1)), 4, 4)


def test_stats_of_nodes_are_added_up_by_address() -> None:
    def stats(*nodes: NodeStats) -> Stats:
        return Stats(failed_by_code={}, flush_seconds=(), nodes=nodes)

    first = NodeStats(address="a:1", in_flight=3, in_flight_bytes=90, connections=2, redirects=1, down_since=20.0)
    again = NodeStats(address="a:1", in_flight=4, in_flight_bytes=70, connections=5, down_since=10.0, fills_window=True)
    other = NodeStats(address="b:1", connections=1)
    assert (stats(first) + stats(other, again)).nodes == (
        NodeStats(
            address="a:1",
            in_flight=7,
            in_flight_bytes=160,
            connections=7,
            redirects=1,
            down_since=10.0,
            fills_window=True,
        ),
        other,
    )
    assert stats(again).without_gauges() == stats(NodeStats(address="a:1", connections=5))
    assert other.seconds_down is None
    assert again.seconds_down == pytest.approx(time.time() - 10, abs=5)


@pytest.mark.parametrize(
    ("tables", "empty"),
    [
        (["dispatcher"], Stats(failed_by_code={}, flush_seconds=())),
        (["node"], NodeStats(address="a:1")),
        (["reader"], ReaderStats()),
        (["reader", "consumer"], ConsumerStats()),
    ],
)
def test_each_counter_is_added_up_and_outlives_its_object(tables: list[str], empty: Any) -> None:
    rows = [row for table in tables for row in COUNTERS[table]]
    assert len(rows) >= 7
    for row in rows:
        assert getattr(empty, row.name) == row.zero, row.name
        one = replace(empty, **{row.name: True if row.type == "bool" else 3})
        assert getattr(one.without_gauges(), row.name) == (row.zero if row.is_gauge else 3), row.name
        if row.is_sum:
            assert getattr(one + empty + one, row.name) == 6, row.name


# --- exports ----------------------------------------------------------------------------------------------------------


def test_released_metrics_keep_their_names_and_units() -> None:
    metrics = [*DISPATCHER_METRICS, *NODE_METRICS, *READ_METRICS]
    released = [tuple(line.split()) for line in RELEASED.strip().splitlines()]
    assert len(released) > 40
    assert set(released) <= {(metric.prometheus, metric.opentelemetry, metric.unit) for metric in metrics}


# --- Prometheus -------------------------------------------------------------------------------------------------------


def test_prometheus_reads_the_counters(client: redis.Redis, any_server: LocalServer, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        collector = PrometheusCollector(dispatcher)
        fill(dispatcher, 10)
        client.delete("events")
        client.set("events", "not a stream")
        dispatcher.produce(b"refused")
        assert dispatcher.flush().failed
        samples, stats = scrape(collector), dispatcher.stats()
    assert {name for name, *_ in samples} == {
        *(f"{metric.prometheus}_total" for metric in DISPATCHER_METRICS),
        "headrace_failed_total",
        *(f"headrace_flush_seconds_{part}" for part in ("bucket", "count", "sum")),
    }
    assert samples["headrace_messages_total", "events"] == 11
    assert samples["headrace_delivered_total", "events"] == 10
    assert samples["headrace_failed_total", "WRONGTYPE", "events"] == 1
    assert samples["headrace_connections_total", "events"] == 1
    assert samples["headrace_sent_bytes_total", "events"] == stats.bytes_sent > 0
    assert samples["headrace_flush_seconds_count", "events"] == 2
    assert samples["headrace_flush_seconds_sum", "events"] == pytest.approx(stats.flush_seconds_sum)
    buckets = {key[1]: value for key, value in samples.items() if key[0] == "headrace_flush_seconds_bucket"}
    assert buckets["+Inf"] == 2
    assert list(buckets.values()) == sorted(buckets.values())


def test_metric_names_follow_the_openmetrics_conventions(endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(PrometheusCollector(dispatcher))
        # The parser of OpenMetrics enforces its rules: suffixes, units, the order of buckets.
        write: Any = openmetrics.exposition.generate_latest
        read: Any = parse_openmetrics
        families = list(read(write(registry).decode()))
        assert len(families) == len(DISPATCHER_METRICS) + 2 + len(NODE_METRICS) + len(READ_METRICS)
        assert all(family.documentation for family in families)
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            registry.register(PrometheusCollector(dispatcher))


@pytest.mark.parametrize(
    ("options", "server"),
    [
        ({"host": "db1", "port": 7000}, "db1:7000"),
        ({"host": "::1"}, "[::1]:6379"),
        ({"unix_socket": "/run/redis.sock"}, "/run/redis.sock"),
    ],
)
def test_labels(options: dict[str, Any], server: str) -> None:
    endpoint = Endpoint(stream_key=b"caf\xe9\n", username="producer", password=CANARY, **options)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(Dispatcher(endpoint)))
    labels = [sample.labels for family in read_by_prometheus(registry) for sample in family.samples]
    assert len(labels) > len(DISPATCHER_METRICS)
    for label in labels:
        label.pop("le", None)
    assert all(label == {"server": server, "stream_key": "caf\\xe9\n"} for label in labels)


def test_dispatchers_of_one_stream_are_summed(client: redis.Redis, any_server: LocalServer, endpoint: Endpoint) -> None:
    elsewhere = Endpoint(unix_socket=any_server.unix_socket, stream_key="others")
    with Dispatcher(endpoint) as one, Dispatcher(endpoint) as two, Dispatcher(elsewhere) as three:
        collector = PrometheusCollector(one, two)
        collector.watch(three)
        collector.watch(one)  # again
        for n, dispatcher in enumerate((one, two, three), start=1):
            fill(dispatcher, n)
        samples = scrape(collector)
    assert samples["headrace_messages_total", "events"] == 3
    assert samples["headrace_messages_total", "others"] == 3


def test_counts_outlive_their_dispatchers(client: redis.Redis, endpoint: Endpoint) -> None:
    collector = PrometheusCollector()
    assert {key for key in scrape(collector) if len(key) > 1} == set()
    for n in range(1, 4):
        with Dispatcher(endpoint) as dispatcher:
            collector.watch(dispatcher)
            fill(dispatcher, 10)
        del dispatcher  # never scraped while it lived
        for _ in range(2):
            assert scrape(collector)["headrace_messages_total", "events"] == 10 * n
        assert not collector._watched.dispatchers._alive


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    metrics: Iterable[Any] = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in metrics}


def test_opentelemetry_reads_the_counters(client: redis.Redis, any_server: LocalServer, endpoint: Endpoint) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with Dispatcher(endpoint) as dispatcher, Dispatcher(endpoint) as second:
        instruments = OpenTelemetryInstruments(dispatcher, meter_provider=provider)
        instruments.watch(second)
        fill(dispatcher, 10)
        fill(second, 5)
        client.delete("events")
        client.set("events", "not a stream")
        dispatcher.produce(b"refused")
        assert dispatcher.flush().failed
        seen = points(reader)
    place = {
        "messaging.system": "redis",
        "messaging.destination.name": "events",
        "server.address": any_server.unix_socket,
    }
    assert {name: [dict(point.attributes) for point in of_name] for name, of_name in seen.items()} == {
        **{metric.opentelemetry: [place] for metric in DISPATCHER_METRICS},
        "headrace.flushes": [place],
        "headrace.flush.time": [place],
        "headrace.failed": [{**place, "error.type": "WRONGTYPE"}],
    }
    values = {name: of_name[0].value for name, of_name in seen.items()}
    assert (values["headrace.messages"], values["headrace.delivered"], values["headrace.failed"]) == (16, 15, 1)
    assert (values["headrace.connections"], values["headrace.flushes"]) == (2, 3)
    assert values["headrace.sent"] > 0
    assert values["headrace.flush.time"] > 0
    provider.shutdown()


def test_the_port_is_an_attribute() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    dispatcher = Dispatcher(Endpoint(host="db1", port=7000, stream_key="events", password=CANARY))
    OpenTelemetryInstruments(dispatcher, meter_provider=provider)
    attributes = dict(points(reader)["headrace.messages"][0].attributes)
    assert (attributes["server.address"], attributes["server.port"]) == ("db1", 7000)
    provider.shutdown()


# --- optional libraries ---------------------------------------------------------------------------------


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metrics_libraries_are_imported_on_demand() -> None:
    program = "import sys, headrace, headrace.metrics; print(*sys.modules)"
    modules = run(program).split()
    assert "headrace.metrics" in modules
    assert not {"prometheus_client", "opentelemetry", "tqdm", "pyarrow", "logging"} & set(modules)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("PrometheusCollector", "prometheus_client", "prometheus"),
        ("OpenTelemetryInstruments", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_library_is_named(name: str, library: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None
from headrace.metrics import {name}
try:
    {name}()
except ImportError as error:
    print(error)
"""
    assert f"pip install headrace[{extra}]" in run(program)
