"""The rows of a batch as Python objects: entries, dicts, and what pyarrow makes of the same batch."""

from __future__ import annotations

import copy
import math
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint, Entry, ReadBatch, Reader
from headrace.testing import LocalServer
from read_fuzz import tables
from read_fuzz.layouts import LAYOUTS, Layout
from read_fuzz.tables import random_table
from support.groups import add

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

KEY = "s"
MS = 1_795_324_724_029


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key=KEY)


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> Any:
    return connect(any_server)


def batch_of(endpoint: Endpoint, **options: Any) -> ReadBatch:
    """The only batch of the stream."""
    with Reader(endpoint, end="latest", **options) as reader:
        (batch,) = reader
    return batch


def xadd(client: Any, entry_id: str, *words: str | bytes) -> None:
    client.execute_command("XADD", KEY, entry_id, *words)


def test_an_entry_has_the_fields_that_redis_has(endpoint: Endpoint, client: Any) -> None:
    xadd(client, f"{MS}-0", "payload", b"\xff\x00", "ts", "5", "payload", "last")
    xadd(client, f"{MS + 1}-7", "größe", "")
    first, second = batch_of(endpoint)
    assert (first.stream, first.id) == (KEY.encode(), f"{MS}-0")
    assert first.timestamp == datetime(2026, 11, 22, 5, 18, 44, 29_000, tzinfo=UTC)
    assert first.timestamp.tzinfo is UTC
    assert first.fields == {"payload": b"last", "ts": b"5"}
    assert (first["payload"], first.get("ts"), first.get("x"), first.get("x", 1)) == (b"last", b"5", None, 1)
    assert "ts" in first
    assert "x" not in first
    assert (second.id, second.fields, second.items()) == (f"{MS + 1}-7", {"größe": b""}, [("größe", b"")])


def test_a_list_of_fields_keeps_equal_names_and_their_order(endpoint: Endpoint, client: Any) -> None:
    xadd(client, "1-1", "b", "1", "a", "2", "b", "3", "a", "4")
    (entry,) = batch_of(endpoint, fields_as="list")
    assert entry.items() == [("b", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")]
    assert entry.fields == {"b": b"3", "a": b"4"}
    assert (entry["b"], list(entry.fields)) == (b"3", ["b", "a"])


def test_names_are_bytes_where_they_were_asked_for(endpoint: Endpoint, client: Any) -> None:
    xadd(client, "1-1", b"\xff", "1")
    binary: Any = batch_of(endpoint, names="binary")[0]
    assert (binary.fields, binary[b"\xff"], b"x" in binary) == ({b"\xff": b"1"}, b"1", False)
    with pytest.raises(TypeError, match=r"the names of fields are bytes, got str: 'a'"):
        binary["a"]
    (text,) = batch_of(endpoint)
    assert (text.fields, text["\\xff"]) == ({"\\xff": b"1"}, b"1")
    with pytest.raises(TypeError, match=r"the names of fields are str, got bytes: b'a'"):
        text.get(b"a")


def test_the_id_and_the_time_need_no_metadata(endpoint: Endpoint, client: Any) -> None:
    add(client, 3, key=KEY)
    renamed = {"entry_id": "stream", "stream": "id"}
    cases: list[dict[str, Any]] = [
        {"metadata": []},
        {"fields": ["field"]},
        {"metadata": renamed},
        {"reverse": True, "end": None},
    ]
    for options in cases:
        with Reader(endpoint, **{"end": "latest", **options}) as reader:
            ids = [entry.id for batch in reader for entry in batch]
        assert ids == (["3-0", "2-0", "1-0"] if "reverse" in options else ["1-0", "2-0", "3-0"])


def test_an_id_that_is_no_time_has_no_timestamp(endpoint: Endpoint, client: Any) -> None:
    for entry_id in ("253402300799999-0", "253402300800000-0", f"{2**64 - 1}-{2**64 - 1}"):
        xadd(client, entry_id, "a", "1")
    last, *others = batch_of(endpoint)
    assert last.timestamp == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    for entry in others:
        with pytest.raises(ValueError, match=rf"entry {entry.id} has no timestamp: datetime ends with the year 9999"):
            entry.timestamp  # noqa: B018
    assert others[1].id == f"{2**64 - 1}-{2**64 - 1}"


def test_rows_are_selected_as_those_of_a_list(endpoint: Endpoint, client: Any) -> None:
    ids = add(client, 7, key=KEY)
    batch = batch_of(endpoint)
    assert len(batch) == batch.num_rows == 7
    assert [entry.id for entry in batch] == ids
    assert [entry.id for entry in reversed(batch)] == ids[::-1]
    chance = random.Random(4)
    for _ in range(200):
        start, stop, step = (chance.choice([None, *range(-9, 10)]) for _ in range(3))
        if step != 0:
            part = slice(start, stop, step)
            assert [entry.id for entry in batch[part]] == ids[part], part
    for row in range(-7, 7):
        assert batch[row].id == ids[row]
    assert batch[True].id == ids[1]


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (7, IndexError, "row 7 is out of range: the batch has 7 rows"),
        (-8, IndexError, "row -8 is out of range: the batch has 7 rows"),
        (10**30, IndexError, f"row {10**30} is out of range: the batch has 7 rows"),
        ("field", TypeError, 'rows are selected by an int or a slice, got str; batch[0]["payload"] is a field of'),
        (1.0, TypeError, "rows are selected by an int or a slice, got float"),
        (None, TypeError, "rows are selected by an int or a slice, got NoneType"),
        (slice("a"), TypeError, "slice indices must be integers"),
        (slice(None, None, 0), ValueError, "slice step cannot be zero"),
    ],
)
def test_a_row_that_does_not_exist_is_named(
    row: Any, error: type[Exception], message: str, endpoint: Endpoint, client: Any
) -> None:
    add(client, 7, key=KEY)
    with pytest.raises(error, match=re.escape(message)):
        batch_of(endpoint)[row]


