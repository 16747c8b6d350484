"""A reader of streams of all nodes: what comes out, in which order, and where it stands."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import CommandError, DataLossError, FieldError, ReadBatch, Reader
from headrace.testing import LocalCluster
from support.clusters import endpoint_of, keys_on_all_masters
from support.patience import NEVER, PATIENCE


def add(cluster: LocalCluster, key: str, numbers: Iterable[int]) -> None:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        pipeline = client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd(key, {"n": number}, id=f"{number + 1}-0")
        pipeline.execute()


def numbers(batch: ReadBatch) -> list[int]:
    return [int(n) for n in pa.record_batch(batch)["n"].to_pylist()]


def by_stream(batches: Iterable[ReadBatch]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        found[batch.stream.decode()] += numbers(batch)
    return dict(found)


def reader_of(cluster: LocalCluster, keys: list[str], **options: Any) -> Reader:
    return Reader(endpoint_of(cluster, keys[0]), keys, **{"fields": ["n"], **options})


def test_each_entry_is_read_once_and_in_stream_order(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    expected = {name: list(range(1_000 + number)) for number, name in enumerate(keys)}
    for name, rows in expected.items():
        add(cluster, name, rows)
    with reader_of(cluster, [*keys, f"{key} none"], end="latest", batch_rows=300) as reader:
        batches = list(reader)
        assert by_stream(batches) == expected
        assert (reader.is_finished, reader.lost, reader.is_lost_exact) == (True, 0, True)
        assert (reader.stats().connections, reader.stats().entries) == (7, 6_015)
        places = json.loads(reader.position)["streams"]
    assert places == json.loads(batches[-1].position)["streams"]
    assert {name: place["id"] for name, place in places.items() if name in keys} == {
        name: f"{len(rows)}-0" for name, rows in expected.items()
    }
    # They take turns.
    assert len([*itertools.groupby(batch.stream for batch in batches)]) > len(keys)


@pytest.mark.parametrize("connections", [None, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_reading_can_resume_from_the_position_of_any_batch(
    cluster: LocalCluster, key: str, reverse: bool, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key, 4)
    for number, name in enumerate(keys):
        add(cluster, name, range(20 + number))
    end = None if reverse else "latest"
    options = {"end": end, "batch_rows": 7, "reverse": reverse, "connections": connections}
    with reader_of(cluster, keys, **options) as reader:
        batches = list(reader)
    whole = by_stream(batches)
    assert whole == {name: sorted(range(20 + n), reverse=reverse) for n, name in enumerate(keys)}
    for read, batch in enumerate(batches, 1):
        with reader_of(cluster, keys, **options, start=batch.position) as reader:
            assert by_stream([*batches[:read], *reader]) == whole


def test_streams_are_read_backward_one_after_the_other(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 4)
    for name in keys:
        add(cluster, name, range(20))
    beside = [keys[0], keys[1], f"{{{keys[0]}}}", keys[2], keys[3]]
    add(cluster, beside[2], range(20))
    with reader_of(cluster, beside, reverse=True, batch_rows=8) as reader:
        order = [batch.stream.decode() for batch in reader]
    assert [name for name, _ in itertools.groupby(order)] == beside


def test_a_blocked_reader_receives_new_entries_of_every_stream(cluster: LocalCluster, key: str) -> None:
    """The reply comes with the entry: no other stream's wait, and no pause, is in front of it."""
    keys = keys_on_all_masters(cluster, key)
    with reader_of(cluster, keys, block=NEVER) as reader:
        assert reader.read(timeout=0) is None
        for number, name in enumerate([*keys, *reversed(keys)]):
            add(cluster, name, [number])
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            assert (batch.stream.decode(), numbers(batch)) == (name, [number])
        assert reader.read(timeout=0.1) is None
        # One request for each entry, and one that waits: nothing asks again and again.
        assert reader.stats().requests < 100


