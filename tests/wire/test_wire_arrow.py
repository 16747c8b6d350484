"""The entries of Arrow data, read back by redis-py."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace import DeliveryReport, Dispatcher, Endpoint, ReaderError
from headrace.testing import LocalServer
from support import Monitor, Program

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

TEXTS = ["a", "", "äöü", "longer than the twelve bytes of a view", "\x00\r\n"]
BLOBS = [b"a", b"", b"\xff\x00", b"longer than the twelve bytes of a view\xff", b"*1\r\n"]


def to(server: LocalServer, **options: Any) -> Endpoint:
    return Endpoint(**{"unix_socket": server.unix_socket, "stream_key": "s", **options})


def send(server: LocalServer, data: Any, *, ts_field: str | None = None, **layout: Any) -> DeliveryReport:
    """Send the data. Marks the failures as seen; the caller checks them."""
    with Dispatcher(to(server), ts_field=ts_field) as dispatcher:
        dispatcher.produce_batch(data, **layout)
        report = dispatcher.flush()
        assert len(report.failed) + report.delivered == len(report)
        return report


def stored(client: Any, key: str | bytes = "s") -> list[list[tuple[bytes, bytes]]]:
    """The fields of each entry, in order."""
    return [list(fields.items()) for _, fields in client.xrange(key)]


def payloads(client: Any, key: str | bytes = "s") -> list[bytes]:
    entries = stored(client, key)
    assert all(len(entry) == 1 and entry[0][0] == b"payload" for entry in entries)
    return [entry[0][1] for entry in entries]


def as_bytes(values: list[Any]) -> list[bytes]:
    return [value if isinstance(value, bytes) else value.encode() for value in values]


# --- the payload column


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array(values, data_type), id=str(data_type))
        for values, types in (
            (TEXTS, (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))),
            (BLOBS, (pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int64(), pa.binary()))),
        )
        for data_type in types
    ],
)
def test_types_of_the_payload_column(any_server: LocalServer, connect: Connect, column: Any) -> None:
    nulls = pa.nulls(1, column.type)
    with_nulls = pa.concat_arrays([nulls, column, nulls, column, nulls])
    values = as_bytes(column.to_pylist())
    assert send(any_server, pa.record_batch({"payload": column})).delivered == len(values)
    report = send(any_server, pa.record_batch({"payload": with_nulls}))
    assert report.failed_ids == [0, 6, 12]
    assert {(one.kind, one.code, one.written) for one in report.failed} == {("permanent", "NULL_PAYLOAD", "no")}
    sliced = pa.record_batch({"payload": with_nulls}).slice(2, 8).slice(1, 6)  # rows 3 to 8, of which 6 is null
    assert send(any_server, sliced).failed_ids == [3]
    assert payloads(connect(any_server)) == values * 3 + values[2:] + values[:2]


def test_a_column_of_nulls_fails_each_row(any_server: LocalServer, connect: Connect) -> None:
    report = send(any_server, pa.record_batch({"payload": pa.nulls(3)}))
    assert [one.code for one in report.failed] == ["NULL_PAYLOAD"] * 3
    assert connect(any_server).keys() == []


# --- shapes of data


class OnlyAnArray:
    """Data that has only `__arrow_c_array__` of Arrow's PyCapsule interface."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        capsules: tuple[object, object] = self._batch.__arrow_c_array__(requested_schema)
        return capsules


