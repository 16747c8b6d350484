"""Columns by the names of their types, and columns that the first entry determines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ConfigError, Consumer, Dispatcher, Endpoint, FieldError, Reader, SchemaError
from headrace.testing import LocalServer
from support.paths import ROOT

Connect = Callable[..., redis.Redis]


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(any_server)


def write(endpoint: Endpoint, table: pa.Table, **layout: Any) -> None:
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        dispatcher.produce_batch(table, **layout)
        dispatcher.flush().raise_for_failures()


def schema_of(endpoint: Endpoint, **options: Any) -> pa.Schema:
    with Reader(endpoint, end="latest", **options) as reader:
        return pa.table(reader).schema


# --- names of types

FLAT = [
    *(pa.null(), pa.bool_()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(9, 2), pa.decimal64(18, -3), pa.decimal128(38, 38), pa.decimal256(76, 0)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Rome", "-03:30")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.month_day_nano_interval(),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)),
    *(pa.uuid(), pa.bool8()),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint64(), pa.decimal128(9, 2))),
]

NESTED = st.recursive(
    # Nulls cannot be refused where there is nothing else, and a dictionary cannot be nested.
    st.sampled_from([flat for flat in FLAT if not pa.types.is_dictionary(flat) and flat != pa.null()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.tuples(inner, st.integers(0, 9)).map(lambda drawn: pa.list_(*drawn)),
        st.tuples(st.sampled_from(["item", "element"]), inner, st.booleans()).map(
            lambda drawn: pa.list_(pa.field(drawn[0], drawn[1], nullable=drawn[2]))
        ),
        st.lists(
            st.tuples(st.sampled_from(["a", "b c", "ü"]), inner, st.booleans()), unique_by=lambda member: member[0]
        ).map(lambda members: pa.struct([pa.field(name, kind, nullable=null) for name, kind, null in members])),
        st.tuples(inner, st.booleans()).map(lambda drawn: pa.map_(pa.string(), drawn[0], keys_sorted=drawn[1])),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", FLAT, ids=str)
def test_the_name_of_a_type_is_what_pyarrow_prints(endpoint: Endpoint, kind: pa.DataType) -> None:
    assert schema_of(endpoint, schema={"a": str(kind)}) == pa.schema({"a": kind})


def test_nested_types_have_the_names_that_pyarrow_prints(endpoint: Endpoint) -> None:
    @settings(max_examples=100, deadline=None)
    @given(NESTED, st.booleans())
    def check(kind: pa.DataType, is_nullable: bool) -> None:
        field = pa.field("a", kind, nullable=is_nullable)
        name = f"{kind}{'' if is_nullable else ' not null'}"
        of_pyarrow = schema_of(endpoint, schema=pa.schema([field]), unpack="json")
        assert schema_of(endpoint, schema={"a": name}, unpack="json") == of_pyarrow

    check()


def test_short_names_of_types(endpoint: Endpoint) -> None:
    names = {
        "id": "int64",
        "at": "timestamp[us, UTC]",
        "total": "decimal(9,2)",
        "large": "decimal(40, 2)",
        "key": "uuid",
        "name": "utf8 not null",
        "ratio": "float64",
    }
    expected = {
        "id": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "total": pa.decimal128(9, 2),
        "large": pa.decimal256(40, 2),
        "key": pa.uuid(),
        "name": pa.string(),
        "ratio": pa.float64(),
    }
    fields = [pa.field(name, kind, nullable=name != "name") for name, kind in expected.items()]
    assert schema_of(endpoint, schema=names) == pa.schema(fields)
    with Consumer(endpoint, group="g", consumer="c", schema=names, metadata=["deliveries"]) as consumer:
        assert pa.schema(consumer) == pa.schema([*fields, pa.field("deliveries", pa.uint64(), nullable=False)])


def test_rows_are_read_by_names_of_types_without_an_arrow_library(any_server: LocalServer) -> None:
    code = f"""
import sys
from headrace import Dispatcher, Endpoint, Reader

endpoint = Endpoint.from_url({any_server.url!r}, stream_key="s")
with Dispatcher(endpoint) as dispatcher:
    dispatcher.produce(fields={{"id": 7, "total": "9.50", "at": "2026-04-14T12:00:00Z"}})
schema = {{"id": "int64", "total": "decimal(9, 2)", "at": "timestamp[us, UTC]"}}
with Reader(endpoint, end="latest", schema=schema) as reader:
    print([batch.to_pylist() for batch in reader])
assert not {{"pyarrow", "polars"}} & sys.modules.keys()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    rows = [[{"id": 7, "total": Decimal("9.50"), "at": datetime(2026, 4, 14, 12, tzinfo=UTC)}]]
    zoned = repr(rows).replace("datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')")
    assert (run.stdout.strip(), run.stderr) == (zoned, "")


