"""Packed entries of a reader: several rows, JSON and Arrow IPC come back under the schema that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Dispatcher, Endpoint, FieldError, Reader, SchemaError
from headrace.testing import LocalServer
from support.processes import PeakMemory

Connect = Callable[..., redis.Redis]

COUNT = 300

SCALARS = {
    "int8": pa.array([-128, 127, None] * COUNT, pa.int8()),
    "uint64": pa.array([0, 2**64 - 1, None] * COUNT, pa.uint64()),
    "float32": pa.array([0.1, float("inf"), None] * COUNT, pa.float32()),
    "float64": pa.array([1e308, -0.0, None] * COUNT, pa.float64()),
    "bool": pa.array([True, False, None] * COUNT, pa.bool_()),
    "text": pa.array(["", 'ü"\\\x00', None] * COUNT, pa.string()),
    "view": pa.array(["a longer text than the view holds", "", None] * COUNT, pa.string_view()),
    "bytes": pa.array([b"", b"\xff\x00", None] * COUNT, pa.binary()),
    "fixed": pa.array([b"\x00\xff", b"ab", None] * COUNT, pa.binary(2)),
    "decimal": pa.array([Decimal("-12345.67"), Decimal("0.01"), None] * COUNT, pa.decimal128(18, 2)),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), None] * COUNT, pa.date32()),
    "time": pa.array([time(0, 0), time(23, 59, 59, 999_999), None] * COUNT, pa.time64("us")),
    "moment": pa.array(
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 22, 1, 2, 3, 4_000, UTC), None] * COUNT,
        pa.timestamp("us", "UTC"),
    ),
    "elapsed": pa.array([timedelta(microseconds=1), timedelta(days=-1), None] * COUNT, pa.duration("us")),
    "choice": pa.array(["x", "y", None] * COUNT).dictionary_encode(),
    "nothing": pa.nulls(3 * COUNT),
    "always": pa.array(["x", "y", "z"] * COUNT),
}

NESTED = {
    "list": pa.array([[1, None, 3], [], None] * COUNT, pa.list_(pa.int64())),
    "large": pa.array([["a"], [None], None] * COUNT, pa.large_list(pa.string())),
    "pair": pa.array([[1.5, 2.5], [None, 0.5], None] * COUNT, pa.list_(pa.float64(), 2)),
    "struct": pa.array(
        [{"a": 1, "b": [b"\xff"]}, {"a": None, "b": None}, None] * COUNT,
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.binary())}),
    ),
    "map": pa.array([[("k", 1), ("l", None)], [], None] * COUNT, pa.map_(pa.string(), pa.int64())),
}


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(any_server)


def write(endpoint: Endpoint, table: pa.Table, payload_field: str = "payload", **layout: Any) -> None:
    with Dispatcher(endpoint, payload_field=payload_field) as dispatcher:
        dispatcher.produce_batch(table, **layout)
        dispatcher.flush().raise_for_failures()


def read(endpoint: Endpoint, schema: pa.Schema, **options: Any) -> pa.Table:
    with Reader(endpoint, end="latest", schema=schema, **options) as reader:
        return pa.table(reader)


def assert_same(read_back: pa.Table, table: pa.Table) -> None:
    assert read_back.schema == table.schema
    for name in table.column_names:
        if pa.types.is_dictionary(table.schema.field(name).type):
            assert read_back[name].to_pylist() == table[name].to_pylist(), name
        else:
            assert read_back[name].combine_chunks() == table[name].combine_chunks(), name


def ipc(**columns: Any) -> bytes:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


@pytest.mark.parametrize("rows_per_entry", [1, 7])
def test_json_round_trips_under_the_same_schema(endpoint: Endpoint, rows_per_entry: int) -> None:
    table = pa.table({**SCALARS, **NESTED})
    write(endpoint, table, json=True, rows_per_entry=rows_per_entry)
    assert_same(read(endpoint, table.schema, unpack="json"), table)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_ipc_round_trips_under_the_same_schema(endpoint: Endpoint, codec: Literal["lz4", "zstd"] | None) -> None:
    table = pa.table({**SCALARS, **NESTED})
    write(endpoint, table, arrow_ipc=True, rows_per_entry=100, codec=codec)
    assert_same(read(endpoint, table.schema, unpack="arrow_ipc"), table)


def test_packed_rows_round_trip_on_each_server(server: LocalServer) -> None:
    table = pa.table({**SCALARS, **NESTED})
    json = Endpoint.from_url(server.url, stream_key="json")
    write(json, table, json=True, rows_per_entry=50)
    assert_same(read(json, table.schema, unpack="json"), table)
    arrow = Endpoint.from_url(server.url, stream_key="arrow")
    write(arrow, table, arrow_ipc=True, rows_per_entry=50)
    assert_same(read(arrow, table.schema, unpack="arrow_ipc"), table)


@pytest.mark.parametrize("rows_per_entry", [1, 7])
def test_payloads_are_the_only_column_whatever_their_field_is_called(endpoint: Endpoint, rows_per_entry: int) -> None:
    table = pa.table({"body": pa.array([b"%d" % row for row in range(100)], pa.binary())})
    write(endpoint, table, payload_field="data", payload="body", rows_per_entry=rows_per_entry)
    options = {"unpack": "payload", "payload_field": "data"}
    assert_same(read(endpoint, table.schema, **options), table)
    numbers = read(endpoint, pa.schema({"body": pa.int16()}), **options)
    assert numbers["body"].to_pylist() == list(range(100))


def test_rows_have_the_id_of_their_entry_and_their_position_in_it(endpoint: Endpoint) -> None:
    table = pa.table({"n": range(10)})
    write(endpoint, table, arrow_ipc=True, rows_per_entry=4)
    found = read(endpoint, table.schema, unpack="arrow_ipc", metadata=["entry_id", "row_in_entry", "stream"])
    assert found["n"].to_pylist() == list(range(10))
    assert found["row_in_entry"].to_pylist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    ids = found["entry_id"].to_pylist()
    assert [len(set(ids[start:end])) for start, end in ((0, 4), (4, 8), (8, 10))] == [1, 1, 1]
    assert len(set(ids)) == 3
    assert set(found["stream"].to_pylist()) == {"s"}


@pytest.mark.parametrize(
    ("unpack", "layout"), [("json", {"json": True, "rows_per_entry": 3}), ("arrow_ipc", {"arrow_ipc": True})]
)
def test_columns_may_be_added_dropped_and_retyped(endpoint: Endpoint, unpack: str, layout: dict[str, Any]) -> None:
    write(endpoint, pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", "y"], "old": [1, 2]}), **layout)
    write(endpoint, pa.table({"c": [1.5, None], "a": pa.array([3, 2**40], pa.int64())}), **layout)
    write(endpoint, pa.table({"a": ["5", None], "b": [7, 8]}), **layout)
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})
    assert read(endpoint, schema, unpack=unpack).to_pydict() == {
        "a": [1, None, 3, 2**40, 5, None],
        "b": ["x", "y", None, None, "7", "8"],
        "c": [None, None, 1.5, None, None, None],
    }


@pytest.mark.parametrize(("unpack", "layout"), [("json", {"json": True}), ("arrow_ipc", {"arrow_ipc": True})])
def test_values_are_equal_in_a_column_of_another_precision(
    endpoint: Endpoint, unpack: str, layout: dict[str, Any]
) -> None:
    amount, moment, elapsed = Decimal("-12.30"), datetime(2026, 11, 22, 1, 2, 3), timedelta(seconds=-90_061)
    columns: list[tuple[pa.DataType, pa.DataType, Any]] = [
        (pa.decimal128(10, 2), pa.decimal128(10, 4), amount),
        (pa.decimal128(10, 2), pa.decimal128(12, 1), amount),
        (pa.decimal64(10, 2), pa.decimal128(10, 2), amount),
        (pa.timestamp("s"), pa.timestamp("us"), moment),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ms", "UTC"), moment.replace(tzinfo=UTC)),
        (pa.duration("us"), pa.duration("s"), elapsed),
        (pa.time64("us"), pa.time32("ms"), time(23, 59, 59, 999_000)),
        (pa.date32(), pa.date64(), date(1969, 12, 31)),
        (pa.float32(), pa.float64(), 0.5),
    ]
    write(
        endpoint,
        pa.table({f"c{at}": pa.array([value, None], own) for at, (own, _, value) in enumerate(columns)}),
        **layout,
    )
    schema = pa.schema({f"c{at}": other for at, (_, other, _) in enumerate(columns)})
    found = read(endpoint, schema, unpack=unpack)
    assert found.schema == schema
    expected = {f"c{at}": pa.array([value, None], other).to_pylist() for at, (_, other, value) in enumerate(columns)}
    assert found.to_pydict() == expected


def test_a_broken_payload_raises_an_error_or_becomes_a_row_of_nulls(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {"payload:0": '{"n": 1}', "payload:1": '{"n": 2'}, id="1-0")
    client.xadd("s", {"payload": '{"n": 3}'}, id="2-0")
    client.xadd("s", {"payload": "[]"}, id="3-0")
    client.xadd("s", {"other": "x"}, id="4-0")
    client.xadd("s", {"payload:0": '{"n": 5}', "payload:2": '{"n": 6}'}, id="5-0")
    client.xadd("s", {"payload": '{"n": "many"}'}, id="6-0")
    client.xadd("s", {"payload": b'{"n": 7, "\xff": 1}'}, id="7-0")
    client.xadd("s", {"payload": '{"n": 8}'}, id="8-0")
    schema = pa.schema({"n": pa.int64()})
    found: list[int] = []
    errors: dict[str, str] = {}
    with Reader(endpoint, end="latest", schema=schema, unpack="json") as reader:
        while not reader.is_finished:
            try:
                found.extend(n for batch in reader for n in pa.record_batch(batch)["n"].to_pylist())
            except FieldError as error:
                errors[error.entry_id] = str(error)
    assert found == [3, 8]
    assert list(errors) == ["1-0", "3-0", "4-0", "5-0", "6-0", "7-0"]
    assert "field payload:1: it is not a JSON object" in errors["1-0"]
    assert errors["4-0"].endswith("it has no field payload; name another with payload_field")
    assert "field payload:2 is out of sequence" in errors["5-0"]
    assert "not UTF-8" in errors["7-0"]
    table = read(endpoint, schema, unpack="json", on_bad_field="null", metadata=["entry_ms", "row_in_entry"])
    assert table["n"].to_pylist() == [1, None, 3, None, None, None, None, None, 8]
    assert table["entry_ms"].to_pylist() == [1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert table["row_in_entry"].to_pylist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_broken_arrow_stream_raises_an_error_or_becomes_a_row_of_nulls(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    whole = ipc(n=[1, 2], text=["a", "b"])
    client.xadd("s", {"payload": whole}, id="1-0")
    client.xadd("s", {"payload": whole[: len(whole) // 2]}, id="2-0")
    client.xadd("s", {"payload": ipc(n=["3", "many"])}, id="3-0")
    client.xadd("s", {"payload": ipc(n=[[1], [2]])}, id="4-0")
    client.xadd("s", {"payload:0": whole}, id="5-0")
    client.xadd("s", {"payload": ipc(n=[6])}, id="6-0")
    schema = pa.schema({"n": pa.int64()})
    found: list[int] = []
    errors: dict[str, str] = {}
    with Reader(endpoint, end="latest", schema=schema, unpack="arrow_ipc") as reader:
        while not reader.is_finished:
            try:
                found.extend(n for batch in reader for n in pa.record_batch(batch)["n"].to_pylist())
            except FieldError as error:
                errors[error.entry_id] = str(error)
    assert found == [1, 2, 6]
    assert list(errors) == ["2-0", "3-0", "4-0", "5-0"]
    table = read(endpoint, schema, unpack="arrow_ipc", on_bad_field="null", metadata=["entry_ms"])
    assert table["n"].to_pylist() == [1, 2, None, 3, None, None, None, None, 6]
    assert table["entry_ms"].to_pylist() == [1, 1, 2, 3, 3, 4, 4, 5, 6]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_an_entry_that_expands_beyond_max_entry_bytes_does_not_fit(
    endpoint: Endpoint, codec: Literal["lz4", "zstd"]
) -> None:
    zeros = pa.table({"n": pa.array([0] * 60_000, pa.int64())})
    write(endpoint, zeros, arrow_ipc=True, rows_per_entry=60_000, codec=codec)
    write(endpoint, pa.table({"n": [1]}), arrow_ipc=True)
    with Reader(endpoint, end="latest", schema=zeros.schema, unpack="arrow_ipc", max_entry_bytes=100_000) as reader:
        with pytest.raises(FieldError, match="at most 100000 are allowed"):
            next(reader)
        assert pa.record_batch(next(reader))["n"].to_pylist() == [1]
    bounded = read(endpoint, zeros.schema, unpack="arrow_ipc", max_entry_bytes=100_000, on_bad_field="null")
    assert bounded["n"].to_pylist() == [None, 1]


def test_rows_of_arrow_ipc_without_the_columns_are_bounded(endpoint: Endpoint, client: redis.Redis) -> None:
    """A column of nulls takes no bytes in a payload, and rows of one have no bytes until they are read."""
    payload = ipc(nothing=pa.nulls(50_000_000))  # fewer than 8 x max_entry_bytes
    assert len(payload) < 1_000
    client.xadd("s", {"payload": payload})
    schema = pa.schema({"n": pa.int64(), "text": pa.string()})
    memory = PeakMemory()
    with (
        Reader(endpoint, end="latest", schema=schema, unpack="arrow_ipc", max_entry_bytes=10_000_000) as reader,
        pytest.raises(FieldError, match="its rows take more than max_entry_bytes, which is 10000000"),
    ):
        next(reader)
    assert memory.growth < 64 << 20


def test_a_dictionary_counts_with_each_addition(endpoint: Endpoint, client: redis.Redis) -> None:
    """An addition is a copy of the dictionary: rows of earlier record batches keep the one before."""
    texts = [letter * 30_000 for letter in "abc"]
    stream = pa.BufferOutputStream()
    schema = pa.schema({"n": pa.dictionary(pa.int8(), pa.string())})
    options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True)
    with pa.ipc.new_stream(stream, schema, options=options) as writer:
        for count in (1, 2, 3):
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(texts[:count]))
            writer.write(pa.record_batch({"n": column}))
    client.xadd("s", {"payload": stream.getvalue().to_pybytes()})
    asked: dict[str, Any] = {"schema": pa.schema({"n": pa.binary_view()}), "unpack": "arrow_ipc"}
    for most, fits in ((200_000, False), (600_000, True)):
        with Reader(endpoint, end="latest", max_entry_bytes=most, **asked) as reader:
            if fits:
                assert pa.table(reader)["n"].to_pylist() == [texts[0].encode()] * 3
            else:
                with pytest.raises(FieldError, match=f"at most {most} are allowed"):
                    next(reader)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", [{"json": True}, {"arrow_ipc": True}], ids=lambda layout: next(iter(layout)))
def test_each_entry_fills_a_batch_of_few_bytes(endpoint: Endpoint, layout: dict[str, Any], reverse: bool) -> None:
    table = pa.table({"n": [str(row) for row in range(8)]})  # an empty column of text has bytes too
    for row in range(8):
        write(endpoint, table.slice(row, 1), **layout)
    (unpack,) = layout
    way: dict[str, Any] = {"unpack": unpack} | ({"reverse": True} if reverse else {"end": "latest"})
    with Reader(endpoint, schema=table.schema, batch_bytes=1, **way) as reader:
        batches = [pa.table(batch)["n"].to_pylist() for batch in reader]
    numbers = [[str(row)] for row in range(8)]
    assert batches == (numbers[::-1] if reverse else numbers)


def test_rows_larger_than_their_json_are_bounded(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("s", {f"payload:{row}": "{}" for row in range(1_000)})
    schema = pa.schema({f"c{number}": pa.int64() for number in range(100)})
    with (
        Reader(endpoint, end="latest", schema=schema, unpack="json", max_entry_bytes=100_000) as reader,
        pytest.raises(FieldError, match="more than max_entry_bytes, which is 100000"),
    ):
        next(reader)


def test_elements_larger_than_their_json_are_bounded(endpoint: Endpoint, client: redis.Redis) -> None:
    wide = pa.struct([(f"m{number}", pa.int64()) for number in range(100)])
    client.xadd("s", {"payload": '{"a": [' + ", ".join(["{}"] * 1_000) + "]}"})
    client.xadd("s", {"payload": '{"a": {' + ", ".join(f'"{number}": {{}}' for number in range(1_000)) + "}}"})
    large, other = "more than max_entry_bytes, which is 100000", "does not fit its column of type"
    for kind, reasons in (
        (pa.list_(wide), [large, other]),
        (pa.list_(pa.list_(wide)), [other, other]),
        (pa.map_(pa.string(), wide), [other, large]),
    ):
        schema = pa.schema({"a": kind})
        options: dict[str, Any] = {"schema": schema, "unpack": "json", "start": "1-0", "end": "latest"}
        fits = 0
        with Reader(endpoint, max_entry_bytes=100_000, **options) as reader:
            for reason in reasons:
                with pytest.raises(FieldError, match=reason):
                    next(reader)
        with Reader(endpoint, on_bad_field="null", **options) as reader:
            fits = sum(row is not None for row in pa.table(reader)["a"].to_pylist())
        assert fits == (0 if kind == pa.list_(pa.list_(wide)) else 1)


def test_a_batch_of_whole_entries_may_exceed_batch_rows(endpoint: Endpoint) -> None:
    table = pa.table({"n": range(4_000)})
    write(endpoint, table, arrow_ipc=True, rows_per_entry=40)
    with Reader(endpoint, end="latest", schema=table.schema, unpack="arrow_ipc", batch_rows=100) as reader:
        batches = [pa.record_batch(batch)["n"].to_pylist() for batch in reader]
    assert [n for batch in batches for n in batch] == list(range(4_000))
    assert all(len(batch) % 40 == 0 for batch in batches)
    assert {len(batch) for batch in batches[:-1]} == {120}
    write(endpoint, pa.table({"n": range(5_000)}), arrow_ipc=True, rows_per_entry=5_000)
    with Reader(endpoint, end="latest", schema=table.schema, unpack="arrow_ipc", batch_rows=100) as reader:
        assert [batch.num_rows for batch in reader] == [120] * 33 + [40 + 5_000]


@pytest.mark.parametrize("batch_rows", [1, 10, 150])
def test_batches_may_end_within_the_first_page_and_the_page_after_a_loss(
    endpoint: Endpoint, client: redis.Redis, batch_rows: int
) -> None:
    """Whether entries are missing before such a page is known at its end; its batch takes no entry that it need not."""
    table = pa.table({"number": pa.array(range(6_000), pa.int64())})
    write(endpoint, table, json=["number"], rows_per_entry=100)
    options: dict[str, Any] = {"schema": table.schema, "unpack": "json", "batch_rows": batch_rows, "on_loss": "report"}
    whole = 100 if batch_rows < 100 else 200
    with Reader(endpoint, end="latest", **options) as reader:
        assert [batch.num_rows for batch in reader] == [whole] * (6_000 // whole)
    with Reader(endpoint, end="latest", **options) as reader:
        first = next(iter(reader))
    client.xtrim("s", maxlen=40, approximate=False)
    with Reader(endpoint, start=first.position, end="latest", **options) as reader:
        batches = list(reader)
    assert [batch.num_rows for batch in batches] == [whole] * (4_000 // whole)
    assert sum(batch.lost or 0 for batch in batches) == 20 - whole // 100
    numbers = pa.concat_tables(pa.table(batch) for batch in batches)["number"]
    assert numbers.to_pylist() == list(range(2_000, 6_000))


def test_a_reader_resumes_after_each_batch_of_packed_entries(endpoint: Endpoint) -> None:
    table = pa.table({"n": range(2_000)})
    write(endpoint, table, json=True, rows_per_entry=9)
    position, found = "earliest", []
    while True:
        with Reader(
            endpoint, start=position, end="latest", schema=table.schema, unpack="json", batch_rows=50
        ) as reader:
            batch = reader.read()
        if batch is None:
            break
        found.extend(pa.record_batch(batch)["n"].to_pylist())
        position = batch.position
    assert found == list(range(2_000))


def test_impossible_combinations_of_options_are_refused(endpoint: Endpoint) -> None:
    two = pa.schema({"a": pa.int8(), "b": pa.int8()})
    with pytest.raises(ConfigError, match="need fields or schema"):
        Reader(endpoint, unpack="json")
    with pytest.raises(ConfigError, match="payload_field needs unpack"):
        Reader(endpoint, schema=two, payload_field="p")
    with pytest.raises(ConfigError, match="max_entry_bytes needs unpack"):
        Reader(endpoint, schema=two, max_entry_bytes=1)
    with pytest.raises(ConfigError, match="unpack 'payload' has one column"):
        Reader(endpoint, schema=two, unpack="payload")
    with pytest.raises(ConfigError, match="unpack must be one of 'payload', 'json', 'arrow_ipc'"):
        Reader(endpoint, schema=two, unpack="arrow")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="dictionary within a nested type"):
        Reader(endpoint, schema=pa.schema({"a": pa.list_(pa.dictionary(pa.int8(), pa.string()))}), unpack="arrow_ipc")
    with pytest.raises(SchemaError, match="cannot be read from JSON"):
        Reader(endpoint, schema=pa.schema({"a": pa.map_(pa.date32(), pa.string())}), unpack="json")
