"""The counters of readers and consumers, and their export."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace import AsyncConsumer, AsyncReader, Consumer, Dispatcher, Reader, RetryPolicy
from headrace.metrics import ConsumerStats, OpenTelemetryInstruments, PrometheusCollector, ReaderStats
from headrace.tables import COUNTERS
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, next_batch, set_pending
from support.exports import scrape
from support.fixture_types import StartServer
from support.groups import GROUP, add
from support.pipelines import KEY, endpoint_to
from support.processes import after_ticks, in_child, wait_until
from support.servers import DURABLE

Connect = Callable[..., Any]


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> Any:
    return connect(any_server)


def test_a_reader_counts_entries_batches_and_bytes(any_server: LocalServer, client: Any) -> None:
    now = time.time()
    add(client, 20)
    client.xadd(KEY, {"field": "value"}, id=f"{int(now * 1000)}-0")
    with Reader(endpoint_to(any_server), end="latest", batch_rows=10) as reader:
        nothing = reader.stats()
        assert (nothing.entries, nothing.batches, nothing.connections) == (0, 0, 1)
        assert (nothing.last_entry_time, nothing.seconds_behind) == (None, None)
        first = reader.read()
        assert first is not None
        stats = reader.stats()
        assert (stats.batches, stats.rows, stats.entries) == (1, first.num_rows, first.num_rows)
        assert stats.last_entry_time == int(first.last_id.split("-")[0]) / 1000
        assert pa.table(reader).num_rows == 21 - first.num_rows
    stats = reader.stats()
    assert (stats.entries, stats.rows, stats.lost, stats.reconnects) == (21, 21, 0, 0)
    assert 3 <= stats.batches <= stats.requests + 3
    assert 21 * len("20-0field5value") < stats.bytes_received < 21 * 200 + 10_000
    assert stats.last_entry_time == pytest.approx(now, abs=0.01)
    assert stats.seconds_behind is not None
    assert 0 <= stats.seconds_behind < 120


def test_entries_of_several_rows_count_once(any_server: LocalServer) -> None:
    rows = pa.record_batch({"n": range(10)})
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce_batch(rows, arrow_ipc=True, rows_per_entry=5)
        dispatcher.flush().raise_for_failures()
    for reverse in (False, True):
        end = "earliest" if reverse else "latest"
        options: Any = {"schema": rows.schema, "unpack": "arrow_ipc", "reverse": reverse, "end": end}
        with Reader(endpoint_to(any_server), **options) as reader:
            assert pa.table(reader).num_rows == 10
            assert (reader.stats().rows, reader.stats().entries) == (10, 2)


def test_a_reader_counts_losses(any_server: LocalServer, client: Any) -> None:
    add(client, 30)
    with Reader(endpoint_to(any_server), batch_rows=10, on_loss="report", linger=0.0) as reader:
        reader.read()
        add(client, 30, first=31)
        client.xtrim(KEY, maxlen=5, approximate=False)
        while reader.position.find("60-0") < 0:
            reader.read(1.0)
        stats = reader.stats()
    assert stats.lost == reader.lost > 0
    assert stats.entries + stats.lost == 60


def test_waits_for_a_server_are_counted(start_server: StartServer, connect: Connect) -> None:
    server = start_server(config=DURABLE)
    add(connect(server), 3)
    with Reader(endpoint_to(server), retry=RetryPolicy(max_backoff=0.05, deadline=500), linger=0.0) as reader:
        reader.read()
        server.kill()
        assert reader.read(0.1) is None
        waiting = reader.stats()
        assert (waiting.connections, waiting.retry_waits) == (1, 1)
        assert 0 < waiting.retry_wait_seconds < 100

        def back() -> None:
            server.restart()
            add(connect(server), 1, first=4)

        with after_ticks(3, back):
            assert reader.read() is not None
        stats = reader.stats()
    assert (stats.connections, stats.reconnects, stats.retry_waits) == (2, 1, 1)
    assert stats.retry_wait_seconds > waiting.retry_wait_seconds


def test_a_consumer_counts_the_outcomes_of_entries(any_server: LocalServer, client: Any) -> None:
    add(client, 10)
    options: dict[str, Any] = {"max_failures": 1, "dead_letter_key": "dead", "min_idle": 1.0}
    with consumer_of(any_server, **options) as consumer:
        batch = next_batch(consumer)
        assert len(batch.entry_ids) == 10
        assert consumer.stats().pending == 10
        wait_until(lambda: consumer.stats().renewals >= 10)
        consumer.ack_ids(KEY, as_ids(range(1, 6)))
        consumer.fail_ids(KEY, ["6-0"], "why")
        consumer.release_ids(KEY, ["7-0"])
        set_pending(client, "other", ["8-0"], key=KEY)
        consumer.ack_ids(KEY, ["8-0"])
        consumer.flush()
        stats = consumer.stats()
        assert (stats.entries, stats.rows, stats.batches) == (10, 10, 1)
        assert (stats.acked, stats.dead, stats.released, stats.stale, stats.pending) == (5, 1, 1, 1, 2)
        assert (stats.reconnects, stats.lost, stats.unknown, stats.reclaimed) == (0, 0, 0, 0)
        assert stats.last_entry_time == 0.01
        report = consumer.report()
    assert (report.handed_over, report.lost) == (stats.entries, stats.lost)
    both = [row.name for row in COUNTERS["consumer"] if row in COUNTERS["report"]]
    assert len(both) >= 8
    for name in both:
        assert getattr(report, name) == getattr(stats, name), name
    assert consumer.stats().pending == 0


def test_a_forked_child_does_not_inherit_the_counts_of_a_consumer(any_server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(any_server) as consumer:
        consumer.ack(next_batch(consumer))
        assert in_child(consumer.stats) == ConsumerStats()
        assert consumer.stats().entries == 3


def test_prometheus_reads_the_counters(any_server: LocalServer, client: Any) -> None:
    add(client, 10)
    add(client, 5, key="other")
    endpoint = endpoint_to(any_server)
    collector = PrometheusCollector()
    with consumer_of(any_server) as consumer, Dispatcher(endpoint_to(any_server, stream_key="third")) as dispatcher:
        readers = [Reader(endpoint, [KEY, "other"], end="latest") for _ in range(2)]
        all_watched: list[Consumer | Dispatcher | Reader] = [consumer, dispatcher, *readers, consumer]
        for watched in all_watched:
            collector.watch(watched)
        consumer.ack(next_batch(consumer))
        consumer.flush()
        for reader in readers:
            pa.table(reader)
            reader.close()
        samples = scrape(collector)
        assert samples["headrace_read_entries_total", KEY, GROUP] == 10
        assert samples["headrace_read_acked_total", KEY, GROUP] == 10
        assert samples["headrace_read_pending", KEY, GROUP] == 0
        assert samples["headrace_read_entries_total", f"{KEY},other", ""] == 30
        assert samples["headrace_read_received_bytes_total", f"{KEY},other", ""] > 0
        assert samples["headrace_read_behind_seconds", KEY, GROUP] > 1_700_000_000
        assert ("headrace_read_acked_total", f"{KEY},other", "") not in samples
        assert samples["headrace_messages_total", "third", ""] == 0
        names = {name for name, *_ in samples if name.startswith("headrace_read_")}
    del readers, reader, watched, all_watched
    gone = scrape(collector)
    assert gone["headrace_read_entries_total", f"{KEY},other", ""] == 30
    assert ("headrace_read_behind_seconds", f"{KEY},other", "") not in gone
    fields = {field.name for field in dataclasses.fields(ConsumerStats)} - {
        "last_entry_time",
        "bytes_received",
        "pending",
    }
    exported = {f"headrace_read_{field}_total" for field in fields}
    assert names == exported | {
        "headrace_read_received_bytes_total",
        "headrace_read_behind_seconds",
        "headrace_read_pending",
    }


def test_prometheus_reads_the_counters_of_those_on_an_event_loop(any_server: LocalServer, client: Any) -> None:
    add(client, 10)
    endpoint = endpoint_to(any_server)

    async def main() -> None:
        collector = PrometheusCollector()
        options: Any = {"group": GROUP, "consumer": "c", "start": "0-0"}
        async with AsyncConsumer(endpoint, **options) as consumer, AsyncReader(endpoint, end="latest") as reader:
            collector.watch(consumer)
            collector.watch(reader)
            assert str(collector) == "<PrometheusCollector: 0 dispatchers, 2 readers and consumers>"
            batch = await consumer.poll()
            assert batch is not None
            consumer.ack(batch)
            await consumer.flush()
            async for _ in reader:
                pass
        samples = scrape(collector)
        assert samples["headrace_read_acked_total", KEY, GROUP] == 10
        assert samples["headrace_read_entries_total", KEY, ""] == 10

    asyncio.run(main())


def test_opentelemetry_reads_the_counters(any_server: LocalServer, client: Any) -> None:
    add(client, 10)
    exported = InMemoryMetricReader()
    provider = MeterProvider([exported])
    with consumer_of(any_server) as consumer, Reader(endpoint_to(any_server), end="latest") as reader:
        instruments = OpenTelemetryInstruments(consumer, meter_provider=provider)
        instruments.watch(reader)
        next_batch(consumer)
        pa.table(reader)
        data: Any = exported.get_metrics_data()
    metrics = {metric.name: metric.data.data_points for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    place = {
        "messaging.system": "redis",
        "messaging.destination.name": KEY,
        "server.address": any_server.unix_socket,
    }
    group = {**place, "messaging.consumer.group.name": GROUP}
    assert [(dict(point.attributes), point.value) for point in metrics["headrace.read.entries"]] == [
        (group, 10),
        (place, 10),
    ]
    assert [(dict(point.attributes), point.value) for point in metrics["headrace.read.pending"]] == [(group, 10)]
    assert len(metrics["headrace.read.behind.time"]) == 2
    provider.shutdown()


def test_stats_add_up() -> None:
    one = ReaderStats(entries=1, last_entry_time=5.0)
    two = ReaderStats(entries=2, retry_wait_seconds=0.5)
    assert one + two == ReaderStats(entries=3, retry_wait_seconds=0.5, last_entry_time=5.0)
    assert two + two == ReaderStats(entries=4, retry_wait_seconds=1.0)