def test_a_field_that_does_not_exist_is_named_with_those_that_do(endpoint: Endpoint, client: Any) -> None:
    xadd(client, "1-1", *(word for name in "abcdef" for word in (name, "1")))
    (entry,) = batch_of(endpoint)
    with pytest.raises(KeyError) as caught:
        entry["z"]
    assert caught.value.args == ("entry 1-1 has no field 'z'; it has 'a', 'b', 'c', 'd', 'e', …",)
    for name in (0, None, slice(1)):
        with pytest.raises(TypeError, match="the names of fields are str, got"):
            entry[name]  # type: ignore[index]


def test_what_only_a_consumer_knows_is_no_attribute_of_an_entry_of_a_reader(endpoint: Endpoint, client: Any) -> None:
    add(client, 1, key=KEY)
    (entry,) = batch_of(endpoint)
    for name in ("deliveries", "reclaimed"):
        assert not hasattr(entry, name)
        with pytest.raises(AttributeError, match=f"only an entry of a Consumer has {name}, not one of a Reader"):
            getattr(entry, name)


def test_entries_are_equal_if_they_are_the_same_row_of_the_same_batch(endpoint: Endpoint, client: Any) -> None:
    add(client, 2, key=KEY)
    batch, other = batch_of(endpoint), batch_of(endpoint)
    assert batch[0] == batch[0]
    assert hash(batch[0]) == hash(batch[0])
    assert batch[0] != batch[1]
    assert batch[0] != other[0]
    assert batch[0] != "1-0"
    assert batch[1] in batch
    assert len({*batch, *batch, *other}) == 4


def test_an_entry_outlives_the_reader_and_its_own_batch(endpoint: Endpoint, client: Any) -> None:
    add(client, 2, key=KEY)
    entries = list(batch_of(endpoint))
    iterator = iter(batch_of(endpoint))
    assert [entry["field"] for entry in entries] == [b"value"] * 2
    assert [entry.id for entry in iterator] == ["1-0", "2-0"]
    assert list(iterator) == []


