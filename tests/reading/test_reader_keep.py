"""Entries that do not fit their columns, kept whole beside them: `on_bad_field="keep"`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Consumer, Endpoint, Reader
from headrace.testing import LocalServer

Connect = Callable[..., redis.Redis]
Fields = dict[Any, Any]

N = pa.schema({"n": pa.int64()})


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(any_server)


def write(client: redis.Redis, entries: list[Fields]) -> None:
    for number, fields in enumerate(entries, 1):
        client.xadd("s", fields, id=f"{number}-0")


def read(endpoint: Endpoint, schema: pa.Schema = N, **options: Any) -> pa.Table:
    with Reader(endpoint, end="latest", schema=schema, on_bad_field="keep", **options) as reader:
        assert pa.schema(reader).names[: -len(schema)][-1] == "raw"
        return pa.table(reader)


def kept(table: pa.Table, column: str = "raw") -> list[dict[str, bytes] | None]:
    return [None if row is None else dict(row) for row in table[column].to_pylist()]


def ipc(**columns: Any) -> bytes:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_entries_that_do_not_fit_are_kept_whole_on_each_server(server: LocalServer, connect: Connect) -> None:
    write(connect(server), [{"n": 1}, {"n": "many", b"\xff": b"\xfe"}, {"x": 3}, {"n": 2**64}, {"n": 5}])
    table = read(Endpoint.from_url(server.url, stream_key="s"), metadata=["entry_ms"])
    assert table.schema.names == ["entry_ms", "raw", "n"]
    assert table.schema.field("raw").type == pa.map_(pa.string(), pa.binary())
    assert table["n"].to_pylist() == [1, None, None, None, 5]
    bad = {"n": b"many", "\\xff": b"\xfe"}
    assert kept(table) == [None, bad, None, {"n": str(2**64).encode()}, None]


def test_the_raw_column_follows_fields_as_and_names(endpoint: Endpoint, client: redis.Redis) -> None:
    client.execute_command("XADD", "s", "1-0", "n", "x", "n", "y", b"\xff", "z")  # type: ignore[no-untyped-call]
    assert kept(read(endpoint)) == [{"n": b"y", "\\xff": b"z"}]
    table = read(endpoint, fields_as="list", names="binary")
    assert table["raw"].to_pylist() == [
        [{"name": b"n", "value": b"x"}, {"name": b"n", "value": b"y"}, {"name": b"\xff", "value": b"z"}]
    ]


def test_a_payload_that_does_not_fit_is_kept(endpoint: Endpoint, client: redis.Redis) -> None:
    write(client, [{"payload": "1"}, {"payload": "x", "ts": 1}, {"other": "2"}, {"payload:0": "3", "payload:1": "y"}])
    table = read(endpoint, unpack="payload", metadata=["entry_ms"])
    assert table["n"].to_pylist() == [1, None, None, 3, None]
    several = {"payload:0": b"3", "payload:1": b"y"}
    assert kept(table) == [None, {"payload": b"x", "ts": b"1"}, {"other": b"2"}, several, None]


def test_json_that_does_not_fit_is_kept_with_the_first_row_of_its_entry(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    whole, bad, broken = json.dumps({"n": 1}), json.dumps({"n": "many"}), '{"n":'
    write(
        client,
        [
            {"payload:0": whole, "payload:1": whole},
            {"payload:0": whole, "payload:1": bad},
            {"payload:0": whole, "payload:1": broken},
            {"payload": broken},
            {"payload": "[]"},
            {"payload:0": whole, "payload:2": whole},
            {"payload": whole},
        ],
    )
    table = read(endpoint, unpack="json", metadata=["entry_ms", "row_in_entry"])
    assert table["n"].to_pylist() == [1, 1, 1, None, 1, None, None, None, None, 1]
    rows = table.select(["entry_ms", "row_in_entry", "raw"]).to_pylist()
    assert [(row["entry_ms"], row["row_in_entry"]) for row in rows if row["raw"]] == [(n, 0) for n in range(2, 7)]
    assert [len(row["raw"]) for row in rows if row["raw"]] == [2, 2, 1, 1, 2]


def test_arrow_ipc_that_does_not_fit_is_kept_with_the_first_row_of_its_entry(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    whole = ipc(n=[1, 2])
    entries = [whole, whole[:-50], ipc(n=["3", "many"]), ipc(n=[[4], [5]]), ipc(n=pa.array([], pa.int64())), ipc(m=[6])]
    write(client, [{"payload": entry} for entry in entries])
    table = read(endpoint, unpack="arrow_ipc", metadata=["entry_ms"])
    assert table["n"].to_pylist() == [1, 2, None, 3, None, None, None, None]
    assert table["entry_ms"].to_pylist() == [1, 1, 2, 3, 3, 4, 4, 6]
    of_entry = [None, None, 1, 2, None, 3, None, None]
    assert kept(table) == [None if number is None else {"payload": entries[number]} for number in of_entry]


def test_entries_that_are_too_large_to_unpack_are_kept(endpoint: Endpoint, client: redis.Redis) -> None:
    write(client, [{"payload": ipc(n=list(range(1_000)))}, {"payload": ipc(n=[1])}])
    table = read(endpoint, unpack="arrow_ipc", max_entry_bytes=5_000)
    assert table["n"].to_pylist() == [None, 1]
    assert [row is None for row in kept(table)] == [False, True]


def test_each_batch_keeps_its_own_entries_that_do_not_fit(endpoint: Endpoint, client: redis.Redis) -> None:
    write(client, [{"n": "x" * number if number % 7 == 0 else number} for number in range(1, 401)])
    with Reader(endpoint, end="latest", schema=N, on_bad_field="keep", batch_rows=30) as reader:
        batches = [pa.table(batch) for batch in reader]
    assert len(batches) > 10
    table = pa.concat_tables(batches)
    bad = {number: {"n": b"x" * number} for number in range(7, 401, 7)}
    assert kept(table) == [bad.get(number) for number in range(1, 401)]
    with Reader(endpoint, end="5-0", reverse=True, schema=N, on_bad_field="keep") as reader:
        assert kept(pa.table(reader)) == [bad.get(number) for number in range(400, 4, -1)]


def test_a_consumer_keeps_entries_that_do_not_fit(server: LocalServer, connect: Connect) -> None:
    write(connect(server), [{"n": 1}, {"n": "many"}, {"n": 3}])
    endpoint = Endpoint.from_url(server.url, stream_key="s")
    with Consumer(
        endpoint, group="g", consumer="c", schema=N, on_bad_field="keep", metadata=["raw", "entry_ms", "deliveries"]
    ) as consumer:
        assert pa.schema(consumer).names == ["raw", "entry_ms", "n", "deliveries"]
        rows: list[pa.Table] = []
        while sum(map(len, rows)) < 3:
            rows.append(pa.table(next(consumer)))
        table = pa.concat_tables(rows)
    assert table["n"].to_pylist() == [1, None, 3]
    assert kept(table) == [None, {"n": b"many"}, None]


def test_invalid_options_for_bad_fields_are_refused(endpoint: Endpoint) -> None:
    for reason, options in [
        ("'keep' needs fields or schema", {"on_bad_field": "keep"}),
        ("fields must name each column once, got 'raw' twice", {"on_bad_field": "keep", "fields": ["raw"]}),
        ("'raw' twice", {"on_bad_field": "keep", "fields": ["n"], "metadata": ["raw", "raw"]}),
        ("metadata 'raw' needs on_bad_field 'keep'", {"fields": ["n"], "metadata": ["raw"]}),
        ("a Reader writes nothing to the server, a Consumer", {"fields": ["n"], "on_bad_field": "dead_letter"}),
        ("on_bad_field must be one of 'fail', 'null', 'keep', got 'skip'", {"on_bad_field": "skip"}),
    ]:
        with pytest.raises(ConfigError, match=reason):
            Reader(endpoint, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fields must name each column once, got 'raw' twice"):
        Consumer(endpoint, group="g", consumer="c", fields=["raw"], on_bad_field="keep")
