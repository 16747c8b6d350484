"""A reader as the data of pyarrow, pandas, polars, DuckDB and others: each layout, nothing at all, and odd names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Dispatcher, Endpoint, FieldError, Reader
from headrace.testing import LocalServer

Rows = list[dict[str, Any]]


def _pyarrow(reader: Reader) -> Rows:
    return _plain(pa.table(reader))


def _pyarrow_reader(reader: Reader) -> Rows:
    return _plain(pa.RecordBatchReader.from_stream(reader).read_all())


def _pandas(reader: Reader) -> Rows:
    import pandas as pd

    frame = pa.table(reader).to_pandas(types_mapper=pd.ArrowDtype)
    return [{name: _unlisted(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _polars(reader: Reader) -> Rows:
    import polars as pl

    return [{name: _unlisted(value) for name, value in row.items()} for row in pl.DataFrame(reader).to_dicts()]


def _duckdb(reader: Reader) -> Rows:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.sql("SELECT * FROM reader")
        names = found.columns
        return [{name: _unlisted(value) for name, value in zip(names, row, strict=True)} for row in found.fetchall()]


def _nanoarrow(reader: Reader) -> Rows:
    import nanoarrow

    return _plain(pa.table(nanoarrow.ArrayStream(reader)))


def _arro3(reader: Reader) -> Rows:
    import arro3.core

    return _plain(pa.table(arro3.core.Table.from_arrow(reader)))


LIBRARIES: list[Callable[[Reader], Rows]] = [_pyarrow, _pyarrow_reader, _pandas, _polars, _duckdb, _nanoarrow, _arro3]


def _plain(table: pa.Table) -> Rows:
    return [{name: _unlisted(value) for name, value in row.items()} for row in table.to_pylist()]


def _unlisted(value: Any) -> Any:
    """Maps and lists of pairs as lists of tuples."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list):
        return [tuple(item.values()) if isinstance(item, dict) else item for item in value]
    return value


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__[1:])
def library(request: pytest.FixtureRequest) -> Callable[[Reader], Rows]:
    found: Callable[[Reader], Rows] = request.param
    return found


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


@pytest.fixture
def client(any_server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    return connect(any_server)


TABLE = pa.table({"id": [1, None, 3], "name": ["a", "ü", None]})
LAYOUTS: dict[str | None, dict[str, Any]] = {
    None: {"fields": ["id", "name"]},
    "json": {"json": True, "rows_per_entry": 2},
    "arrow_ipc": {"arrow_ipc": True, "rows_per_entry": 2},
}


def test_each_library_reads_each_layout(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows]
) -> None:
    for unpack, written in LAYOUTS.items():
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce_batch(TABLE, **written)
            dispatcher.flush().raise_for_failures()
        options: dict[str, Any] = {"unpack": unpack, "metadata": ["stream"]}
        with Reader(endpoint, end="latest", schema=TABLE.schema, **options) as reader:
            rows = library(reader)
        assert [row.pop("stream") for row in rows] == ["s"] * 3
        assert rows == TABLE.to_pylist()
        client.delete("s")


def test_each_library_reads_payloads(endpoint: Endpoint, library: Callable[[Reader], Rows]) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(pa.table({"body": [b"\xff", b"", b"x"]}), payload="body", rows_per_entry=2)
        dispatcher.flush().raise_for_failures()
    with Reader(endpoint, end="latest", schema=pa.schema({"body": pa.binary()}), unpack="payload") as reader:
        assert library(reader) == [{"body": b"\xff"}, {"body": b""}, {"body": b"x"}]


def test_each_library_reads_an_empty_range(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows]
) -> None:
    forms: list[dict[str, Any]] = [{}, {"fields_as": "list"}, {"fields": ["id"]}, {"fields": ["id"], "unpack": "json"}]
    for number, options in enumerate([*forms, *forms], 7):
        with Reader(endpoint, start="5", end="6", **options) as reader:
            assert library(reader) == []
        if number >= 10:
            client.xadd("s", {"id": "1"}, id=f"{number}-0")