def test_a_schema_of_polars_is_an_arrow_schema_although_it_is_a_dict(endpoint: Endpoint) -> None:
    assert schema_of(endpoint, schema=pl.Schema({"a": pl.Int16})) == pa.schema({"a": pa.int16()})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            {"total": "decimal(9)"},
            r'schema must give the field "total" the name of a type, got "decimal\(9\)": decimal\(9, 2\) has',
        ),
        (
            {"id": "Int64"},
            'the field "id" the name of a type, got "Int64": did you mean \'int64\'\\? types are null, bool, int8',
        ),
        ({"at": "timestamp[us, Moon]"}, '"Moon" is not a time zone, such as UTC'),
        ({"id": int}, "schema must map names of fields to names of types, such as 'int64', got <class 'int'> for 'id'"),
        ({1: "int64"}, "schema must map names of fields to names of types"),
        ({}, "schema must name at least one field"),
        (["id"], "schema must be an Arrow schema, or a mapping such as"),
    ],
)
def test_a_wrong_schema_is_refused_with_what_is_allowed(endpoint: Endpoint, schema: Any, text: str) -> None:
    for make in (
        lambda: Reader(endpoint, schema=schema),
        lambda: Consumer(endpoint, group="g", consumer="c", schema=schema),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            make()
        assert caught.value.option == "schema"


# --- the columns of the first entry

ORDERS = pa.table(
    {
        "id": [1, 2, 3],
        "at": pa.array([datetime(2026, 4, 14, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        "total": pa.array([Decimal("1.50"), None, Decimal("2.00")], pa.decimal128(9, 2)),
        "city": pa.array(["Rome", "Oslo", "Rome"]).dictionary_encode(),
        "tags": [["a"], [], None],
    }
)


def test_arrow_ipc_without_a_schema_has_the_columns_of_the_first_entry(endpoint: Endpoint) -> None:
    write(endpoint, ORDERS, arrow_ipc=True, rows_per_entry=2)
    with Reader(endpoint, end="latest", unpack="arrow_ipc") as reader:
        with pytest.raises(SchemaError, match="the columns are those of the first entry, and no entry was read yet"):
            pa.schema(reader)
        table = pa.table(reader)
        assert pa.schema(reader) == table.schema == ORDERS.schema
    assert table.to_pylist() == ORDERS.to_pylist()
    with Reader(endpoint, end="latest", unpack="arrow_ipc", metadata=["row_in_entry"], on_bad_field="keep") as reader:
        batch = reader.read()
    assert batch is not None
    assert pa.record_batch(batch).schema.names == ["row_in_entry", "raw", *ORDERS.column_names]
    assert [entry.fields["id"] for entry in batch] == [1, 2, 3]


def test_later_entries_must_fit_the_first_one(endpoint: Endpoint) -> None:
    write(endpoint, pa.table({"id": [1]}), arrow_ipc=True)
    write(endpoint, pa.table({"id": pa.array([2], pa.int8()), "more": [1]}), arrow_ipc=True)
    write(endpoint, pa.table({"other": [3]}), arrow_ipc=True)
    write(endpoint, pa.table({"id": ["x"]}), arrow_ipc=True)
    with Reader(endpoint, end="latest", unpack="arrow_ipc") as reader:
        batch = reader.read()
        assert batch is not None
        assert batch.to_pylist() == [{"id": 1}, {"id": 2}, {"id": None}]
        with pytest.raises(FieldError, match='field "id" does not fit its column of type Int64: "x"'):
            reader.read()
    with Reader(endpoint, reverse=True, unpack="arrow_ipc") as reader:
        assert pa.table(reader)["id"].to_pylist() == ["x", None, "2", "1"]


def test_fields_of_the_first_entry(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {"a": 1, "ü": "x"})
    client.xadd("s", {"b": 1, "ü": "y"})
    other: Any = client
    other.execute_command("XADD", "t", "*", "a", 1, "a", 2, "b", 3)
    with Reader(endpoint, end="latest", fields="*") as reader:
        assert pa.table(reader).to_pylist() == [{"a": "1", "ü": "x"}, {"a": None, "ü": "y"}]
    with Reader(endpoint, ["t"], end="latest", fields="*", metadata={"entry_id": "id"}) as reader:
        (batch,) = reader
    assert [dict(entry.fields) for entry in batch] == [{"a": "2", "b": "3"}]
    with Reader(endpoint, end="latest", fields=["*"]) as reader:
        assert pa.table(reader).column_names == ["*"]


@pytest.mark.parametrize("options", [{"fields": "*"}, {"unpack": "arrow_ipc"}], ids=str)
def test_an_empty_stream_has_no_columns(endpoint: Endpoint, options: Any) -> None:
    with Reader(endpoint, end="latest", **options) as reader:
        assert list(reader) == []
        with pytest.raises(SchemaError, match="there is no entry, and the columns are those of the first one"):
            pa.table(reader)
        assert reader.is_finished


def test_a_reader_that_follows_learns_the_columns_when_the_first_entry_arrives(endpoint: Endpoint) -> None:
    with Reader(endpoint, unpack="arrow_ipc") as reader:
        assert reader.read(0.01) is None
        write(endpoint, ORDERS, arrow_ipc=True)
        batch = reader.read()
    assert batch is not None
    assert batch.to_pylist() == ORDERS.to_pylist()


def test_the_first_entry_of_any_stream_counts_for_all_streams(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("b", {"a": 1, "x": 2})
    client.xadd("c", {"a": 3, "y": 4})
    keys = ["empty", "b", "c"]
    with Reader(endpoint, keys, end="latest", fields="*", metadata=["stream"]) as reader:
        table = pa.table(reader)
    assert table.column_names in (["stream", "a", "x"], ["stream", "a", "y"])
    assert {(row["stream"], row["a"]) for row in table.to_pylist()} == {("b", "1"), ("c", "3")}
    with Reader(endpoint, ["empty", "b"], fields="*") as reader:
        first = reader.read()
        client.xadd("empty", {"a": 5})
        second = reader.read()
    assert first is not None
    assert second is not None
    assert second.to_pylist() == [{"a": "5", "x": None}]


def test_a_position_needs_no_columns(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {"a": 1})
    client.xadd("s", {"b": 2})
    with Reader(endpoint, end="latest", fields="*", batch_rows=1) as reader:
        first = next(reader)
    with Reader(endpoint, start=first.position, end="latest", fields="*") as reader:
        assert next(reader).to_pylist() == [{"b": "2"}]


@pytest.mark.parametrize("on_bad_field", ["fail", "null", "keep"])
def test_an_entry_that_determines_no_columns_raises(endpoint: Endpoint, client: redis.Redis, on_bad_field: Any) -> None:
    client.xadd("s", {"other": "x"})
    client.xadd("s", {"payload": "not Arrow"})
    write(endpoint, pa.table({"id": [1]}), arrow_ipc=True)
    reason = "the columns cannot be those of this entry, the first one: "
    with Reader(endpoint, end="latest", unpack="arrow_ipc", on_bad_field=on_bad_field) as reader:
        with pytest.raises(
            FieldError, match=reason + "it has no field payload; name another with payload_field; fields or schema"
        ):
            reader.read()
        with pytest.raises(FieldError, match=reason + "field payload: "):
            pa.table(reader)
        assert pa.table(reader)["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("fields", "options", "text"),
    [
        (
            {"entry_id": 1},
            {"metadata": ["entry_id"]},
            'it has "entry_id", which is also a metadata column: give that another',
        ),
        ({b"\xff": 1}, {}, r'the name of its field "\\xff" is not UTF-8'),
        ({f"field {number}": 1 for number in range(1_025)}, {}, "it has 1025 columns, more than 1024"),
    ],
)
def test_fields_that_cannot_be_columns(
    endpoint: Endpoint, client: redis.Redis, fields: Any, options: Any, text: str
) -> None:
    client.xadd("s", fields)
    with Reader(endpoint, end="latest", fields="*", **options) as reader, pytest.raises(FieldError, match=text):
        reader.read()


def test_a_first_entry_takes_no_more_memory_than_any_other(endpoint: Endpoint) -> None:
    write(endpoint, pa.table({"id": list(range(10_000))}), arrow_ipc=True)
    with (
        Reader(endpoint, unpack="arrow_ipc", max_entry_bytes=10_000) as reader,
        pytest.raises(FieldError, match="10000"),
    ):
        reader.read()


def test_a_consumer_takes_the_fields_of_the_first_entry(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {"a": 1, "b": 2})
    with Consumer(endpoint, group="g", consumer="c", start="earliest", fields="*", metadata=["deliveries"]) as consumer:
        with pytest.raises(SchemaError, match="no entry was read yet"):
            pa.schema(consumer)
        batch = consumer.poll()
        assert batch is not None
        assert batch.to_pylist() == [{"a": "1", "b": "2", "deliveries": 1}]
        assert pa.schema(consumer) == pa.record_batch(batch).schema
        client.xadd("s", {"b": 3})
        consumer.ack(batch)
        second = consumer.poll()
        assert second is not None
        assert second.to_pylist() == [{"a": None, "b": "3", "deliveries": 1}]
        consumer.ack(second)


def test_a_consumer_refuses_a_field_with_the_name_of_a_metadata_column(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {"deliveries": 1})
    options: dict[str, Any] = {"group": "g", "consumer": "c", "start": "earliest", "fields": "*"}
    text = 'it has "deliveries", which is also a metadata column'
    with Consumer(endpoint, metadata=["deliveries"], **options) as consumer, pytest.raises(FieldError, match=text):
        consumer.poll()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"fields": "*", "unpack": "arrow_ipc"},
            r"fields '\*' means the fields of an entry, and unpack reads the columns",
        ),
        ({"fields": "*", "schema": {"a": "int8"}}, "fields and schema are mutually exclusive"),
        ({"fields": "a"}, r"fields must be '\*' or a sequence of names, such as \['id'\], got 'a'"),
        ({"unpack": "payload"}, "unpack 'payload' and 'json' need fields or schema"),
    ],
)
def test_options_that_contradict_the_columns_of_the_first_entry(endpoint: Endpoint, options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Reader(endpoint, **options)
