"""The rows of an entry: payloads by name, Arrow IPC as pyarrow writes it, and entries without either."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import io
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import MessageError, SchemaError, unpack, unpack_arrow
from headrace.testing import LocalServer
from support.fixture_types import BySize
from support.marks import thorough
from support.processes import PeakMemory

Connect = Callable[..., Any]

CODECS = [None, "lz4", "zstd"]


def ipc(data: Any, codec: str | None = None) -> bytes:
    """An Arrow IPC stream as pyarrow writes it."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, data.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write(data)
    return stream.getvalue()


# --- payloads


@pytest.mark.parametrize("count", [1, 2, 12, 1_000])
def test_payloads_are_returned_in_the_order_of_their_numbers(count: int) -> None:
    values = [b"%d" % number for number in range(count)]
    numbered = {b"payload:%d" % number: value for number, value in enumerate(values)}
    assert unpack({**numbered, b"ts": b"2026-04-14T12:00:00Z"}) == values
    assert unpack(dict(reversed(numbered.items()))) == values
    assert unpack({name.decode(): value.decode() for name, value in numbered.items()}) == values


@given(st.lists(st.binary(), min_size=1, max_size=30), st.text(max_size=5))
def test_payloads_with_any_bytes_and_field_name_are_unpacked(values: list[bytes], name: str) -> None:
    fields = {f"{name}:{number}".encode(): value for number, value in enumerate(values)}
    assert unpack({**fields, b"other": b"1"}, payload_field=name) == values
    assert unpack({name.encode(): values[0]}, name) == values[:1]


def test_an_entry_with_one_payload_is_unpacked() -> None:
    assert unpack({b"payload": b"", b"ts": b"1"}) == [b""]
    assert unpack({"payload": "ä"}) == ["ä".encode()]
    assert unpack({"body": b"x", "payload:x": b"1", "body:": b"2"}, "body") == [b"x"]
    # A client with `encoding_errors="surrogateescape"` gives back what was stored.
    assert unpack({"payload": b"\xff\x00a".decode(errors="surrogateescape")}) == [b"\xff\x00a"]
    changeable: Any = {b"payload": memoryview(b"xyz")[1:]}
    assert unpack(changeable) == [b"yz"]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_fields_from_redis_py_are_unpacked(
    any_server: LocalServer, connect: Connect, protocol: int, decode: bool
) -> None:
    client = connect(any_server)
    client.xadd("s", {"payload:0": "a", "payload:1": "", "payload:2": "ä", "ts": "2026"})
    client.xadd("s", {"payload": "alone"})
    client.xgroup_create("s", "group", "0")
    with redis.Redis(unix_socket_path=any_server.unix_socket, protocol=protocol, decode_responses=decode) as reader:
        rows = [[b"a", b"", "ä".encode()], [b"alone"]]
        entries: Any = reader.xrange("s")
        assert [unpack(fields) for _, fields in entries] == rows
        entries = next(iter(dict(reader.xreadgroup("group", "me", {"s": ">"})).values()))
        entries = entries[0] if protocol == 3 else entries
        assert [unpack(fields) for _, fields in entries] == rows


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({b"ts": b"1"}, "the entry has no payload: no field 'payload', its fields are 'ts'"),
        ({}, "the entry has no payload: no field 'payload', its fields are none at all"),
        ({b"payload:x": b"1"}, "the entry has no payload: no field 'payload', its fields are 'payload:x'"),
        ({b"payload:0": b"1", b"payload:2": b"1"}, "the entry has 2 payloads, but no field 'payload:1'"),
        ({b"payload:1": b"1"}, "the entry has 1 payloads, but no field 'payload:0'"),
        ({b"payload:00": b"1"}, "the entry has 1 payloads, but no field 'payload:0'"),
        ({b"payload": b"1", b"payload:0": b"1"}, "the entry has both the field 'payload' and 'payload:0'"),
        (
            {f"field {number} {'x' * 100}": b"" for number in range(12)},
            "the entry has no payload: no field 'payload', its fields are "
            + ", ".join(repr(f"field {number} {'x' * 100}"[:50]) for number in range(10))
            + " and 2 more",
        ),
    ],
)
def test_entries_without_valid_payloads_are_refused(fields: Any, text: str) -> None:
    with pytest.raises(MessageError) as caught:
        unpack(fields)
    assert str(caught.value) == text