def test_an_entry_is_not_iterable(endpoint: Endpoint, client: Any) -> None:
    """Python would call `entry[0]`, as for a sequence."""
    add(client, 1, key=KEY)
    (entry,) = batch_of(endpoint)
    uses: tuple[Callable[[Any], object], ...] = (iter, list, dict, set)
    for use in uses:
        with pytest.raises(TypeError, match=r"an Entry is not iterable: items\(\) returns the names and values"):
            use(entry)
    assert dict(entry.items()) == entry.fields == {"field": b"value"}


def test_a_copy_of_an_entry_is_the_entry(endpoint: Endpoint, client: Any) -> None:
    add(client, 1, key=KEY)
    (entry,) = batch_of(endpoint)
    assert copy.copy(entry) is entry
    assert copy.deepcopy([entry])[0] is entry


def test_an_entry_is_not_pickled(endpoint: Endpoint, client: Any) -> None:
    add(client, 1, key=KEY)
    (entry,) = batch_of(endpoint)
    with pytest.raises(TypeError, match="cannot pickle an Entry, which is a row of its batch: pickle its id"):
        pickle.dumps(entry)
    assert pickle.loads(pickle.dumps((entry.id, entry.fields))) == ("1-0", {"field": b"value"})


def test_a_batch_is_true_and_says_which_attributes_it_lacks(endpoint: Endpoint, client: Any) -> None:
    add(client, 1, key=KEY)
    batch = batch_of(endpoint)
    assert batch
    with pytest.raises(AttributeError, match=r"has no attribute 'to_pandas'; batch\.to_pylist\(\) returns its rows"):
        batch.to_pandas()  # type: ignore[attr-defined]


def test_the_repr_of_an_entry_is_short_whatever_it_holds(endpoint: Endpoint, client: Any) -> None:
    xadd(client, "1-1", "payload", b"x" * 1_000_000, "n" * 1_000_000, b"\xff")
    xadd(client, "1-2", *(word for number in range(1_000) for word in (f"f{number}", "v")))
    long, many = batch_of(endpoint)
    assert repr(long) == f"<Entry: 1-1 of 's', 'payload': b'{'x' * 60}'…, '{'n' * 64}…': b'\\xff'>"
    assert repr(many) == "<Entry: 1-2 of 's', 'f0': b'v', 'f1': b'v', 'f2': b'v', 'f3': b'v', 'f4': b'v', …>"


def test_a_notebook_shows_the_first_rows_and_escapes_them(endpoint: Endpoint, client: Any) -> None:
    for number in range(30):
        xadd(client, f"{number + 1}-0", "<b>", b"<i>" + b"x" * 10_000, f"f{number}", "v")
    batch = batch_of(endpoint)
    shown = batch._repr_html_()
    assert shown.count("<tr>") == 1 + 20
    assert shown.startswith("<table><caption>ReadBatch: 30 rows of &#x27;s&#x27;, 1-0 to 30-0, the first 20</caption>")
    assert "<th>entry_id</th><th>&lt;b&gt;</th>" in shown
    assert "<th>f18</th><th>…</th></tr>" in shown  # of 20 rows with a name of their own
    assert "<td>20-0</td><td>b&#x27;&lt;i&gt;xxx" in shown
    assert "<i>" not in shown
    assert len(shown) < 20_000


def test_a_notebook_shows_values_without_their_types(endpoint: Endpoint) -> None:
    row = {"id": 1, "sum": Decimal("9.50"), "at": datetime(2026, 4, 14, tzinfo=UTC), "city": "Rome", "none": None}
    table = pa.table({name: [value] for name, value in row.items()})
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table, arrow_ipc=True)
    batch = batch_of(endpoint, schema=table.schema, unpack="arrow_ipc")
    cells = ["1", "9.50", "2026-04-14 00:00:00+00:00", "Rome", ""]
    assert "".join(f"<td>{cell}</td>" for cell in cells) in batch._repr_html_()
    assert "'sum': Decimal('9.50')" in repr(batch[0])


