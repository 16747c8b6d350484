"""The columns of a reader: what a dispatcher wrote comes back under its schema, in every library."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Dispatcher, Endpoint, FieldError, Reader, SchemaError
from headrace.testing import LocalServer

Connect = Callable[..., redis.Redis]

ROWS = 500

TYPED = {
    "int8": pa.array([-128, 127, None] * ROWS, pa.int8()),
    "uint64": pa.array([0, 2**64 - 1, None] * ROWS, pa.uint64()),
    "float32": pa.array([0.1, float("inf"), None] * ROWS, pa.float32()),
    "float64": pa.array([1e308, -0.0, None] * ROWS, pa.float64()),
    "bool": pa.array([True, False, None] * ROWS, pa.bool_()),
    "text": pa.array(["", "ü\x00", None] * ROWS, pa.string()),
    "bytes": pa.array([b"", b"\xff\x00", None] * ROWS, pa.binary()),
    "decimal": pa.array([Decimal("-12345.67"), Decimal("0.01"), None] * ROWS, pa.decimal128(18, 2)),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), None] * ROWS, pa.date32()),
    "time": pa.array([time(0, 0), time(23, 59, 59, 999_999), None] * ROWS, pa.time64("us")),
    "moment": pa.array([datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 22, 1, 2, 3, 4, UTC), None] * ROWS),
    "naive": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), None] * ROWS),  # noqa: RUF100, DTZ001
    "elapsed": pa.array([timedelta(microseconds=1), timedelta(days=-1), None] * ROWS),
    "always": pa.array(["x", "y", "z"] * ROWS),
}


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


def write(endpoint: Endpoint, table: pa.Table, **layout: Any) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table, **layout)
        dispatcher.flush().raise_for_failures()


def test_fields_round_trip_under_the_same_schema(endpoint: Endpoint) -> None:
    table = pa.table(TYPED)
    write(endpoint, table, fields=table.column_names)
    with Reader(endpoint, end="latest", schema=table.schema) as reader:
        read = pa.table(reader)
    assert read.schema == table.schema
    assert read.combine_chunks() == table.combine_chunks()


def test_requested_fields_are_text_and_other_fields_are_left_out(endpoint: Endpoint) -> None:
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", None], "c": [1.5, 2.5, 3.5]})
    write(endpoint, table, fields=["a", "b", "c"])
    with Reader(endpoint, end="latest", fields=["b", "a", "missing"], metadata=["entry_seq", "stream"]) as reader:
        read = pa.table(reader)
    assert read.column_names == ["entry_seq", "stream", "b", "a", "missing"]
    assert read.drop_columns(["entry_seq", "stream"]).to_pydict() == {
        "b": ["x", "y", None],
        "a": ["1", None, "3"],
        "missing": [None, None, None],
    }
    assert read["stream"].to_pylist() == ["s"] * 3


def test_a_batch_ends_before_a_value_that_does_not_fit(
    endpoint: Endpoint, any_server: LocalServer, connect: Connect
) -> None:
    client = connect(any_server)
    for number in range(1, 301):
        client.xadd("s", {"n": "many" if number in (1, 50, 200) else str(number)}, id=f"{number}-0")
    schema = pa.schema({"n": pa.int32()})
    found: list[int] = []
    errors: list[FieldError] = []
    with Reader(endpoint, end="latest", schema=schema, batch_rows=64) as reader:
        for _ in range(3):
            with pytest.raises(FieldError) as raised:
                found.extend(n for batch in reader for n in pa.record_batch(batch)["n"].to_pylist())
            errors.append(raised.value)
            assert reader.position == raised.value.position
        found.extend(n for batch in reader for n in pa.record_batch(batch)["n"].to_pylist())
    assert [error.entry_id for error in errors] == ["1-0", "50-0", "200-0"]
    assert found == [number for number in range(1, 301) if number not in (1, 50, 200)]
    assert "stream s, entry 50-0" in str(errors[1])
    assert '"many"' in str(errors[1])
    with Reader(endpoint, start=errors[1].position, end="latest", schema=schema, on_bad_field="null") as reader:
        assert pa.table(reader)["n"].to_pylist() == [*range(51, 200), None, *range(201, 301)]


def test_prefetching_keeps_the_order_around_values_that_do_not_fit(
    endpoint: Endpoint, any_server: LocalServer, connect: Connect
) -> None:
    """Large pages are asked for before the one before them is read."""
    client = connect(any_server)
    bad = {7, 5_000, 5_001, 9_999, 17_000, 29_999}
    for first in range(0, 30_000, 1_000):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + 1_000):
            pipeline.xadd("s", {"n": "x" if number in bad else number}, id=f"{number + 1}-0")
        pipeline.execute()
    found, wrong = [], []
    with Reader(endpoint, end="latest", schema=pa.schema({"n": pa.int64()})) as reader:
        while not reader.is_finished:
            try:
                if batch := reader.read():
                    found += pa.record_batch(batch)["n"].to_pylist()
            except FieldError as error:
                wrong.append(int(error.entry_id.split("-")[0]) - 1)
    assert (found, wrong) == ([n for n in range(30_000) if n not in bad], sorted(bad))


def test_schemas_that_cannot_be_read_are_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="mutually exclusive"):
        Reader(endpoint, schema=pa.schema({"a": pa.int8()}), fields=["a"])
    with pytest.raises(ConfigError, match='the name of a type, got "int"'):
        Reader(endpoint, schema={"a": "int"})
    with pytest.raises((ConfigError, SchemaError), match="union"):
        Reader(endpoint, schema=pa.schema({"union": pa.dense_union([pa.field("a", pa.int8())])}))
    with pytest.raises(ConfigError, match="once, got 'stream' twice"):
        Reader(endpoint, fields=["stream"], metadata=["stream"])


def test_metadata_columns_can_be_renamed(endpoint: Endpoint) -> None:
    write(endpoint, pa.table({"entry_id": [1], "raw": ["x"]}), fields=["entry_id", "raw"])
    schema = pa.schema({"entry_id": pa.int64(), "raw": pa.int64()})
    metadata = {"raw": "all of it", "entry_seq": "größe", "stream": "stream"}
    with Reader(endpoint, end="latest", schema=schema, metadata=metadata, on_bad_field="keep") as reader:
        read = pa.table(reader)
    assert read.column_names == ["all of it", "größe", "stream", "entry_id", "raw"]
    assert read.drop_columns("all of it").to_pylist() == [{"größe": 0, "stream": "s", "entry_id": 1, "raw": None}]
    assert read["all of it"][0].as_py()[:2] == [("entry_id", b"1"), ("raw", b"x")]
    for wrong, reason in [
        ({"stream": "raw"}, "fields must name each column once, got 'raw' twice"),
        ({"stream": "a", "entry_id": "a"}, "metadata must name each column once, got 'a' twice"),
        ({"id": "a"}, "metadata must be some of 'stream'.* got 'id'"),
        ({"stream": ""}, "a mapping from columns to the names that they get"),
        ({"stream": 1}, "a mapping from columns to the names that they get"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            Reader(endpoint, schema=schema, metadata=wrong)  # type: ignore[arg-type]
    with Reader(endpoint, end="latest", fields=["raw"], metadata={}) as reader:
        assert pa.schema(reader).names == ["raw"]


def test_other_libraries_accept_a_reader_and_its_batches(endpoint: Endpoint) -> None:
    polars = pytest.importorskip("polars")
    write(endpoint, pa.table({"a": range(1_000), "b": ["x"] * 1_000}), fields=["a", "b"])
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    with Reader(endpoint, end="latest", schema=schema) as reader:
        frame = polars.DataFrame(reader)
    assert frame["a"].sum() == 499_500
    with Reader(endpoint, end="latest", schema=schema) as reader:
        assert pa.table(reader).to_pandas()["a"].sum() == 499_500
    with Reader(endpoint, end="latest") as reader:
        assert polars.DataFrame(next(reader)).height > 0