@pytest.mark.parametrize("connections", [None, 1])
@pytest.mark.parametrize("options", [{"end": "latest"}, {}, {"reverse": True}], ids=["to the end", "on", "backward"])
@pytest.mark.parametrize("limit", [1, 100, 250, 1_200])
def test_the_limit_applies_to_all_streams_together(
    cluster: LocalCluster, key: str, options: dict[str, Any], limit: int, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key)
    expected = {name: sorted(range(200), reverse="reverse" in options) for name in keys}
    for name in keys:
        add(cluster, name, range(200))
    with reader_of(cluster, keys, limit=limit, block=NEVER, connections=connections, **options) as reader:
        found = by_stream(reader)
        assert reader.is_finished
    assert sum(map(len, found.values())) == limit
    for name, rows in found.items():
        assert rows == expected[name][: len(rows)]


@pytest.mark.parametrize("connections", [None, 1])
@pytest.mark.needs("redis-7.0")
def test_losses_are_reported_per_stream(cluster: LocalCluster, key: str, connections: int | None) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(10))
    with reader_of(cluster, keys, end="latest") as reader:
        position = [batch.position for batch in reader][-1]
    for number, name in enumerate(keys):
        add(cluster, name, range(10, 30))
        with redis.Redis(port=cluster.owner(name).port or 0) as client:
            client.xtrim(name, maxlen=20 - number, approximate=False)
    with reader_of(cluster, keys, end="latest", start=position, on_loss="report", connections=connections) as reader:
        batches = list(reader)
        assert (reader.lost, reader.is_lost_exact) == (sum(range(6)), True)
    assert {batch.stream.decode(): batch.lost for batch in batches} == {name: n for n, name in enumerate(keys)}
    rows: list[ReadBatch] = []
    lost: dict[str, int] = {}
    positions: list[str] = []
    with reader_of(cluster, keys, end="latest", start=position, connections=connections) as reader:
        while not reader.is_finished:
            try:
                rows += [batch for batch in [reader.read()] if batch is not None]
            except DataLossError as error:
                lost[error.stream.decode()] = error.lost
                positions.append(error.position)
    assert all(set(json.loads(position)["streams"]) == set(keys) for position in positions)
    assert lost == {name: n for n, name in enumerate(keys) if n}
    assert by_stream(rows) == {name: list(range(10 + n, 30)) for n, name in enumerate(keys)}


@pytest.mark.parametrize("connections", [None, 1])
def test_reading_resumes_after_an_entry_that_does_not_fit_the_schema(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(10))
    with redis.Redis(port=cluster.owner(keys[2]).port or 0) as client:
        client.xadd(keys[2], {"n": "x"}, id="11-0")
    add(cluster, keys[2], range(11, 20))
    schema = pa.schema({"n": pa.int64()})
    options = {"end": "latest", "fields": None, "schema": schema, "connections": connections}
    found: list[ReadBatch] = []
    with reader_of(cluster, keys, **options) as reader, pytest.raises(FieldError) as caught:
        found.extend(reader)
    position = caught.value.position
    assert set(json.loads(position)["streams"]) == set(keys)
    with reader_of(cluster, keys, **options, start=position) as reader:
        found += list(reader)
    expected = {name: list(range(10)) for name in keys}
    expected[keys[2]] = [n for n in range(20) if n != 10]
    assert by_stream(found) == expected


@pytest.mark.parametrize("connections", [None, 1])
def test_an_error_from_one_node_does_not_stop_other_streams(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    for name in keys:
        add(cluster, name, range(10))
    found: list[ReadBatch] = []
    refused: list[tuple[str, str]] = []
    with reader_of(cluster, keys, batch_rows=5, block=0.05, connections=connections) as reader:
        with redis.Redis(port=cluster.owner(keys[0]).port or 0) as client:
            client.delete(keys[0])
            client.set(keys[0], "no stream")
        while sum(batch.stream.decode() != keys[0] for batch in found) < 4 or not refused:
            try:
                batch = reader.read(timeout=PATIENCE)
                assert batch is not None
                found.append(batch)
            except CommandError as error:
                refused.append((error.code, error.stream.decode()))
    assert refused == [("WRONGTYPE", keys[0])]
    assert by_stream(batch for batch in found if batch.stream.decode() != keys[0]) == {
        name: list(range(10)) for name in keys[1:]
    }
