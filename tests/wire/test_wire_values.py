"""Unusual values: text that is not UTF-8, hidden keys, extension types, objects, times and intervals."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace import DeliveryReport, Dispatcher, Endpoint, SchemaError
from headrace.testing import LocalServer

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: The first is the text of a Spark `cast(X'FFFE41' as string)`; the others are cut, too long, or a surrogate.
BROKEN = [b"\xff\xfeA", b"\xe2\x82", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"caf\xe9, and more than a view holds"]
CLEANED = ["��A", "�", "���", "�", "caf�, and more than a view holds"]
WHOLE = ['a"\n', "", "äöü€😀", "longer than the twelve bytes of a view"]

TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
UUIDS = [uuid.UUID("123e4567-e89b-12d3-a456-426614174000"), uuid.UUID(int=0)]


def send(server: LocalServer, data: Any, **layout: Any) -> DeliveryReport:
    with Dispatcher(Endpoint(unix_socket=server.unix_socket, stream_key="s"), ts_field=None) as dispatcher:
        dispatcher.produce_batch(data, **layout)
        report = dispatcher.flush()
        assert len(report.failed) + report.delivered == len(report)
        return report


def entries(client: Any) -> list[dict[bytes, bytes]]:
    found = [fields for _, fields in client.xrange("s")]
    client.delete("s")
    return found


def documents(client: Any) -> list[Any]:
    """The JSON of each payload, which has to be UTF-8."""
    return [json.loads(entry[b"payload"].decode()) for entry in entries(client)]


def text(values: Sequence[bytes | None], data_type: Any = None) -> Any:
    """A column of type text with any bytes."""
    column = pa.array(values, pa.binary())
    _, offsets, data = column.buffers()
    texts = pa.StringArray.from_buffers(len(values), offsets, data, column.buffers()[0], column.null_count)
    if data_type in (None, pa.string()):
        return texts
    if data_type == pa.large_string():
        wide = pa.array(values, pa.large_binary())
        return pa.Array.from_buffers(pa.large_string(), len(values), wide.buffers(), wide.null_count)
    views = pa.array(values, pa.binary_view())
    return pa.Array.from_buffers(pa.string_view(), len(values), views.buffers(), views.null_count)


# --- text that is not UTF-8


@pytest.mark.parametrize("data_type", TEXT_TYPES, ids=str)
def test_invalid_utf8_is_replaced_in_json(any_server: LocalServer, connect: Connect, data_type: Any) -> None:
    values = [value for pair in zip(BROKEN, [*[one.encode() for one in WHOLE], None], strict=True) for value in pair]
    batch = pa.record_batch({"c": text(values, data_type), "n": list(range(len(values)))})
    assert send(any_server, batch, json=True).delivered == len(values)
    expected = [value for pair in zip(CLEANED, [*WHOLE, None], strict=True) for value in pair]
    assert [row.get("c") for row in documents(connect(any_server))] == expected
    # A slice without the broken ones is checked by itself.
    assert send(any_server, batch.slice(1, 1), json=True, rows_per_entry=2).delivered == 1
    assert [json.loads(one[b"payload:0"]) for one in entries(connect(any_server))] == [{"c": WHOLE[0], "n": 1}]


def test_an_offset_inside_a_character_invalidates_both_texts(any_server: LocalServer, connect: Connect) -> None:
    offsets = pa.py_buffer(b"".join(one.to_bytes(4, "little") for one in (0, 2, 4)))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer("xäy".encode()))
    send(any_server, pa.record_batch({"c": column}), json=True)
    assert documents(connect(any_server)) == [{"c": "x�"}, {"c": "�y"}]


def test_invalid_utf8_in_nested_columns_is_replaced(any_server: LocalServer, connect: Connect) -> None:
    broken = text(BROKEN)
    one_each = pa.array(range(len(BROKEN) + 1), pa.int32())
    table = pa.table(
        {
            "list": pa.ListArray.from_arrays(one_each, broken),
            "large": pa.LargeListArray.from_arrays(one_each.cast(pa.int64()), broken),
            "fixed": pa.FixedSizeListArray.from_arrays(broken, 1),
            "struct": pa.StructArray.from_arrays([broken], names=["a"]),
            "map": pa.MapArray.from_arrays(one_each, broken, broken),
            "dictionary": pa.DictionaryArray.from_arrays(pa.array(range(len(BROKEN)), pa.int8()), broken),
        }
    )
    expected = [
        {"list": [one], "large": [one], "fixed": [one], "struct": {"a": one}, "map": {one: one}, "dictionary": one}
        for one in CLEANED
    ]
    for part in (table, table.slice(2)):
        send(any_server, part, json=True)
        assert documents(connect(any_server)) == expected[-len(part) :]
        send(any_server, part, arrow_ipc=True, rows_per_entry=2)
        rows = [pa.table(headrace.unpack_arrow(entry)) for entry in entries(connect(any_server))]
        assert all(one.validate(full=True) is None for one in rows)
        given = pa.concat_tables(rows).to_pylist()
        assert [row | {"map": dict(row["map"])} for row in given] == expected[-len(part) :]


def test_invalid_utf8_is_unchanged_in_payloads_and_fields(any_server: LocalServer, connect: Connect) -> None:
    batch = pa.record_batch({"c": text(BROKEN)})
    send(any_server, batch, payload="c")
    assert [entry[b"payload"] for entry in entries(connect(any_server))] == BROKEN
    send(any_server, batch, fields=["c"])
    assert [entry[b"c"] for entry in entries(connect(any_server))] == BROKEN


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("data_type", TEXT_TYPES, ids=str)
def test_invalid_utf8_is_replaced_in_arrow_ipc(
    any_server: LocalServer, connect: Connect, data_type: Any, codec: str | None
) -> None:
    table = pa.table({"c": text([*BROKEN, None, b"whole"], data_type), "whole": pa.array(["ä"] * 7, data_type)})
    assert send(any_server, table, arrow_ipc=True, codec=codec).delivered == 7
    [entry] = entries(connect(any_server))
    for rows in (pa.table(headrace.unpack_arrow(entry)), pa.ipc.open_stream(entry[b"payload"]).read_all()):
        rows.validate(full=True)
        assert rows.schema == table.schema
        assert rows.to_pydict() == {"c": [*CLEANED, None, "whole"], "whole": ["ä"] * 7}


# --- what arrow_ipc writes is read


def hidden_keys() -> dict[str, Any]:
    """Columns in which a null hides a key that its dictionary does not have."""
    words = pa.dictionary(pa.int8(), pa.string())
    nothing = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([], pa.string()), safe=False)
    null, none = pa.array([True]), pa.array([None, 0], pa.int32())
    return {
        "made by pyarrow": pa.array([None], pa.struct([("a", words)])),
        "struct": pa.StructArray.from_arrays([nothing], names=["a"], mask=null),
        "struct in struct": pa.StructArray.from_arrays(
            [pa.StructArray.from_arrays([nothing], names=["a"])], names=["s"], mask=null
        ),
        "list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), nothing, mask=null),
        "list of no element": pa.ListArray.from_arrays(none, nothing),
        "large list": pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), nothing, mask=null),
        "fixed size list": pa.FixedSizeListArray.from_arrays(nothing, 1, mask=null),
        "map": pa.MapArray.from_arrays(pa.array([None, 1], pa.int32()), pa.array(["k"]), nothing),
        "struct in list": pa.ListArray.from_arrays(
            pa.array([0, 1], pa.int32()), pa.StructArray.from_arrays([nothing], names=["a"], mask=null)
        ),
    }


@pytest.mark.parametrize("name", hidden_keys())
def test_dictionary_keys_hidden_by_a_null_are_written_as_null(
    any_server: LocalServer, connect: Connect, name: str
) -> None:
    table = pa.table({"c": hidden_keys()[name]})
    for codec in (None, "zstd"):
        assert send(any_server, table, arrow_ipc=True, codec=codec).delivered == 1
        [entry] = entries(connect(any_server))
        rows = pa.table(headrace.unpack_arrow(entry))
        rows.validate(full=True)
        assert rows.to_pylist() == table.to_pylist()


def test_hidden_out_of_range_keys_do_not_affect_other_rows(any_server: LocalServer, connect: Connect) -> None:
    keys = pa.array([1, 100, -7, 0], pa.int8())
    words = pa.DictionaryArray.from_arrays(keys, pa.array(["x", "y"]), safe=False)
    column = pa.StructArray.from_arrays([words], names=["a"], mask=pa.array([False, True, True, False]))
    expected = [{"c": {"a": "y"}}, {"c": None}, {"c": None}, {"c": {"a": "x"}}]
    for rows_per_entry in (1, 2, 4):
        send(any_server, pa.table({"c": column}), arrow_ipc=True, rows_per_entry=rows_per_entry)
        read = [pa.table(headrace.unpack_arrow(entry)).to_pylist() for entry in entries(connect(any_server))]
        assert list(itertools.chain(*read)) == expected


def nulls_excluded() -> dict[str, tuple[Any, Any]]:
    """Columns with a null that their type excludes, and the same where a null around it hides it."""
    none, no_null = pa.array([None], pa.int32()), pa.field("a", pa.int32(), nullable=False)
    hidden, one = pa.array([True]), pa.array([0, 1], pa.int32())
    listed = pa.ListArray.from_arrays(one, none)
    return {
        "struct": (
            pa.StructArray.from_arrays([none], fields=[no_null]),
            pa.StructArray.from_arrays([none], fields=[no_null], mask=hidden),
        ),
        "list": (pa.array([[None]], pa.list_(no_null)), pa.array([None], pa.list_(no_null))),
        "fixed size list": (pa.array([[None]], pa.list_(no_null, 1)), pa.array([None], pa.list_(no_null, 1))),
        "struct in list": (
            pa.ListArray.from_arrays(one, pa.StructArray.from_arrays([none], fields=[no_null])),
            listed,
        ),
    }


@pytest.mark.parametrize("name", nulls_excluded())
def test_a_null_in_a_non_nullable_field_fails_its_entry(any_server: LocalServer, connect: Connect, name: str) -> None:
    wrong, right = nulls_excluded()[name]
    report = send(any_server, pa.table({"c": wrong}), arrow_ipc=True)
    [failure] = report.failed
    assert (failure.kind, failure.code, failure.written) == ("permanent", "BAD_VALUE", "no")
    assert 'column "c" has a null where its type allows none' in failure.message
    assert send(any_server, pa.table({"c": right}), arrow_ipc=True).delivered == 1
    [entry] = entries(connect(any_server))
    assert pa.table(headrace.unpack_arrow(entry)).column("c").to_pylist() == right.to_pylist()


# --- polars objects


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        ({"payload": "c"}, "be the payload"),
        ({"fields": ["n", "c"]}, "be a field"),
        ({"json": True}, "be in JSON"),
        ({"json": ["c"], "rows_per_entry": 2}, "be in JSON"),
        ({"arrow_ipc": True}, "be written"),
    ],
    ids=str,
)
def test_polars_object_columns_are_refused(any_server: LocalServer, layout: dict[str, Any], part: str) -> None:
    frame = pl.DataFrame({"n": [1], "c": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(SchemaError, match=rf'^column "c" cannot {part}: it holds Python objects .*\(cast it to String'):
        send(any_server, frame, **layout)


def test_an_unused_object_column_is_ignored(any_server: LocalServer, connect: Connect) -> None:
    frame = pl.DataFrame({"n": ["a", "b"], "c": pl.Series([object(), 1], dtype=pl.Object)})
    assert send(any_server, frame, payload="n").delivered == 2
    assert send(any_server, frame, arrow_ipc=True, fields=["n"]).delivered == 2
    assert [entry[b"payload"] for entry in entries(connect(any_server))][:2] == [b"a", b"b"]


def test_eight_byte_binary_columns_are_not_taken_for_objects(any_server: LocalServer, connect: Connect) -> None:
    send(any_server, pa.table({"c": pa.array([b"12345678"], pa.binary(8))}), fields=["c"])
    assert entries(connect(any_server)) == [{b"c": b"12345678"}]


# --- extension types


def test_uuids_are_written_as_text(any_server: LocalServer, connect: Connect) -> None:
    values = pa.array([one.bytes for one in UUIDS], pa.uuid())
    table = pa.table(
        {"c": values, "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values), "n": [1, 2]}
    )
    send(any_server, table, json=["c", "list"])
    texts = [str(one) for one in UUIDS]
    assert documents(connect(any_server)) == [{"c": one, "list": [one]} for one in texts]
    send(any_server, table, fields=["c"])
    assert [entry[b"c"].decode() for entry in entries(connect(any_server))] == texts
    send(any_server, table, arrow_ipc=True)
    [entry] = entries(connect(any_server))
    assert pa.table(headrace.unpack_arrow(entry)).column("c").to_pylist() == UUIDS
    send(any_server, table.set_column(0, "c", values.storage), fields=["c"])
    assert [entry[b"c"] for entry in entries(connect(any_server))] == [one.bytes for one in UUIDS]


def test_uuids_can_be_message_ids(any_server: LocalServer) -> None:
    ids = pa.array([UUIDS[0].bytes, None, UUIDS[1].bytes], pa.uuid())
    report = send(any_server, pa.table({"payload": pa.nulls(3, pa.string()), "id": ids}), message_id="id")
    assert report.failed_ids == [str(UUIDS[0]), 1, str(UUIDS[1])]


def test_a_uuid_cannot_be_a_stream_key_or_a_payload(any_server: LocalServer) -> None:
    table = pa.table({"payload": ["x"], "c": pa.array([UUIDS[0].bytes], pa.uuid())})
    for layout, part in (({"stream_key": "c"}, "hold stream keys"), ({"payload": "c"}, "be the payload")):
        with pytest.raises(SchemaError, match=rf'^column "c" cannot {part}: it has the type FixedSizeBinary\(16\)'):
            send(any_server, table, **layout)


def test_other_extension_types(any_server: LocalServer, connect: Connect) -> None:
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 5], pa.int8()))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', "null", "[]"]))
    opaque = pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "t", "v"), pa.array([1, 2, 3], pa.int32()))
    table = pa.table({"flag": flags, "json": texts, "opaque": opaque})
    send(any_server, table, json=True)
    assert documents(connect(any_server)) == [
        {"flag": False, "json": '{"a":1}', "opaque": 1},
        {"flag": True, "json": "null", "opaque": 2},
        {"flag": True, "json": "[]", "opaque": 3},
    ]
    send(any_server, table, fields=table.column_names)
    assert entries(connect(any_server))[2] == {b"flag": b"true", b"json": b"[]", b"opaque": b"3"}
    send(any_server, table, payload="json")
    assert [entry[b"payload"] for entry in entries(connect(any_server))] == [b'{"a":1}', b"null", b"[]"]


# --- times outside a day

TIMES = [("s", pa.int32()), ("ms", pa.int32()), ("us", pa.int64()), ("ns", pa.int64())]


@pytest.mark.parametrize(("unit", "integer"), TIMES, ids=[unit for unit, _ in TIMES])
def test_a_time_outside_a_day_fails_its_row(any_server: LocalServer, connect: Connect, unit: str, integer: Any) -> None:
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    time = pa.time32(unit) if integer == pa.int32() else pa.time64(unit)
    column = pa.array([0, day, day - 1, -1, None], integer).view(time)
    table = pa.table({"t": column, "n": [1, 2, 3, 4, 5]})
    nested = pa.table({"t": pa.ListArray.from_arrays(pa.array(range(6), pa.int32()), column), "n": [1, 2, 3, 4, 5]})
    for data, layout in (
        (table, {"fields": ["n", "t"]}),
        (table, {"json": True}),
        (nested, {"json": True}),
        (table, {"json": True, "rows_per_entry": 10}),
    ):
        report = send(any_server, data, message_id="n", **layout)
        assert report.failed_ids == [2, 4], layout
        assert {(one.kind, one.code, one.written) for one in report.failed} == {("permanent", "BAD_VALUE", "no")}
        messages = [one.message for one in report.failed]
        assert messages == [f'column "t": the time {value} {unit} is outside a day' for value in (day, -1)]
        assert len(entries(connect(any_server))) == 3
    # As Arrow they are unchanged.
    assert send(any_server, table, arrow_ipc=True).delivered == 5


# --- durations and intervals


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_written_as_day_to_second_intervals(any_server: LocalServer, connect: Connect, unit: str) -> None:
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    table = pa.table({"c": pa.array([93_784 * second, -second, None], pa.duration(unit)), "n": [1, 2, 3]})
    texts = ["INTERVAL '1 02:03:04' DAY TO SECOND", "INTERVAL '-0 00:00:01' DAY TO SECOND"]
    send(any_server, table, json=["c"])
    assert documents(connect(any_server)) == [*({"c": one} for one in texts), {}]
    send(any_server, table, fields=["n", "c"])
    assert [entry.get(b"c") for entry in entries(connect(any_server))] == [*(one.encode() for one in texts), None]
    send(any_server, pl.DataFrame(table), json=["c"])
    assert documents(connect(any_server))[0] == {"c": texts[0]}


def test_month_day_nano_intervals_are_written_as_text(any_server: LocalServer, connect: Connect) -> None:
    values = [pa.MonthDayNano([14, 25, 18_367_500_000_000]), pa.MonthDayNano([0, 0, 0]), pa.MonthDayNano([-1, 0, -1])]
    send(any_server, pa.table({"c": values}), json=True)
    assert [row["c"] for row in documents(connect(any_server))] == [
        "1 years 2 months 25 days 5 hours 6 minutes 7.5 seconds",
        "0 seconds",
        "-1 months -0.000000001 seconds",
    ]