@pytest.mark.parametrize("function", [unpack, unpack_arrow])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([b"payload", b"1"], "fields must be a mapping, from the names of one entry to its values: got list"),
        (None, "fields must be a mapping, from the names of one entry to its values: got NoneType"),
        ({1: b"1"}, "names of fields must be bytes or str: got int"),
        ({b"payload": 1}, "the field 'payload' must be bytes or str: got int"),
        ({b"payload": None, b"ts": b""}, None),
    ],
)
def test_invalid_arguments_are_refused(function: Callable[[Any], Any], fields: Any, text: str | None) -> None:
    with pytest.raises((SchemaError, MessageError)) as caught:
        function(fields)
    if text is not None:
        assert type(caught.value) is SchemaError
        assert str(caught.value) == text
    with pytest.raises(SchemaError, match=r"^payload_field must be a str: got bytes$"):
        function({b"payload": b"1"}, b"payload")  # type: ignore[call-arg]


# --- rows

_ZONED = pa.timestamp("us", "Europe/Berlin")
_TIME = dt.datetime(2026, 4, 14, 12)
COLUMNS: dict[str, Any] = {
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    **{str(t): pa.array([1, None, 0, 100], t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): pa.array([1, None, 0, 200], t) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{str(t): pa.array([1.5, None, float("inf"), -0.0], t) for t in (pa.float16(), pa.float32(), pa.float64())},
    **{
        str(t): pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal(0)], t)
        for t in (pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(30, 2), pa.decimal256(60, 2))
    },
    "date32": pa.array([dt.date(2026, 4, 14), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "date64": pa.array([dt.date(2026, 4, 14), None, dt.date(1, 1, 1), None], pa.date64()),
    "time32": pa.array([dt.time(12), None, dt.time(0), None], pa.time32("ms")),
    "time64": pa.array([dt.time(12), None, dt.time(0), None], pa.time64("ns")),
    "timestamp": pa.array([_TIME, None, _TIME, None], pa.timestamp("ns")),
    "zoned": pa.array([_TIME, None, _TIME, None], _ZONED),
    "duration": pa.array([dt.timedelta(1), None, dt.timedelta(-1), None]),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([0, 0, 0]), None]),
    **{
        str(t): pa.array(["a", None, "ä" * 20, ""], t)
        for t in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    },
    **{
        str(t): pa.array([b"a", None, b"\xff" * 20, b""], t) for t in (pa.binary(), pa.large_binary(), pa.binary_view())
    },
    "fixed": pa.array([b"abc", None, b"\x00\x00\x00", b"xyz"], pa.binary(3)),
    "list": pa.array([["a", None], [], None, ["b"]]),
    "large_list": pa.array([[1, None], [], None, [2]], pa.large_list(pa.int32())),
    "fixed_list": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int32(), 2)),
    "list_view": pa.array([[1, None], [], None, [2]], pa.list_view(pa.int32())),
    "map": pa.array([[("k", 1)], [], None, [("a", None)]], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": ""}]),
    "nested": pa.array([[{"a": ["x"]}], [], None, [{"a": None}, None]]),
    "dictionaries": pa.array([["x"], [], None, ["y", "x"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), pa.array(["x", None])),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1] * 4), pa.array(["x"] * 4)]),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_every_arrow_type_is_unpacked(column: Any, codec: str | None) -> None:
    table = pa.table({"column": column, "n": [1, 2, 3, 4]})
    rows = unpack_arrow({b"payload": ipc(table, codec), b"ts": b"2026-04-14T12:00:00Z"})
    again = pa.table(rows)
    again.validate(full=True)
    assert again.schema.equals(table.schema, check_metadata=True)
    assert again.to_pylist() == table.to_pylist()
    assert len(rows) == 4
    # The stream can be exported repeatedly.
    assert pa.table(rows).to_pylist() == again.to_pylist()
    assert rows.to_pylist() == again.to_pylist()


_VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.string_view(): st.text(st.characters(codec="utf-8")),
    pa.binary(): st.binary(),
    pa.list_(pa.string()): st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=5), max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> Any:
    types = draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 20))
    column = {t: st.lists(st.none() | values, min_size=rows, max_size=rows) for t, values in _VALUES.items()}
    metadata = draw(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.just("x"), max_size=2))
    arrays = [pa.array(draw(column[t]), t) for t in types]
    schema = pa.schema([(f"column {number}", t) for number, t in enumerate(types)], metadata=metadata or None)
    return pa.Table.from_arrays(arrays, schema=schema)


@given(tables(), st.sampled_from(CODECS))
@settings(deadline=None)
def test_arbitrary_rows_are_unpacked(table: Any, codec: str | None) -> None:
    rows = unpack_arrow({"payload": ipc(table, codec)})
    assert pa.table(rows).equals(table, check_metadata=True)
    assert rows.to_pylist() == table.to_pylist()


def test_a_value_that_python_does_not_have_is_named_with_its_row() -> None:
    """The rows of all batches of an entry are numbered together."""
    batches = [pa.record_batch({"at": pa.array([1_000, 2_000 + odd], pa.timestamp("ns"))}) for odd in (0, 1)]
    rows = unpack_arrow({"payload": ipc(pa.Table.from_batches(batches), None)})
    with pytest.raises(ValueError, match=r"^column 'at', row 3: "):
        rows.to_pylist()


def test_other_ipc_streams_are_read() -> None:
    table = pa.table({"a": ["x", "y"]})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        for _ in range(3):
            writer.write(table)
    rows = unpack_arrow({b"payload": stream.getvalue()})
    assert len(rows) == 6
    assert pl.DataFrame(rows)["a"].to_list() == ["x", "y"] * 3
    assert pa.schema(rows) == table.schema
    empty = unpack_arrow({b"payload": ipc(table.slice(2))})
    assert len(empty) == 0
    assert pa.table(empty).schema == table.schema
    assert "2 columns" in repr(unpack_arrow({b"payload": ipc(pa.table({"a": [1], "secret": ["hunter2"]}))}))


# --- invalid streams

CANNOT = "the payload is not a readable Arrow IPC stream: "


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({b"ts": b"1"}, "the entry has no Arrow IPC stream: no field 'payload', its fields are 'ts'"),
        ({b"payload:0": b"1"}, "the entry has no Arrow IPC stream but several payloads: use headrace.unpack"),
        ({b"payload": b""}, f"{CANNOT}it is truncated: it has 0 bytes and lacks at least 4"),
        ({b"payload": b'{"order_id": 123}'}, f"{CANNOT}it is truncated: it has 17 bytes and lacks at least "),
        ({b"payload": b"\xff\xff\xff\xff\x00\x00\x00\x00"}, f"{CANNOT}it has no schema"),
    ],
)
def test_entries_without_a_valid_arrow_stream_are_refused(fields: Any, text: str) -> None:
    with pytest.raises(MessageError) as caught:
        unpack_arrow(fields)
    assert str(caught.value).startswith(text)


def test_a_str_is_refused_as_arrow() -> None:
    with pytest.raises(SchemaError, match=r"^the field 'payload' must be bytes: got a str \(.*decode_responses"):
        unpack_arrow({"payload": "\ufffd\ufffd"})


def small_stream(codec: str | None) -> bytes:
    columns = {name: COLUMNS[name] for name in ("bool", "int64", "string", "string_view", "list", "struct")}
    return ipc(pa.table({**columns, "dictionary": COLUMNS["dictionaries"]}), codec)


def rows_or_none(stream: bytes) -> Any:
    """The rows, or None if the bytes are refused as unreadable."""
    try:
        return unpack_arrow({b"payload": stream})
    except MessageError as error:
        if str(error).startswith(CANNOT):
            return None
        raise


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_bytes_are_refused(codec: str | None) -> None:
    stream = small_stream(codec)
    for length in range(len(stream)):
        with pytest.raises(MessageError, match="it is truncated: it has "):
            unpack_arrow({b"payload": stream[:length]})
    with pytest.raises(MessageError, match=r": 1 bytes follow its end$"):
        unpack_arrow({b"payload": stream + b"x"})


