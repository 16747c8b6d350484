"""Several rows in one entry, `rows_per_entry` and `arrow_ipc`: written by headrace, read back by redis-py."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace import DeliveryReport, Dispatcher
from headrace.testing import LocalServer
from support import Monitor
from support.pipelines import KEY, Outcome, endpoint_to, outcomes
from support.processes import stopped

Connect = Callable[..., Any]

TEXTS = ["a", "", "äöü", "longer than the twelve bytes of a view", "\x00\r\n", "f", "g"]
ROWS = pa.record_batch(
    {
        "id": pa.array(range(7), pa.int64()),
        "text": pa.array([*TEXTS[:6], None]),
        "view": pa.array(TEXTS, pa.string_view()),
        "n": pa.array([1.5, None, 0.0, -1.0, 1e300, 2.0, 3.0]),
        "city": pa.array(["Rome", "Oslo", "Rome", None, "Rome", "Bern", "Bern"]).dictionary_encode(),
        "list": pa.array([["x"], [], None, ["y", None], ["z"], [], ["w"]], pa.list_(pa.string_view())),
    }
)


def send(server: LocalServer, data: Any, *, options: dict[str, Any] | None = None, **layout: Any) -> DeliveryReport:
    """Send the data. Marks the failures as seen; the caller checks them."""
    with Dispatcher(endpoint_to(server), **(options or {})) as dispatcher:
        dispatcher.produce_batch(data, **layout)
        report = dispatcher.flush()
        assert len(report.failed) + report.delivered == len(report)
        return report


def entries(client: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    return [(entry_id.decode(), fields) for entry_id, fields in client.xrange(KEY)]


def unpacked(client: Any) -> list[list[bytes]]:
    return [headrace.unpack(fields) for _, fields in entries(client)]


def tables(client: Any) -> list[Any]:
    return [pa.table(headrace.unpack_arrow(fields)) for _, fields in entries(client)]


def check_ids(report: DeliveryReport, client: Any, sizes: list[int]) -> None:
    """Check that each row has the ID of its entry, for entries of these sizes."""
    reported = [outcome.entry_id for outcome in outcomes(report) if outcome.entry_id is not None]
    ids = [entry_id for entry_id, _ in entries(client)]
    assert len(ids) == len(set(ids)) == len(sizes)
    assert reported == [entry_id for entry_id, size in zip(ids, sizes, strict=True) for _ in range(size)]


def sizes_of(rows: int, per_entry: int) -> list[int]:
    return [min(per_entry, rows - start) for start in range(0, rows, per_entry)]


def bodies(values: list[Any]) -> Any:
    return pa.record_batch({"payload": pa.array(values, pa.string())})


# --- rows_per_entry


def test_the_command_on_the_wire(server: LocalServer) -> None:
    with Monitor(server) as seen, Dispatcher(endpoint_to(server, maxlen=5, trim_every=2)) as dispatcher:
        dispatcher.produce_batch(bodies(["a", "", "c", "d", "e", "f", "g"]), rows_per_entry=3)
        assert dispatcher.flush().delivered == 7
        commands = seen.commands("XADD")
    head = [b"XADD", KEY.encode()]
    trim = [b"MAXLEN", b"~", b"5"]
    assert [command[:-1] for command in commands] == [
        [*head, *trim, b"*", b"payload:0", b"a", b"payload:1", b"", b"payload:2", b"c", b"ts"],
        [*head, b"*", b"payload:0", b"d", b"payload:1", b"e", b"payload:2", b"f", b"ts"],
        [*head, *trim, b"*", b"payload:0", b"g", b"ts"],
    ]
    assert all(command[-1].endswith(b"Z") for command in commands)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"ts_field": None}, [b"payload:0", b"payload:1"]),
        ({"payload_field": "body", "ts_field": "at"}, [b"body:0", b"body:1", b"at"]),
    ],
)
def test_names_of_the_fields(
    any_server: LocalServer, connect: Connect, options: dict[str, Any], fields: list[bytes]
) -> None:
    send(any_server, bodies(["a", "b"]), rows_per_entry=2, options=options)
    [(_, entry)] = entries(connect(any_server))
    assert list(entry) == fields
    assert headrace.unpack(entry, options.get("payload_field", "payload")) == [b"a", b"b"]


@pytest.mark.parametrize("per_entry", [2, 3, 10, 999, 1_000, 1_001])
def test_rows_survive_a_round_trip(server: LocalServer, connect: Connect, per_entry: int) -> None:
    values = [f"{row}" * (row % 20) for row in range(1_000)]
    report = send(server, bodies(values), rows_per_entry=per_entry)
    assert report.delivered == 1_000
    client = connect(server)
    assert [len(rows) for rows in unpacked(client)] == sizes_of(1_000, per_entry)
    assert [row.decode() for rows in unpacked(client) for row in rows] == values
    check_ids(report, client, sizes_of(1_000, per_entry))


def test_one_row_per_entry_is_the_default_layout(any_server: LocalServer, connect: Connect) -> None:
    assert send(any_server, bodies(["a", "b"]), rows_per_entry=1).delivered == 2
    assert [list(fields) for _, fields in entries(connect(any_server))] == [[b"payload", b"ts"]] * 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()])
def test_types_of_the_payload(any_server: LocalServer, connect: Connect, kind: Any) -> None:
    column = pa.array(TEXTS, kind)
    sliced = pa.record_batch({"payload": pa.concat_arrays([column, column])}).slice(3, 9)
    assert send(any_server, sliced, rows_per_entry=4).delivered == 9
    expected = [text.encode() for text in (TEXTS + TEXTS)[3:12]]
    assert [row for rows in unpacked(connect(any_server)) for row in rows] == expected


def test_rows_as_json(any_server: LocalServer, connect: Connect) -> None:
    assert send(any_server, ROWS, json=["id", "text"], rows_per_entry=5).delivered == 7
    rows = [[json.loads(row) for row in entry] for entry in unpacked(connect(any_server))]
    whole = [{"id": row["id"]} | ({"text": row["text"]} if row["text"] is not None else {}) for row in ROWS.to_pylist()]
    assert rows == [whole[:5], whole[5:]]


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (["a", None, "b"], [["a"], ["b"]]),
        ([None, "a", "b", "c", "d"], [["a", "b", "c"], ["d"]]),
        (["a", "b", "c", None, "d"], [["a", "b", "c"], ["d"]]),
        (["a", "b", None, None, "c", "d", "e", "f"], [["a", "b"], ["c", "d", "e"], ["f"]]),
        (["a", "b", "c", "d", None], [["a", "b", "c"], ["d"]]),
        ([None, None], []),
    ],
)
def test_a_row_that_cannot_be_sent_ends_the_entry(
    server: LocalServer, connect: Connect, values: list[str | None], written: list[list[str]]
) -> None:
    report = send(server, bodies(values), rows_per_entry=3)
    client = connect(server)
    assert [[row.decode() for row in rows] for rows in unpacked(client)] == written
    assert report.failed_ids == [row for row, value in enumerate(values) if value is None]
    reported = outcomes(report)
    assert [outcome.message_id for outcome in reported] == [str(row) for row in range(len(values))]
    assert {outcome.label for outcome in reported if outcome.entry_id is None} <= {("permanent", "NULL_PAYLOAD", "no")}
    check_ids(report, client, [len(rows) for rows in written])


@pytest.mark.parametrize("layout", [{"rows_per_entry": 10}, {"arrow_ipc": True, "rows_per_entry": 10}])
def test_an_entry_never_spans_two_record_batches(
    any_server: LocalServer, connect: Connect, layout: dict[str, Any]
) -> None:
    values = [str(row) for row in range(30)]
    chunks = pa.table({"payload": pa.chunked_array([values[:1], [], values[1:13], values[13:]], pa.string())})
    report = send(any_server, chunks, **layout)
    check_ids(report, connect(any_server), [1, 10, 2, 10, 7])
    assert send(any_server, chunks.slice(0, 0), **layout).delivered == 0


@pytest.mark.parametrize("layout", [{"rows_per_entry": 3, "payload": "view"}, {"arrow_ipc": True, "rows_per_entry": 3}])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_each_row_has_its_own_message_id(any_server: LocalServer, kind: Any, layout: dict[str, Any]) -> None:
    ids = pa.array([10, 11, None, 13, 14, 15, 16], pa.int64()).cast(kind)
    reported = outcomes(send(any_server, ROWS.append_column("name", ids), message_id="name", **layout))
    assert [outcome.message_id for outcome in reported] == ["10", "11", "2", "13", "14", "15", "16"]
    assert [outcome.label for outcome in reported] == [(None, None, None)] * 7
    assert [a.entry_id == b.entry_id for a, b in itertools.pairwise(reported)] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]


def test_an_entry_can_have_65536_rows(server: LocalServer, connect: Connect) -> None:
    """The command has 131,077 arguments."""
    values = [str(row) for row in range(65_537)]
    report = send(server, bodies(values), rows_per_entry=65_536, options={"window_max_bytes": 16 << 20})
    client = connect(server)
    assert [len(rows) for rows in unpacked(client)] == [65_536, 1]
    assert [row.decode() for rows in unpacked(client) for row in rows] == values
    check_ids(report, client, [65_536, 1])


def test_an_entry_ends_with_the_row_that_fills_the_window(server: LocalServer, connect: Connect) -> None:
    values = ["x" * 10_000] * 20 + ["y" * 200_000] * 2
    report = send(server, bodies(values), rows_per_entry=65_536, options={"window_max_bytes": 65_536})
    client = connect(server)
    assert [len(rows) for rows in unpacked(client)] == [7, 7, 7, 1]
    assert [row.decode() for rows in unpacked(client) for row in rows] == values
    check_ids(report, client, [7, 7, 7, 1])


# --- arrow_ipc


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("per_entry", [1, 3, 7, 10_000])
def test_tables_survive_a_round_trip(server: LocalServer, connect: Connect, codec: str | None, per_entry: int) -> None:
    report = send(server, ROWS, arrow_ipc=True, codec=codec, rows_per_entry=per_entry)
    assert report.delivered == 7
    client = connect(server)
    assert [table.num_rows for table in tables(client)] == sizes_of(7, per_entry)
    assert pa.concat_tables(tables(client)).to_pylist() == ROWS.to_pylist()
    check_ids(report, client, sizes_of(7, per_entry))
    for (_, fields), table in zip(entries(client), tables(client), strict=True):
        assert list(fields) == [b"payload", b"ts"]
        # Any other reader can read it, too.
        with pa.ipc.open_stream(fields[b"payload"]) as stream:
            assert stream.read_all().equals(table)
        assert table.schema.equals(ROWS.schema, check_metadata=True)


def test_an_arrow_entry_has_ten_thousand_rows_by_default(any_server: LocalServer, connect: Connect) -> None:
    rows = pa.table({"n": pa.array(range(25_000))})
    assert send(any_server, rows, arrow_ipc=True).delivered == 25_000
    client = connect(any_server)
    assert [table.num_rows for table in tables(client)] == [10_000, 10_000, 5_000]
    assert pa.concat_tables(tables(client)).equals(rows)


def test_columns_keep_the_requested_order(any_server: LocalServer, connect: Connect) -> None:
    send(any_server, ROWS, arrow_ipc=True, fields=["n", "id"], message_id="id")
    [table] = tables(connect(any_server))
    assert table.equals(pa.table(ROWS).select(["n", "id"]))


def test_polars_frames_survive_a_round_trip(any_server: LocalServer, connect: Connect) -> None:
    frame = pl.DataFrame({"s": TEXTS * 100, "c": TEXTS * 100, "n": range(700)}, schema_overrides={"c": pl.Categorical})
    assert send(any_server, frame, arrow_ipc=True, codec="zstd", rows_per_entry=300).delivered == 700
    parts = [pl.DataFrame(headrace.unpack_arrow(fields)) for _, fields in entries(connect(any_server))]
    assert [part.height for part in parts] == [300, 300, 100]
    assert [row for part in parts for row in part.rows()] == frame.rows()


def test_an_entry_contains_only_its_own_rows(any_server: LocalServer, connect: Connect) -> None:
    texts = pa.array([f"the long text of row {row}, beyond any view" for row in range(100_000)])
    whole = pa.record_batch(
        {"plain": texts, "view": texts.cast(pa.string_view()), "dictionary": texts.dictionary_encode()}
    )
    assert send(any_server, whole.slice(50_000, 300), arrow_ipc=True, rows_per_entry=100).delivered == 300
    client = connect(any_server)
    assert pa.concat_tables(tables(client)).to_pylist() == whole.slice(50_000, 300).to_pylist()
    assert max(len(fields[b"payload"]) for _, fields in entries(client)) < 3 * 100 * 60 + 4_000


def test_rows_that_are_too_large_are_not_sent(any_server: LocalServer, connect: Connect) -> None:
    """They are not copied either, and later rows are sent."""
    large = pa.py_buffer(bytes(513 << 20))
    offsets = pa.py_buffer(b"".join(at.to_bytes(8, "little") for at in (0, 1, (513 << 20) - 1, 513 << 20)))
    rows = pa.record_batch({"a": pa.Array.from_buffers(pa.large_binary(), 3, [None, offsets, large])})
    reported = outcomes(send(any_server, rows, arrow_ipc=True, rows_per_entry=1))
    assert [outcome.label for outcome in reported] == [
        (None, None, None),
        ("permanent", "TOO_LARGE", "no"),
        (None, None, None),
    ]
    assert reported[1].message is not None
    assert reported[1].message.startswith("an entry of 1 rows would have 53")
    assert "at most 536870912 are allowed" in reported[1].message
    assert [table.num_rows for table in tables(connect(any_server))] == [1, 1]


# --- outcomes of whole entries

LAYOUTS = [{"rows_per_entry": 3, "payload": "view"}, {"rows_per_entry": 3, "arrow_ipc": True}]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_row_of_a_refused_entry_fails(server: LocalServer, connect: Connect, layout: dict[str, Any]) -> None:
    client = connect(server)
    client.set(KEY, "no stream")

    def refused() -> list[Outcome]:
        return outcomes(send(server, ROWS, message_id="id", **layout))

    reported = refused()
    assert [outcome.message_id for outcome in reported] == [str(row) for row in range(7)]
    assert {outcome.label for outcome in reported} == {("permanent", "WRONGTYPE", "no")}
    client.delete(KEY)
    client.config_set("maxmemory", 1)
    assert [outcome.label for outcome in refused()] == [("permanent", "OOM", "no")] * 7
    client.config_set("maxmemory", 0)
    assert client.exists(KEY) == 0
    assert {outcome.label for outcome in refused()} == {(None, None, None)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_stream_trimmed_and_connect_failures_fail_each_row(
    any_server: LocalServer, connect: Connect, closed_port: int, layout: dict[str, Any]
) -> None:
    elsewhere = headrace.Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)
    for endpoint, label in [
        (endpoint_to(any_server, nomkstream=True), ("retryable", "NO_STREAM", "no")),
        (endpoint_to(any_server, minid=10**15), ("permanent", "TRIMMED", "unknown")),
        (elsewhere, ("retryable", "CONNECT", "no")),
    ]:
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce_batch(ROWS, **layout)
            assert [outcome.label for outcome in outcomes(dispatcher.flush())] == [label] * 7


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_an_entry_share_its_outcome(server: LocalServer, connect: Connect, layout: dict[str, Any]) -> None:
    """A suspended server: each row is unknown, and each entry is stored whole or not at all."""
    with Dispatcher(endpoint_to(server)) as dispatcher:
        first = dispatcher.dispatch(b"the connection is there")
        with stopped(server):
            dispatcher.produce_batch(ROWS, message_id="id", **layout)
            reported = outcomes(dispatcher.flush(timeout=0.2))
    assert [outcome.label for outcome in reported] == [("retryable", "TIMEOUT", "unknown")] * 7
    client = connect(server)
    client.xdel(KEY, first)
    rows = [row for rows in unpacked(client) for row in rows] if "payload" in layout else tables(client)
    assert len(rows) in ((0, 3, 6, 7) if "payload" in layout else (0, 1, 2, 3))


def test_maxlen_counts_entries(any_server: LocalServer, connect: Connect) -> None:
    with Dispatcher(endpoint_to(any_server, maxlen=2, maxlen_approximate=False)) as dispatcher:
        dispatcher.produce_batch(bodies([str(row) for row in range(100)]), rows_per_entry=10)
        assert dispatcher.flush().delivered == 100
    assert [len(rows) for rows in unpacked(connect(any_server))] == [10, 10]


# --- the caller's memory


@pytest.mark.parametrize("is_connected", [False, True])
def test_the_caller_may_change_its_memory_after_the_call(
    any_server: LocalServer, connect: Connect, is_connected: bool
) -> None:
    """Arrow data may refer to memory of the caller, who may change it once the call has returned."""
    column, body = array("q", [1] * 20_000), bytearray(b"a" * 100_000)
    ones = pa.Array.from_buffers(pa.int64(), 20_000, [None, pa.py_buffer(column)])
    ends = pa.py_buffer(array("i", [0, 100_000]))
    large = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(body)])
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        if is_connected:
            dispatcher.dispatch(b"the connection is there")
        dispatcher.produce_batch(pa.record_batch({"n": ones}), arrow_ipc=True, rows_per_entry=20_000)
        dispatcher.produce_batch(pa.record_batch({"payload": large}))
        column[:] = array("q", [2] * 20_000)
        body[:] = b"b" * 100_000
        dispatcher.flush().raise_for_failures()
    *_, numbers, text = (fields for _, fields in entries(connect(any_server)))
    assert set(pa.table(headrace.unpack_arrow(numbers))["n"].to_pylist()) == {1}
    assert set(text[b"payload"]) == set(b"a")