class OnlyAStream:
    """Data that has only `__arrow_c_stream__`."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def _chunked() -> Any:
    parts = [TEXTS[:2], [], TEXTS[2:4], TEXTS[4:]]
    return pa.table({"payload": pa.chunked_array(parts, pa.string()), "n": pa.chunked_array([[0, 1], [2, 3, 4]])})


DATA: dict[str, Callable[[], Any]] = {
    "record batch": lambda: pa.record_batch({"payload": TEXTS}),
    "table of several chunks": _chunked,
    "sliced table": lambda: pa.concat_tables([_chunked()] * 3).slice(5, 5),
    "reader": lambda: pa.RecordBatchReader.from_batches(_chunked().schema, _chunked().to_batches(max_chunksize=1)),
    "array of structs": lambda: pa.array([{"payload": text} for text in TEXTS]),
    "polars": lambda: pl.DataFrame({"n": range(5), "payload": TEXTS}),
    "polars, categorical": lambda: pl.DataFrame({"payload": TEXTS}, schema={"payload": pl.Categorical}),
    "polars, chunks": lambda: pl.concat([pl.DataFrame({"payload": [text]}) for text in TEXTS], rechunk=False),
    "pandas": lambda: pd.DataFrame({"n": range(5), "payload": TEXTS}),
    "pandas, with an index": lambda: pd.DataFrame({"payload": TEXTS}, index=[f"row {n}" for n in range(5)]),
    "array alone": lambda: OnlyAnArray(pa.record_batch({"payload": TEXTS})),
    "stream alone": lambda: OnlyAStream(_chunked()),
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
def test_supported_data_shapes_are_delivered(
    any_server: LocalServer, connect: Connect, make: Callable[[], Any]
) -> None:
    assert send(any_server, make()).delivered == len(TEXTS)
    assert payloads(connect(any_server)) == as_bytes(TEXTS)


@pytest.mark.parametrize(
    "data",
    [
        pa.record_batch({"payload": pa.array([], pa.string())}),
        pa.table({"payload": pa.array([], pa.string())}),
        pa.record_batch({"payload": TEXTS}).slice(5),
        pa.RecordBatchReader.from_batches(pa.schema({"payload": pa.string()}), []),
        pl.DataFrame({"payload": []}, schema={"payload": pl.String}),
    ],
    ids=["record batch", "table", "slice", "reader", "polars"],
)
def test_empty_data_sends_no_messages(any_server: LocalServer, data: Any) -> None:
    with Monitor(any_server) as seen:
        assert len(send(any_server, data)) == 0
    assert seen.commands() == []


def test_many_record_batches_keep_their_order(any_server: LocalServer, connect: Connect) -> None:
    count = 100_000
    schema = pa.schema({"payload": pa.string()})

    def batches() -> Iterator[Any]:
        for start in range(0, count, 999):
            rows = range(start, min(start + 999, count))
            yield pa.record_batch({"payload": [str(row) for row in rows]}, schema=schema)

    assert send(any_server, pa.RecordBatchReader.from_batches(schema, batches())).delivered == count
    assert payloads(connect(any_server)) == [str(row).encode() for row in range(count)]


def test_rows_before_a_reader_failure_are_delivered(any_server: LocalServer, connect: Connect) -> None:
    schema = pa.schema({"payload": pa.string()})

    def batches() -> Iterator[Any]:
        yield pa.record_batch({"payload": TEXTS}, schema=schema)
        raise ValueError("the disk is gone")

    with Dispatcher(to(any_server), ts_field=None) as dispatcher:
        with pytest.raises(ReaderError, match=r"^cannot read the next record batch: .*the disk is gone"):
            dispatcher.produce_batch(pa.RecordBatchReader.from_batches(schema, batches()))
        assert dispatcher.flush().raise_for_failures().delivered == len(TEXTS)
    assert payloads(connect(any_server)) == as_bytes(TEXTS)


# --- message IDs

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("data_type", [*INTEGERS, pa.string(), pa.large_string(), pa.string_view(), pa.null()], ids=str)
def test_types_of_the_message_id_column(any_server: LocalServer, data_type: Any) -> None:
    given: list[Any] = ["x", None, "", "ä" * 100] if "string" in str(data_type) else [7, None, 0, 127]
    if data_type == pa.null():
        given = [None] * 4
    column = pa.array(given, data_type)
    # Every other row fails, so that both forms of reported IDs occur; a null ID means the ordinal.
    batch = pa.record_batch({"payload": ["a", None, "b", None], "id": column})
    report = send(any_server, pa.Table.from_batches([batch, batch.slice(1)]), message_id="id")
    ids = [value if value is not None else row for row, value in enumerate(given + given[1:])]
    assert report.failed_ids == [ids[1], ids[3], ids[4], ids[6]]
    assert pa.table(report.to_arrow()).column("message_id").to_pylist() == [str(one) for one in ids]


def test_the_largest_integer_message_ids_are_reported(any_server: LocalServer) -> None:
    for data_type, values in ((pa.int64(), [2**63 - 1, -(2**63)]), (pa.uint64(), [2**64 - 1, 0])):
        batch = pa.record_batch({"payload": pa.nulls(2, pa.string()), "id": pa.array(values, data_type)})
        assert send(any_server, batch, message_id="id").failed_ids == values


# --- fields and JSON

ROWS = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int8()),
        "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f": pa.array([1.0, 1e10, float("nan")]),
        "b": pa.array([True, False, None]),
        "d": pa.array([dt.date(2026, 4, 14), None, dt.date(1, 1, 1)]),
        "local": pa.array([dt.datetime(2026, 4, 14, 12, 0, 0, 500_000), None, None], pa.timestamp("us")),
        "zoned": pa.array([dt.datetime(2026, 4, 14, 12), None, None], pa.timestamp("us", "Europe/Berlin")),
        "utc": pa.array([dt.datetime(2026, 4, 14, 12), None, None], pa.timestamp("s", "UTC")),
        "dec": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        "s": pa.array(['a"\n', None, "ü"]),
        "bin": pa.array([b"\x00\xff", None, b""]),
        "dict": pa.array(["x", "y", None]).dictionary_encode(),
    }
)
NESTED = {
    "l": pa.array([[1, None], [], None]),
    "st": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "q"}]),
    "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
}


def test_typed_values_are_written_as_text_in_fields(any_server: LocalServer, connect: Connect) -> None:
    assert send(any_server, ROWS, fields=ROWS.column_names).delivered == 3
    first = {
        b"i": b"1",
        b"u": b"18446744073709551615",
        b"f": b"1.0",
        b"b": b"true",
        b"d": b"2026-04-14",
        b"local": b"2026-04-14T12:00:00.5",
        b"zoned": b"2026-04-14T14:00:00+02:00",
        b"utc": b"2026-04-14T12:00:00Z",
        b"dec": b"1.50",
        b"s": b'a"\n',
        b"bin": b"\x00\xff",
        b"dict": b"x",
    }
    second = {b"u": b"0", b"f": b"1.0E10", b"b": b"false", b"dict": b"y"}
    third = {b"i": b"-3", b"f": b"NaN", b"d": b"0001-01-01", b"dec": b"-0.01", b"s": "ü".encode(), b"bin": b""}
    assert stored(connect(any_server)) == [list(entry.items()) for entry in (first, second, third)]


def test_fields_keep_the_requested_order_with_the_time_last(any_server: LocalServer, connect: Connect) -> None:
    batch = pa.record_batch({"a": ["1", None, None], "b": ["2", "3", None], "c": ["4", "5", "6"]})
    report = send(any_server, batch, fields=("b", "a"), ts_field="at", message_id="c")
    assert [(one.message_id, one.kind, one.code) for one in report.failed] == [("6", "permanent", "EMPTY")]
    entries = stored(connect(any_server))
    assert [entry[:-1] for entry in entries] == [[(b"b", b"2"), (b"a", b"1")], [(b"b", b"3")]]
    assert {entry[-1][0] for entry in entries} == {b"at"}


def test_json_rows_match_the_format_of_spark(any_server: LocalServer, connect: Connect) -> None:
    table = pa.table({name: ROWS[name] for name in ROWS.column_names} | NESTED)
    assert send(any_server, table, json=True).delivered == 3
    first, second, third = payloads(connect(any_server))
    assert first.decode() == (
        '{"i":1,"u":18446744073709551615,"f":1.0,"b":true,"d":"2026-04-14","local":"2026-04-14T12:00:00.500",'
        '"zoned":"2026-04-14T14:00:00.000+02:00","utc":"2026-04-14T12:00:00.000Z","dec":1.50,"s":"a\\"\\n",'
        '"bin":"AP8=","dict":"x","l":[1,null],"st":{"a":1},"m":{"k":1}}'
    )
    assert second.decode() == '{"u":0,"f":1.0E10,"b":false,"dict":"y","l":[],"m":{}}'
    assert third.decode() == '{"i":-3,"f":"NaN","d":"0001-01-01","dec":-0.01,"s":"ü","bin":"","st":{"b":"q"}}'
    assert [json.loads(text)["f"] for text in (first, second, third)] == [1.0, 1e10, "NaN"]


def test_json_can_be_limited_to_some_columns(any_server: LocalServer, connect: Connect) -> None:
    assert send(any_server, ROWS, json=["s", "i"]).delivered == 3
    assert payloads(connect(any_server)) == [b'{"s":"a\\"\\n","i":1}', b"{}", '{"s":"ü","i":-3}'.encode()]


def test_json_false_uses_the_default_layout(any_server: LocalServer, connect: Connect) -> None:
    assert send(any_server, pa.record_batch({"payload": ["x"], "n": [1]}), json=False).delivered == 1
    assert payloads(connect(any_server)) == [b"x"]


# --- columns of stream keys and entry IDs


@pytest.mark.parametrize("data_type", [pa.string(), pa.large_binary(), pa.binary_view(), pa.string_view()], ids=str)
def test_rows_are_sent_to_the_stream_key_in_their_column(
    any_server: LocalServer, connect: Connect, data_type: Any
) -> None:
    keys = pa.array(["one", None, "two", "one", ""], data_type)
    batch = pa.record_batch({"payload": list("abcde"), "key": keys})
    report = send(any_server, batch, stream_key="key")
    assert [(one.message_id, one.kind, one.code) for one in report.failed] == [(4, "permanent", "BAD_STREAM_KEY")]
    client = connect(any_server)
    assert {key: payloads(client, key) for key in ("one", "two", "s")} == {
        "one": [b"a", b"d"],
        "two": [b"c"],
        "s": [b"b"],
    }
    assert client.dbsize() == 3


def test_entry_ids_are_taken_from_a_column(server: LocalServer, program: Program, connect: Connect) -> None:
    far = 2**62
    given = ["5-1", "5-2", f"{far}", f"{far}-7", f"{far}-*", None, "*", "nonsense", f"{far}-7"]
    report = send(server, pa.record_batch({"payload": list("abcdefghi"), "at": given}), entry_id="at")
    ids = [entry_id.decode() for entry_id, _ in connect(server).xrange("s")]
    sequence_by_server = program.can("redis-7.0")
    after = [f"{far}-8"] if sequence_by_server else []
    # The server's own IDs follow on the largest, which lies in the future.
    last = 8 if sequence_by_server else 7
    assert ids == ["5-1", "5-2", f"{far}-0", f"{far}-7", *after, f"{far}-{last + 1}", f"{far}-{last + 2}"]
    assert pa.table(report.to_arrow()).column("entry_id").drop_null().to_pylist() == ids
    failed = {one.message_id: (one.kind, one.code, one.written) for one in report.failed}
    assert failed.pop(7) == ("permanent", "BAD_ENTRY_ID", "no")
    assert failed.pop(8) == ("retryable", "ERR", "no")  # smaller than the top item
    assert failed == ({} if sequence_by_server else {4: ("retryable", "ERR", "no")})
