"""The counters of members that share streams, and their export."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncShardConsumer, Endpoint, ShardConsumer
from headrace.metrics import PrometheusCollector, ShardStats
from headrace.tables import COUNTERS
from headrace.testing import LocalServer
from support.exports import scrape
from support.groups import GROUP, add
from support.pipelines import KEY
from support.processes import in_child
from support.shard_consumers import member_of, next_batch, sharded

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def test_a_shard_consumer_counts(server: LocalServer, client: Any) -> None:
    endpoint = sharded(server, 2)
    for shard in range(2):
        add(client, 10, key=f"orders:{shard}")
    with member_of(endpoint, "a", batch_rows=10) as member:
        assert member.stats().entries == 0
        member.commit(next_batch(member))
        next_batch(member)
        member.flush()
        stats = member.stats()
        assert (stats.batches, stats.entries, stats.rows, stats.lost) == (2, 20, 20, 0)
        assert (stats.committed, stats.pending, stats.fenced, stats.unknown) == (10, 10, 0, 0)
        assert (stats.streams_taken, stats.streams_given_up, stats.streams_owned) == (2, 0, 2)
        assert stats.last_entry_time == 0.01
        assert repr(stats) == "<ShardStats: 2 batches, 20 entries, 20 rows, 0 lost, 10 committed, 10 pending>"
        assert ">streams_owned<" in stats._repr_html_()
        report = member.report()
        both = [counter.name for counter in COUNTERS["shard_consumer"] if counter in COUNTERS["shard_report"]]
        assert len(both) >= 7
        assert {name: getattr(report, name) for name in both} == {name: getattr(stats, name) for name in both}
        assert in_child(member.stats) == ShardStats()
    assert (member.stats().streams_owned, member.stats().streams_given_up) == (0, 2)


def test_a_shard_consumer_on_an_event_loop_counts(tcp_server: LocalServer, connect: Connect) -> None:
    """Over TCP it learns only when it opens whether the server is of a cluster."""
    client = connect(tcp_server)
    add(client, 15)
    client.xgroup_create(KEY, GROUP, "1-0", entries_read=1)
    client.xtrim(KEY, maxlen=10, approximate=False)
    endpoint = Endpoint(host="127.0.0.1", port=tcp_server.port or 0, stream_key=KEY)

    async def main() -> None:
        options: Any = {"group": GROUP, "member": "a", "on_loss": "report"}
        async with AsyncShardConsumer(endpoint, **options) as consumer:
            collector = PrometheusCollector(consumer)
            batch = await consumer.poll()
            assert batch is not None
            consumer.commit(batch)
            await consumer.flush()
            stats = consumer.stats()
            assert (stats.entries, stats.committed, stats.streams_owned) == (10, 10, 1)
            assert stats.lost == consumer.report().lost == 4
            assert scrape(collector)["headrace_read_committed_total", KEY, GROUP] == 10

    asyncio.run(main())


def test_prometheus_reads_the_counters_of_a_shard_consumer(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 10)
    collector = PrometheusCollector()
    consumer: ShardConsumer | None = member_of(any_server, "a")
    assert consumer is not None
    collector.watch(consumer)
    assert str(collector) == "<PrometheusCollector: 0 dispatchers, 1 readers and consumers>"
    consumer.commit(next_batch(consumer))
    consumer.flush()
    samples = scrape(collector)
    assert samples["headrace_read_entries_total", KEY, GROUP] == 10
    assert samples["headrace_read_committed_total", KEY, GROUP] == 10
    assert samples["headrace_read_streams_owned", KEY, GROUP] == 1
    assert samples["headrace_read_pending", KEY, GROUP] == 0
    fields = {field.name for field in dataclasses.fields(ShardStats)}
    gauges = {"headrace_read_behind_seconds", "headrace_read_pending", "headrace_read_streams_owned"}
    counted = fields - {"last_entry_time", "bytes_received", "pending", "streams_owned"}
    names = {name for name, *_ in samples if name.startswith("headrace_read_")}
    assert names == {f"headrace_read_{name}_total" for name in counted} | gauges | {
        "headrace_read_received_bytes_total"
    }
    consumer.close()
    consumer = None
    gone = scrape(collector)
    assert gone["headrace_read_committed_total", KEY, GROUP] == 10
    assert gone["headrace_read_streams_owned", KEY, GROUP] == 0
