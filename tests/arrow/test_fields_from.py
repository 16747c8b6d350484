"""`fields_from`: the fields of an entry from one column, so that entries are copied as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from headrace import DeliveryReport, Dispatcher, SchemaError
from headrace.testing import LocalServer
from support import Monitor
from support.fixture_types import StartServer
from support.modes import SOON, Pair, pairs
from support.pipelines import KEY, endpoint_to, labels, outcomes

Connect = Callable[..., Any]
Fields = list[tuple[bytes, bytes]]

EMPTY = ("permanent", "EMPTY", "no")
DELIVERED = (None, None, None)
LIST = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
MAP = pa.map_(pa.binary(), pa.binary())


def entries(client: Any, key: str = KEY) -> list[tuple[bytes, Fields]]:
    """ID and fields of each entry, with their order and duplicates, which a dict would lose."""
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    return [
        (entry_id, list(zip(fields[::2], fields[1::2], strict=True)))
        for entry_id, fields in client.execute_command("XRANGE", key, "-", "+")
    ]


def fields_of(client: Any, key: str = KEY) -> list[Fields]:
    return [fields for _, fields in entries(client, key)]


def as_list(rows: Sequence[Fields]) -> Any:
    """A column that keeps duplicates, which a map of Arrow need not have."""
    return pa.array([[{"name": name, "value": value} for name, value in row] for row in rows], LIST)


def send(dispatcher: Dispatcher, column: Any, **layout: Any) -> DeliveryReport:
    columns = {"fields": column}
    columns |= {name: layout.pop(name) for name in ("ids", "keys") if name in layout}
    dispatcher.produce_batch(pa.record_batch(columns), fields_from="fields", **layout)
    return dispatcher.flush()


def in_mode(server: LocalServer, mode: str, **options: Any) -> Dispatcher:
    if mode != "off":
        options |= {"exactly_once": mode, "retry": SOON}
    return Dispatcher(endpoint_to(server), **options)


@pytest.fixture(params=pairs(), ids=str)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Each server with each mode that it supports."""
    made: Pair = request.param
    return made