TYPED = {
    "int": pa.array([2**63 - 1, None], pa.int64()),
    "half": pa.array([1.5, None], pa.float16()),
    "text": pa.array(["ü", None], pa.large_string()),
    "view": pa.array(["longer than the view", None], pa.string_view()),
    "bytes": pa.array([b"\xff", None], pa.binary_view()),
    "exact": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
    "coarse": pa.array([Decimal("12E+3"), None], pa.decimal256(5, -3)),
    "day": pa.array([date(1, 1, 1), None], pa.date32()),
    "midday": pa.array([time(12, 0, 0, 1), None], pa.time64("ns")),
    "naive": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999), None], pa.timestamp("us")),
    "utc": pa.array([datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None], pa.timestamp("ms", "UTC")),
    "berlin": pa.array([datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None], pa.timestamp("s", "Europe/Berlin")),
    "offset": pa.array([datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None], pa.timestamp("us", "-05:30")),
    "elapsed": pa.array([timedelta(-1, 5, 7), None], pa.duration("us")),
    "uuid": pa.array([UUID(int=7).bytes, None], pa.uuid()),
    "flag": pa.array([True, None]).cast(pa.int8()).cast(pa.bool8()),
    "choice": pa.array(["x", None]).dictionary_encode(),
    "span": pa.array([pa.MonthDayNano([1, -2, 3]), None]),
    "nothing": pa.nulls(2),
    "list": pa.array([[1, None], None], pa.large_list(pa.int8())),
    "pair": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "struct": pa.array(
        [{"a": [Decimal("0.5")], "b": None}, None], pa.struct({"a": pa.list_(pa.decimal64(5, 1)), "b": pa.null()})
    ),
    "map": pa.array([[("k", b"v"), ("l", None)], None], pa.map_(pa.string(), pa.binary())),
}


def test_the_objects_of_typed_columns_are_those_of_pyarrow(endpoint: Endpoint) -> None:
    table = pa.table(TYPED)
    write(endpoint, table, arrow_ipc=True)
    metadata = ["entry_id", "timestamp", "row_in_entry"]
    batch = batch_of(endpoint, schema=table.schema, unpack="arrow_ipc", metadata=metadata)
    found = batch.to_pylist()
    first = found[0]
    zones = [first[name].tzinfo for name in ("utc", "berlin", "offset", "timestamp")]
    assert zones[:2] == [ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")]
    assert (zones[2].utcoffset(None), zones[3]) == (timedelta(hours=-5, minutes=-30), ZoneInfo("UTC"))
    assert str(first["berlin"]) == "2026-03-29 03:30:00+02:00"
    assert (str(first["exact"]), str(first["coarse"]), first["span"]) == ("1.10", "1.2E+4", (1, -2, 3))
    assert_same(found, pa.record_batch(batch).to_pylist())
    assert [found[1][name] for name in TYPED] == [None] * len(TYPED)
    one, two = batch
    assert one.id == two.id == first["entry_id"]
    assert_same(one.fields, {name: first[name] for name in TYPED})
    assert two["exact"] is None
    assert "exact" in two
    assert "entry_id" not in two
    assert repr(one).startswith(f"<Entry: {one.id} of 's', 'int': 9223372036854775807, 'half': 1.5, 'text': 'ü', ")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0, 1_001]).cast(pa.timestamp("ns")), "1001 ns has nanoseconds, and Python's datetime"),
        (pa.array([0, 1_001]).cast(pa.time64("ns")), "1001 ns has nanoseconds"),
        (pa.array([0, -1]).cast(pa.duration("ns")), "-1 ns has nanoseconds"),
        (
            pa.array([0, 2**62]).cast(pa.timestamp("us")),
            f"{2**62} µs is more than Python's datetime holds, the years 1 to 9999",
        ),
        (pa.array([0, 2**62]).cast(pa.timestamp("s")), f"{2**62} s is more than"),
        (pa.array([0, 2**62]).cast(pa.duration("s")), f"{2**62} s is more than"),
        (pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), "2147483647 days is more than"),
        (pa.array([0, 253_402_300_799]).cast(pa.timestamp("s", "+01:00")), "253402304399000000 µs is more than"),
        (pa.array([0, 253_402_300_799]).cast(pa.timestamp("s", "Asia/Tokyo")), "date value out of range"),
        (pa.array([None, [253_402_300_800]], pa.list_(pa.timestamp("s"))), "253402300800000000 µs is more than"),
    ],
)
def test_a_value_that_python_does_not_have_is_named_and_not_cut(
    column: pa.Array, message: str, endpoint: Endpoint
) -> None:
    table = pa.table({"a": [1, 2], "it's": column})
    write(endpoint, table, arrow_ipc=True)
    batch = batch_of(endpoint, schema=table.schema, unpack="arrow_ipc")
    prefix = 'column "it\'s", row 1: '
    with pytest.raises(ValueError, match=re.escape(prefix) + ".*" + re.escape(message)) as caught:
        batch.to_pylist()
    assert str(caught.value).startswith(prefix)
    # The other rows and columns are there.
    assert (batch[1]["a"], batch[0].fields) == (2, pa.record_batch(batch).slice(0, 1).to_pylist()[0])
    with pytest.raises(ValueError, match=re.escape(message)):
        batch[1]["it's"]
    assert repr(batch[1]) == f"<Entry: {batch[1].id} of 's', 'a': 2, 'it\\'s': ?>"