@pytest.mark.parametrize("codec", [None, *thorough("lz4"), "zstd"])
def test_flipped_bits_are_refused_or_read_as_rows(
    codec: str | None, capfd: pytest.CaptureFixture[str], by_size: BySize
) -> None:
    """Without output on stderr, and within the available memory."""
    stream = small_stream(codec)
    memory = PeakMemory()
    refused, places = 0, range(0, len(stream), by_size(3, 1))
    for place in places:
        for mask in (1 << place % 8, 0xFF):
            flipped = bytearray(stream)
            flipped[place] ^= mask
            rows = rows_or_none(bytes(flipped))
            refused += rows is None
            if rows is not None:
                # What a reader does. Types and values may be such that pyarrow has none like them.
                with contextlib.suppress(pa.ArrowException):
                    pa.table(rows).validate(full=True)
    assert refused > len(places) / 10
    assert memory.growth < 256 * 2**20
    assert capfd.readouterr().err == ""


@given(st.integers(0, 2), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1))
@settings(deadline=None)
def test_random_bytes_are_refused_or_read_as_rows(which: int, noise: list[tuple[float, int]]) -> None:
    stream = bytearray(small_stream(CODECS[which]))
    for place, byte in noise:
        stream[int(place * len(stream))] = byte
    rows = rows_or_none(bytes(stream))
    assert rows is None or len(rows) >= 0


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_claimed_sizes_allocate_no_memory(codec: str) -> None:
    rows = 10_000
    stream = ipc(pa.table({"a": [7] * rows}), codec)
    place = stream.index(struct.pack("<q", rows * 8))
    assert len(unpack_arrow({b"payload": stream})) == rows
    memory = PeakMemory()
    for claim in (2**62, 2**40, 2**31, 2**30, rows * 8 + 1, rows * 8 - 1, 1, -2):
        lying = bytearray(stream)
        struct.pack_into("<q", lying, place, claim)
        with pytest.raises(MessageError, match=r"at most 1073741824 are allowed$|it is corrupt") as caught:
            unpack_arrow({b"payload": bytes(lying)})
        assert ("are allowed" in str(caught.value)) == (claim > 2**30)
    assert memory.growth < 64 * 2**20


@pytest.mark.parametrize("text", ["Europe/Berlin", "the name"])
def test_names_with_a_zero_byte_are_refused(text: str) -> None:
    """Arrow's C interface cannot express a zero byte; it would end the process there."""
    stream = ipc(pa.table({"the name": pa.array([_TIME], _ZONED)}))
    assert stream.count(text.encode()) == 1
    with pytest.raises(MessageError, match=f"^{CANNOT}it is corrupt"):
        unpack_arrow({b"payload": stream.replace(text.encode(), b"\0" * len(text))})


def test_a_decompression_bomb_is_refused() -> None:
    """2 GiB of zeros take some MB as LZ4, and less as Zstandard."""
    zeros = pa.py_buffer(bytes(256 << 20))
    column = pa.chunked_array([pa.Array.from_buffers(pa.int64(), 32 << 20, [None, zeros])] * 8)
    for codec in ("lz4", "zstd"):
        stream = ipc(pa.table({"a": column}), codec)
        assert len(stream) < 16 << 20
        memory = PeakMemory()
        with pytest.raises(MessageError, match=r"its rows claim 1342177280 bytes, at most 1073741824 are allowed$"):
            unpack_arrow({b"payload": stream})
        assert memory.growth < 64 * 2**20


# --- the functions themselves


def test_no_arrow_library_is_imported() -> None:
    code = """
import sys, headrace
rows = headrace.unpack_arrow({b"payload": bytes.fromhex(sys.argv[1])})
print(len(rows), headrace.unpack({b"payload": b"x"}), [name for name in ("pyarrow", "polars") if name in sys.modules])
"""
    command = [sys.executable, "-c", code, ipc(pa.table({"a": [1, 2]})).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 [b'x'] []\n"


@pytest.mark.parametrize("function", [unpack, unpack_arrow])
def test_the_functions_can_be_pickled(function: Callable[..., Any]) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.copy(function) is function
    assert getattr(headrace, function.__name__) is function