#: Entries of every kind that a server takes.
KINDS: list[Fields] = [
    [(b"id", b"1"), (b"name", b"one")],
    [(b"id", b"2"), (b"name", b"two")],
    [(b"name", b"three"), (b"id", b"3")],
    [(b"\xff\xfe\x00", b"\x80\x00\r\n*1\r\n$8\r\nFLUSHALL\r\n")],
    [(b"\r\n$-1\r\n", b""), (b"", b""), (b"", b"again")],
    [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"1")],
    [(b"payload", b"p"), (b"ts", b"2020-01-01T00:00:00Z")],
    [(b"%d" % number, b"%d" % (number * number)) for number in range(3_000)],
    [(b"large", b"x" * 300_000), (b"y" * 100_000, b"")],
    [(b"MAXLEN", b"~"), (b"*", b"0-0"), (b"NOMKSTREAM", b"IDMP")],
    [(b"id", b"4"), (b"name", b"four")],
]
#: Names that recur, and names that do not.
KINDS += [[(b"id", b"%d" % number), (b"name", b"n")] for number in range(300)]
KINDS += [[(b"%d" % (number // 2), b"v"), (b"id", b"%d" % number)] for number in range(200)]
KINDS += [[(b"name %d" % number, b"v")] for number in range(200)]


def test_entries_of_every_kind_are_copied_unchanged(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    server = start_server(pair.program)
    client = connect(server)
    for fields in KINDS:
        client.execute_command("XADD", "source", "*", *(part for pair in fields for part in pair))
    source = entries(client, "source")
    assert [fields for _, fields in source] == KINDS
    column = as_list([fields for _, fields in source])
    with in_mode(server, pair.mode) as dispatcher:
        report = send(dispatcher, column)
        assert (report.ok, report.delivered) == (True, len(KINDS))
        assert fields_of(client) == KINDS
        assert [outcome.entry_id for outcome in outcomes(report)] == [
            entry_id.decode() for entry_id, _ in entries(client)
        ]
        if pair.mode != "idmp":
            ids = pa.array([entry_id.decode() for entry_id, _ in source])
            keys = pa.array(["copy"] * len(KINDS))
            assert send(dispatcher, column, ids=ids, keys=keys, entry_id="ids", stream_key="keys").ok
            assert entries(client, "copy") == source


NAMES = [b"b", "ä".encode(), b"", b"a name longer than a view holds inline", b"b"]
VALUES = [b"1", b"", "wörter".encode(), b"2", b"3"]


@pytest.mark.parametrize(
    "name", [pa.string, pa.large_string, pa.string_view, pa.binary, pa.large_binary, pa.binary_view]
)
@pytest.mark.parametrize("value", [pa.string, pa.large_binary, pa.binary_view])
def test_every_text_and_binary_type_is_accepted(
    any_server: LocalServer, connect: Connect, name: Any, value: Any
) -> None:
    names, values = pa.array(NAMES, pa.binary()).cast(name()), pa.array(VALUES, pa.binary()).cast(value())
    items = pa.StructArray.from_arrays([names, values], ["name", "value"])
    columns = [
        pa.MapArray.from_arrays([0, 2, 5], names, values),
        pa.ListArray.from_arrays([0, 2, 5], items),
        pa.LargeListArray.from_arrays([0, 2, 5], items),
    ]
    expected = list(zip(NAMES, VALUES, strict=True))
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        for column in columns:
            assert send(dispatcher, column).ok
            assert send(dispatcher, column.slice(1)).ok
    assert fields_of(connect(any_server)) == [expected[:2], expected[2:], expected[2:]] * len(columns)


def test_fields_from_polars(any_server: LocalServer, connect: Connect) -> None:
    rows = [[{"name": b"a", "value": b"\xff"}, {"name": b"a", "value": b"2"}], [{"name": b"b", "value": b""}]]
    frame = pl.DataFrame({"f": rows}, {"f": pl.List(pl.Struct({"name": pl.Binary, "value": pl.Binary}))})
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce_batch(frame, fields_from="f")
        assert dispatcher.flush().delivered == 2
    assert fields_of(connect(any_server)) == [[(b"a", b"\xff"), (b"a", b"2")], [(b"b", b"")]]


def test_a_row_without_fields_fails_no_other_row(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    server = start_server(pair.program)
    column = pa.array([[(b"a", b"1")], None, [], [(b"a", None)], [(b"a", None), (b"b", b"2")], [(b"a", b"3")]], MAP)
    with in_mode(server, pair.mode) as dispatcher:
        report = send(dispatcher, column)
        assert labels(report) == [DELIVERED, EMPTY, EMPTY, EMPTY, DELIVERED, DELIVERED]
        assert [failure.message for failure in report.failed] == [
            'column "fields": the fields of the row are null',
            'column "fields": the row has no fields',
            'column "fields": every field of the row is null',
        ]
    assert fields_of(connect(server)) == [[(b"a", b"1")], [(b"b", b"2")], [(b"a", b"3")]]


def test_a_field_without_a_name_fails_its_row(any_server: LocalServer, connect: Connect) -> None:
    column = pa.array(
        [[{"name": None, "value": b"1"}], [{"name": None, "value": None}, {"name": b"a", "value": b"2"}, None]], LIST
    )
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        report = send(dispatcher, column)
        assert labels(report) == [("permanent", "BAD_VALUE", "no"), DELIVERED]
        assert report.failed[0].message == 'column "fields": the name of a field is null, but its value is not'
    assert fields_of(connect(any_server)) == [[(b"a", b"2")]]


@pytest.mark.parametrize(
    ("options", "time"),
    [({}, None), ({"ts_field": None}, None), ({"ts_field": "ts"}, b"ts"), ({"ts_field": "copied at"}, b"copied at")],
    ids=str,
)
def test_a_time_field_is_added_only_on_request(
    pair: Pair, start_server: StartServer, connect: Connect, options: dict[str, Any], time: bytes | None
) -> None:
    """Messages before and behind a copy keep theirs."""
    server = start_server(pair.program)
    column = as_list([[(b"a", b"1"), (b"ts", b"old")], [(b"b", b"2")]])
    others = [] if "ts_field" in options and time is None else [time or b"ts"]
    payloads = pa.record_batch({"payload": ["p", "q"]})
    with in_mode(server, pair.mode, **options) as dispatcher:
        for _ in range(2):
            dispatcher.produce("p")
            dispatcher.produce_batch(pa.record_batch({"fields": column}), fields_from="fields")
            dispatcher.produce_batch(payloads)
            dispatcher.produce_batch(pa.record_batch({"fields": column}), fields_from="fields")
            dispatcher.produce_batch(payloads, fields=["payload"])
        report = dispatcher.flush()
        assert report.ok
        if pair.mode == "off":
            dispatcher.produce_batch(pa.record_batch({"fields": column.slice(1)}), fields_from="fields")
            dispatcher.dispatch("p")
    own = [] if time is None else [time]
    copies, payload = [[b"a", b"ts", *own], [b"b", *own]], [b"payload", *others]
    written = [payload, *copies, payload, payload, *copies, payload, payload] * 2
    if pair.mode == "off":
        written += [copies[1], payload]
    client = connect(server)
    assert [[name for name, _ in fields] for fields in fields_of(client)] == written
    assert fields_of(client)[1][:2] == [(b"a", b"1"), (b"ts", b"old")]


def test_a_script_call_sends_recurring_names_only_once(server: LocalServer, connect: Connect) -> None:
    shapes = [[b"id", b"name"], [b"name", b"id"], [b"id"], [b"id", b"id", b"other"], [b"\xff", b""]]
    rows = [[(name, b"%d" % number) for name in shapes[number * 7 % 5]] for number in range(2_000)]
    with in_mode(server, "script") as dispatcher:
        for at in (0, 1_000):
            assert send(dispatcher, as_list(rows[at : at + 1_000])).ok
        stats = dispatcher.stats()
    assert (stats.script_rows_shared, stats.script_rows_whole, stats.script_calls) == (2_000, 0, 6)
    assert fields_of(connect(server)) == rows


def test_a_script_call_sends_rows_unchanged_if_names_do_not_recur(server: LocalServer, connect: Connect) -> None:
    rows = [[(b"name %d" % number, b"1"), (b"id", b"2")] for number in range(1_000)]
    streams = ["a" if number % 3 else "b" for number in range(1_000)]
    with in_mode(server, "script") as dispatcher:
        assert send(dispatcher, as_list(rows)).ok
        stats = dispatcher.stats()
        assert stats.script_rows_shared < 50 < 900 < stats.script_rows_whole
        assert stats.script_calls < 10
        assert send(dispatcher, as_list(rows), keys=pa.array(streams), stream_key="keys").ok
    client = connect(server)
    assert fields_of(client) == rows
    for key in ("a", "b"):
        assert fields_of(client, key) == [row for row, its in zip(rows, streams, strict=True) if its == key]


@pytest.mark.parametrize("recurring", [True, False])
def test_a_batch_that_is_sent_again_is_copied_once(server: LocalServer, connect: Connect, recurring: bool) -> None:
    """Some rows of a call are there, and others are not."""
    rows = [[(b"name %d" % (number % 4 if recurring else number), b"%d" % number)] for number in range(500)]
    with in_mode(server, "script") as dispatcher:
        dispatcher.begin("copy")
        assert send(dispatcher, as_list(rows[:130])).ok
        dispatcher.begin("copy")
        report = send(dispatcher, as_list(rows))
        assert (report.ok, report.deduplicated) == (True, 130)
    assert fields_of(connect(server)) == rows


def test_a_row_with_too_many_fields_for_a_script_fails(server: LocalServer, connect: Connect) -> None:
    many = [(b"%d" % number, b"") for number in range(3_501)]
    few = [(b"a", b"1")]
    with in_mode(server, "script") as dispatcher:
        assert labels(send(dispatcher, as_list([few, many, few]))) == [
            DELIVERED,
            ("permanent", "TOO_LARGE", "no"),
            DELIVERED,
        ]
    with in_mode(server, "off") as dispatcher:
        assert send(dispatcher, as_list([many])).ok
    assert fields_of(connect(server)) == [few, few, many]


def test_a_row_with_too_many_fields_for_the_server_fails(server: LocalServer, connect: Connect) -> None:
    """Redis 6.2 takes commands of 1,048,576 arguments and ends the connection over a longer one; later ones take it."""
    many = [(b"a", b"")] * 600_000
    few = [(b"a", b"1")]
    client = connect(server)
    takes_all = client.info("server")["redis_version"] >= "7"
    with Dispatcher(endpoint_to(server)) as dispatcher:
        found = labels(send(dispatcher, as_list([few, many])))
        assert found == [DELIVERED, DELIVERED if takes_all else ("permanent", "TOO_LARGE", "no")]
        assert send(dispatcher, as_list([few])).ok
    assert [len(fields) for fields in fields_of(client)] == [1, *([600_000] if takes_all else []), 1]


def test_rows_before_a_field_name_that_is_too_long_are_delivered(start_server: StartServer, connect: Connect) -> None:
    """A run of the script sends the names of all of its rows first."""
    server = start_server(config={"proto-max-bulk-len": 1 << 20})
    few = [(b"a", b"1")]
    with in_mode(server, "script") as dispatcher:
        found = labels(send(dispatcher, as_list([few, [(b"x" * (2 << 20), b"1")], few])))
    assert found == [DELIVERED, ("permanent", "TOO_LARGE", "no"), ("retryable", "BLOCKED", "no")]
    assert fields_of(connect(server)) == [few]


WRONG = {
    "number": pa.array([1]),
    "text": pa.array(["a"]),
    "null": pa.nulls(1),
    "struct": pa.array([{"name": "a", "value": "b"}]),
    "list of text": pa.array([["a"]]),
    "list of other members": pa.array([[{"key": "a", "value": "b"}]]),
    "list of three members": pa.array([[{"name": "a", "value": "b", "more": "c"}]]),
    "map of numbers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "map by numbers": pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string())),
    "map of maps": pa.array([[("a", [("b", "c")])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))),
    "uuid": pa.array(
        [[{"name": "a", "value": b"x" * 16}]], pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary(16))]))
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_types_are_refused_before_anything_is_sent(any_server: LocalServer, kind: str) -> None:
    good = pa.record_batch({"fields": as_list([[(b"a", b"1")]])})
    with Monitor(any_server) as seen, Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(SchemaError, match=r'^column "fields" cannot hold the fields of entries: .* \(supported: '):
            send(dispatcher, WRONG[kind])
        with pytest.raises(SchemaError, match=r'^the record batch has no column "felds".*did you mean "fields"'):
            dispatcher.produce_batch(good, fields_from="felds")
        assert len(dispatcher.flush()) == 0
        assert seen.commands("XADD") == []