def test_each_library_reads_duplicate_names(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows]
) -> None:
    client.execute_command("XADD", "s", "1-0", "id", "1", "x", "2", "id", "3")  # type: ignore[no-untyped-call]
    for options, column in [
        ({}, [("x", b"2"), ("id", b"3")]),
        ({"fields_as": "list"}, [("id", b"1"), ("x", b"2"), ("id", b"3")]),
    ]:
        with Reader(endpoint, end="latest", metadata=[], **options) as reader:  # type: ignore[arg-type]
            assert library(reader) == [{"fields": column}]
    with Reader(endpoint, end="latest", schema=pa.schema({"id": pa.int64()})) as reader:
        assert library(reader) == [{"id": 3}]
    with Reader(
        endpoint, end="latest", schema=pa.schema({"x": pa.int8()}), on_bad_field="keep", metadata={"raw": "all"}
    ) as reader:
        assert library(reader) == [{"all": None, "x": 2}]


def test_each_library_reads_names_that_are_not_utf8(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows]
) -> None:
    client.xadd("s", {b"\xff": "1", "\\xff": "2", "ü": "3"}, id="1-0")
    for form in ("map", "list"):
        with Reader(endpoint, end="latest", metadata=[], fields_as=form) as reader:
            assert library(reader) == [{"fields": [("\\xff", b"1"), ("\\\\xff", b"2"), ("ü", b"3")]}]
        with Reader(endpoint, end="latest", metadata=[], fields_as=form, names="binary") as reader:
            assert library(reader) == [{"fields": [(b"\xff", b"1"), (b"\\xff", b"2"), ("ü".encode(), b"3")]}]
    key = Reader(endpoint, [b"re\xff"], end="latest")
    client.xadd(b"re\xff", {"a": 1})
    with key:
        assert library(key) == []
    with Reader(endpoint, [b"re\xff"], end="latest", metadata=["stream"], fields=["a"]) as reader:
        assert library(reader) == [{"stream": "re\\xff", "a": "1"}]


@pytest.mark.parametrize("options", [{}, {"block": 0.1}, {"start": "latest"}])
def test_a_reader_that_follows_is_no_table(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows], options: dict[str, Any]
) -> None:
    """It would wait for more entries for ever."""
    client.xadd("s", {"n": 1}, id="1-1")
    with (
        Reader(endpoint, **options) as reader,
        pytest.raises(
            Exception, match=r"never ends, so it is not a table: give it end='latest', another end or limit="
        ),
    ):
        library(reader)


@pytest.mark.parametrize("options", [{"limit": 1}, {"end": "1-1"}, {"reverse": True}])
def test_a_reader_that_ends_is_a_table(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows], options: dict[str, Any]
) -> None:
    client.xadd("s", {"n": 1}, id="1-1")
    with Reader(endpoint, fields=["n"], **options) as reader:
        assert [row["n"] for row in library(reader)] == ["1"]


def test_a_reader_keeps_the_exception_that_a_library_replaces_with_its_own(
    endpoint: Endpoint, client: redis.Redis, library: Callable[[Reader], Rows]
) -> None:
    client.execute_command("XADD", "s", "1-0", "id", "1")  # type: ignore[no-untyped-call]
    client.execute_command("XADD", "s", "2-0", "id", "x")  # type: ignore[no-untyped-call]
    with Reader(endpoint, end="latest", schema=pa.schema({"id": pa.int64()}), metadata=[]) as reader:
        with pytest.raises(Exception, match=r"FieldError: stream s, entry 2-0: .*; Reader\.error has this exception"):
            library(reader)
        error = reader.error
        assert isinstance(error, FieldError)
        assert (error.stream, error.entry_id) == (b"s", "2-0")
    client.xdel("s", "2-0")
    with Reader(endpoint, end="latest", schema=pa.schema({"id": pa.int64()}), metadata=[]) as reader:
        assert library(reader) == [{"id": 1}]
        assert reader.error is None


def test_the_exception_is_that_of_the_last_table(endpoint: Endpoint, client: redis.Redis) -> None:
    client.execute_command("XADD", "s", "1-0", "id", "x")  # type: ignore[no-untyped-call]
    with Reader(endpoint, end="latest", schema=pa.schema({"id": pa.int64()}), metadata=[]) as reader:
        with pytest.raises(pa.ArrowInvalid):
            pa.table(reader)
        assert isinstance(reader.error, FieldError)
        reader.__arrow_c_stream__()
        assert reader.error is None