def test_entries_that_do_not_fit_keep_their_fields(endpoint: Endpoint, client: Any) -> None:
    xadd(client, "1-1", "n", "1")
    xadd(client, "1-2", "n", "x", "y", "2")
    schema = pa.schema({"n": pa.int64()})
    batch = batch_of(endpoint, schema=schema, on_bad_field="keep", metadata=["raw", "entry_id"])
    assert [entry.fields for entry in batch] == [{"n": 1, "raw": None}, {"n": None, "raw": [("n", b"x"), ("y", b"2")]}]
    assert batch.to_pylist() == pa.record_batch(batch).to_pylist()


def write(endpoint: Endpoint, table: pa.Table, **layout: Any) -> None:
    with Dispatcher(endpoint, ts_field="\x01ts") as dispatcher:
        dispatcher.produce_batch(table, **layout)
        dispatcher.flush().raise_for_failures()


def assert_same(found: Any, wanted: Any) -> None:
    """Assert that objects are equal and of the same types. For nanoseconds pyarrow returns those of pandas."""
    if isinstance(wanted, float) and math.isnan(wanted):
        assert isinstance(found, float)
        assert math.isnan(found)
        return
    if type(wanted).__module__.startswith("pandas"):
        assert found == wanted
        return
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        assert isinstance(found, list if isinstance(wanted, list) else tuple)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
        return
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name in wanted:
            assert_same(found[name], wanted[name])
        return
    assert found == wanted
    assert str(found) == str(wanted)


def copies(endpoint: Endpoint, layout: Layout, table: pa.Table, chance: random.Random) -> Iterator[ReadBatch]:
    """The batches of a table that was written in this layout."""
    write(endpoint, table, **layout.written(chance, table))
    metadata = chance.choice([None, ["entry_id", "timestamp"], []])
    options: dict[str, Any] = {"batch_rows": chance.choice([2, 8_192]), "metadata": metadata}
    if layout.unpack is None and chance.random() < 0.3:  # as they are, or as text
        options |= chance.choice(
            [{}, {"fields_as": "list"}, {"names": "binary"}, {"fields": table.column_names, "on_bad_field": "null"}]
        )
    else:
        options |= {"schema": table.schema, "unpack": layout.unpack}
    with Reader(endpoint, end="latest", **options) as reader:
        yield from reader


