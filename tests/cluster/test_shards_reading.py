"""The shards of a stream as one: readers, `inspect` and consumer groups."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import CommandError, Consumer, Dispatcher, Endpoint, Reader
from headrace.testing import LocalCluster, LocalServer
from support.clusters import endpoint_of
from support.consumers import consumer_of
from support.patience import PATIENCE
from support.pipelines import endpoint_to, outcomes
from support.shards import shard_of

SHARDS = 12


def write(endpoint: Endpoint, rows: range) -> None:
    table = pa.table({"payload": [b"%d" % row for row in rows], "key": [f"key {row % 40}" for row in rows]})
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table, shard_key="key")
        assert dispatcher.flush().ok


def read(endpoint: Endpoint, **options: Any) -> dict[bytes, list[int]]:
    """The rows of each shard, in the order in which they came."""
    found: dict[bytes, list[int]] = {key: [] for key in endpoint.stream_keys}
    with Reader(endpoint, end="latest", fields=["payload"], **options) as reader:
        for batch in reader:
            found[batch.stream] += map(int, pa.record_batch(batch).column("payload").to_pylist())
    return found


def wanted(endpoint: Endpoint, rows: range) -> dict[bytes, list[int]]:
    keys = endpoint.stream_keys
    shards = {key: number for number, key in enumerate(keys)}
    of_row = {row: shard_of(f"key {row % 40}".encode(), len(keys)) for row in rows}
    return {key: [row for row in rows if of_row[row] == number] for key, number in shards.items()}


@pytest.mark.parametrize("names", ["plain", "spread"])
def test_a_reader_reads_all_shards_of_a_cluster(cluster: LocalCluster, key: str, names: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names)
    write(endpoint, range(1_000))
    assert read(endpoint) == wanted(endpoint, range(1_000))


def test_all_shards_of_a_single_server_are_read_and_inspected(server: LocalServer) -> None:
    endpoint = endpoint_to(server, stream_key="orders", shards=SHARDS)
    write(endpoint, range(1_000))
    assert read(endpoint) == wanted(endpoint, range(1_000))
    inspection = headrace.inspect(endpoint)
    streams = pa.table(inspection.streams)
    assert sum(streams.column("length").to_pylist()) == 1_000
    assert streams.num_rows == SHARDS


def test_the_streams_of_a_reader_and_a_consumer_are_the_shards(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, shards=3)
    write(endpoint, range(10))
    first, second, third = endpoint.stream_keys
    with Reader(endpoint) as reader, consumer_of(endpoint) as consumer:
        for reading in (reader, consumer):
            assert reading.streams == [first, second, third]
            reading.drop_stream(second)
            assert reading.streams == [first, third]


def test_inspect_shows_all_shards_of_a_cluster(cluster: LocalCluster, key: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS)
    write(endpoint, range(400))
    streams = pa.table(headrace.inspect(endpoint).streams)
    assert sum(streams.column("length").to_pylist()) == 400


def test_a_consumer_reads_all_shards_of_a_server(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, stream_key="orders", shards=SHARDS)
    names = {"group": "readers", "consumer": "one"}
    with Consumer(endpoint, fields=["payload"], start="earliest", **names) as consumer:  # type: ignore[arg-type]
        # The groups made the shards, before a producer wrote their number.
        write(endpoint, range(300))
        found: list[int] = []
        while len(found) < 300:
            batch = consumer.poll(PATIENCE)
            assert batch is not None
            found += map(int, pa.record_batch(batch).column("payload").to_pylist())
            consumer.ack(batch)
    assert sorted(found) == list(range(300))


@pytest.mark.parametrize("other", [{"shards": 5}, {"shards": SHARDS, "shard_hash": "crc32"}], ids=["number", "hash"])
def test_mismatched_shard_options_are_refused(
    cluster: LocalCluster, key: str, any_server: LocalServer, other: dict[str, Any]
) -> None:
    def check(right: Endpoint, wrong: Endpoint) -> None:
        write(right, range(10))
        with pytest.raises(CommandError, match="has 12 shards"), Reader(wrong, end="latest") as reader:
            list(reader)

    check(endpoint_of(cluster, key, shards=SHARDS), endpoint_of(cluster, key, **other))
    check(
        endpoint_to(any_server, stream_key="orders", shards=SHARDS),
        endpoint_to(any_server, stream_key="orders", **other),
    )


def test_a_reader_waits_for_shards_that_do_not_exist_yet(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, stream_key="orders", shards=3)
    with Reader(endpoint, fields=["payload"]) as reader:
        assert reader.read(timeout=0.05) is None
        write(endpoint, range(30))
        rows = 0
        while rows < 30:
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            rows += batch.num_rows


def test_the_registry_is_required_only_once_a_shard_has_entries(any_server: LocalServer, connect: Any) -> None:
    client = connect(any_server)
    client.xgroup_create("orders:0", "readers", mkstream=True)
    endpoint = endpoint_to(any_server, stream_key="orders", shards=3)
    write(endpoint, range(3))
    client.delete("{orders}:shards")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"4")
        (outcome,) = outcomes(dispatcher.flush())
        assert outcome.code == "BAD_SHARDS"