def sane(kind: pa.DataType) -> Callable[[random.Random], int]:
    """Draws numbers of a type that Python's `datetime` can hold."""
    if kind == pa.date32():
        return lambda chance: chance.randrange(-719_162, 2_932_897)
    if kind == pa.date64():
        return lambda chance: chance.randrange(-719_162, 2_932_897) * 86_400_000
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    step, most = (1_000, 9 * 10**9) if kind.unit == "ns" else (1, 2 * 10**11)
    if pa.types.is_time(kind):
        return lambda chance: chance.randrange(86_400 * per_second // step) * step
    return lambda chance: (
        chance.randrange(-most if most < 10**11 else -6 * 10**10, most) * per_second
        + (chance.randrange(per_second // step) * step if per_second > 1 else 0)
    )


def check_tables(endpoint: Endpoint, client: Any, first: int, count: int) -> int:
    """Compare the rows of random tables in each layout with those of pyarrow, and return the number of values."""
    seen = 0
    for number in range(first, first + count):
        table = random_table(44, number)
        chance = random.Random(f"{number} rows")
        for layout in LAYOUTS:
            part = layout.part(table)
            if not part.num_columns or not part.num_rows:
                continue
            client.delete(KEY)
            for batch in copies(endpoint, layout, part, chance):
                wanted = pa.record_batch(batch).to_pylist()
                found = batch.to_pylist()
                assert_same(found, wanted)
                names = batch[0].fields
                if found and names and set(names) <= set(found[0]):
                    of_names = [{name: row[name] for name in names} for row in wanted]
                    assert_same([entry.fields for entry in batch], of_names)
                seen += len(found) * len(found[0]) if found else 0
    return seen


def use_sane_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, (storage, _) in list(tables._COUNTED.items()):
        monkeypatch.setitem(tables._COUNTED, kind, (storage, sane(kind)))


def test_rows_are_those_of_pyarrow_in_every_layout(
    endpoint: Endpoint, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_sane_values(monkeypatch)
    assert check_tables(endpoint, client, 0, 25) > 500


@pytest.mark.thorough
@pytest.mark.timeout(1_800)
def test_rows_are_those_of_pyarrow_in_5_000_tables(
    endpoint: Endpoint, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_sane_values(monkeypatch)
    assert check_tables(endpoint, client, 25, 5_000) > 100_000


@pytest.mark.thorough
def test_values_of_the_whole_range_are_those_of_pyarrow_or_refused(endpoint: Endpoint, client: Any) -> None:
    refused = same = 0
    for number in range(400):
        table = random_table(45, number)
        chance = random.Random(f"{number} whole")
        for layout in LAYOUTS:
            part = layout.part(table)
            if not part.num_columns or not part.num_rows:
                continue
            client.delete(KEY)
            for batch in copies(endpoint, layout, part, chance):
                arrow = pa.record_batch(batch)
                for name in set(part.column_names) & set(arrow.schema.names):
                    for row in range(len(batch)):
                        try:
                            found = batch[row][name]
                        except ValueError:
                            refused += 1
                            continue
                        try:
                            wanted = arrow[name][row].as_py()
                        except Exception:  # pyarrow is stricter with decimals
                            continue
                        assert_same(found, wanted)
                        same += 1
    assert refused > 100
    assert same > 1_000


def test_no_arrow_library_is_imported(any_server: LocalServer, client: Any) -> None:
    xadd(client, "1-1", "payload", "x")
    program = """
import sys
from headrace import Endpoint, Reader
for options in ({}, {"fields": ["payload"]}):
    with Reader(Endpoint.from_url(sys.argv[1], stream_key="s"), end="latest", **options) as reader:
        for batch in reader:
            print([(entry.id, entry["payload"]) for entry in batch], batch.to_pylist()[0], batch._repr_html_()[:7])
print(sorted({"pyarrow", "polars", "pandas", "numpy"} & sys.modules.keys()))
"""
    run = subprocess.run([sys.executable, "-c", program, any_server.url], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert lines[1:] == ["[('1-1', 'x')] {'payload': 'x'} <table>", "[]"]
    assert lines[0].startswith("[('1-1', b'x')] {'stream': 's', 'entry_id': '1-1', 'timestamp': datetime.datetime(")


def test_entries_name_their_class() -> None:
    assert (Entry.__module__, Entry.__qualname__) == ("headrace._headrace", "Entry")
    with pytest.raises(TypeError, match="cannot create"):
        Entry()
