"""Dead letters as rows: those of a consumer, and those in the form of the Spark writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import CommandError, Dispatcher, read_dead_letters
from headrace.admin import DeadLetter
from headrace.testing import LocalServer
from support.consumers import consumer_of, next_batch
from support.groups import add, pending_of
from support.pipelines import KEY, endpoint_to

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

COLUMNS = ["entry_id", "timestamp", "stream", "original_id", "code", "reason", "failures", "fields"]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def fields_of(client: Any, key: str) -> list[list[bytes]]:
    """Names and values of each entry, in their order."""
    return [fields for _, fields in client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, key)]


def test_dead_letters_of_a_consumer_are_resent_unchanged(server: LocalServer, client: Any) -> None:
    entries = [[b"a", b"1"], [b"\xfe", b"\x00", b"a", b"", b"a", b"2"], [b"dead:id", b"mine", b"payload", b"x"]]
    for number, fields in enumerate(entries, 1):
        client.execute_command("XADD", KEY, f"{number}-0", *fields)
    endpoint = endpoint_to(server)
    with consumer_of(server, max_failures=1, dead_letter_key="dead") as consumer:
        consumer.fail(next_batch(consumer), "caf\xe9 \\")
        assert consumer.flush().dead == 3
    (letters,) = read_dead_letters(endpoint, "dead")
    table = pa.table(letters)
    assert table.column_names == COLUMNS
    assert table["fields"].type == pa.map_(pa.binary(), pa.binary())
    assert table["stream"].to_pylist() == [KEY] * 3
    assert table["original_id"].to_pylist() == ["1-0", "2-0", "3-0"]
    assert table["reason"].to_pylist() == ["caf\xe9 \\\\"] * 3, "as names are written: a backslash is doubled"
    assert (table["failures"].to_pylist(), table["code"].to_pylist()) == ([1] * 3, [None] * 3)
    assert table["timestamp"].null_count == 0
    with Dispatcher(endpoint_to(server, stream_key="again")) as dispatcher:
        dispatcher.produce_batch(letters, fields_from="fields")
        assert dispatcher.flush().delivered == 3
    assert fields_of(client, "again") == entries


@pytest.mark.parametrize("count", [3500, 3501, 4000, pytest.param(300_000, marks=pytest.mark.thorough)])
def test_an_entry_with_any_number_of_fields_becomes_a_dead_letter(server: LocalServer, client: Any, count: int) -> None:
    """A script can pass about 8,000 values to a command: more fields than that become one value of the letter."""
    fields = [part for number in range(count) for part in (b"\xff%d" % number, b":" * (number % 3))]
    client.execute_command("XADD", KEY, "1-0", *fields)
    client.execute_command("XADD", KEY, "2-0", "a", "1")
    with consumer_of(server, max_failures=1, dead_letter_key="dead") as consumer:
        consumer.fail(next_batch(consumer), "why")
        assert consumer.flush().dead == 2
    assert pending_of(client) == {}
    wide, narrow = fields_of(client, "dead")
    tail = [b"dead:stream", KEY.encode(), b"dead:id", b"1-0", b"dead:reason", b"why", b"dead:failures", b"1"]
    if count > 3500:
        assert wide == [*tail, b"dead:fields", b"".join(b"%d:%b" % (len(part), part) for part in fields)]
    else:
        assert wide == [*fields, *tail]
    assert narrow[:2] == [b"a", b"1"]
    (letters,) = read_dead_letters(endpoint_to(server), "dead")
    rows = pa.table(letters).to_pylist()
    assert [(row["original_id"], row["reason"], row["failures"]) for row in rows] == [
        ("1-0", "why", 1),
        ("2-0", "why", 1),
    ]
    assert [part for pair in rows[0]["fields"] for part in pair] == fields
    assert rows[1]["fields"] == [(b"a", b"1")]


def test_dead_letters_of_the_spark_writer_are_read(server: LocalServer, client: Any) -> None:
    """`tests/spark/session/test_datasource_failures.py` reads real ones."""
    letters = pa.table(
        {
            "payload": [b"x", None],
            "stream_key": ["orders", "text"],
            "entry_id": [None, "5-1"],
            "kind": ["permanent"] * 2,
            "code": ["OOM", "NULL_PAYLOAD"],
            "message": ["no memory", "payload is null"],
            "written": ["no"] * 2,
            "partition": [0, 1],
            "ordinal": [7, 8],
        }
    )
    endpoint = endpoint_to(server, stream_key="dead")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(letters, fields=letters.column_names)
        dispatcher.flush().raise_for_failures()
    (rows,) = read_dead_letters(endpoint)
    found = pa.table(rows).select(COLUMNS[2:]).to_pylist()
    assert [list(row.values()) for row in found] == [
        ["orders", None, "OOM", "no memory", None, [(b"payload", b"x")]],
        ["text", "5-1", "NULL_PAYLOAD", "payload is null", None, []],
    ]


def test_entries_that_are_not_dead_letters_keep_their_fields(server: LocalServer, client: Any) -> None:
    client.execute_command("XADD", "dead", "1-0", "stream_key", "s", "code", "c")
    add(client, 2, first=2, key="dead")
    endpoint = endpoint_to(server)
    (letters,) = read_dead_letters(endpoint, "dead", start="1-0", limit=2)
    rows = pa.table(letters).to_pylist()
    assert [row["entry_id"] for row in rows] == ["1-0", "2-0"]
    assert rows[0]["fields"] == [(b"stream_key", b"s"), (b"code", b"c")]
    assert all(row[name] is None for row in rows for name in COLUMNS[2:7])
    (letters,) = read_dead_letters(endpoint, b"dead", start="2", end="2")
    assert pa.table(letters)["entry_id"].to_pylist() == ["2-0"]


def test_a_missing_stream_is_empty_and_another_type_is_refused(server: LocalServer, client: Any) -> None:
    endpoint = endpoint_to(server)
    assert list(read_dead_letters(endpoint, "dead")) == []
    client.set("dead", "text")
    with pytest.raises(CommandError, match="WRONGTYPE"):
        list(read_dead_letters(endpoint, "dead"))


def test_many_dead_letters_are_read_in_batches(any_server: LocalServer, connect: Connect) -> None:
    stored = add(connect(any_server), 20_000, key="dead")
    batches = [pa.table(letters) for letters in read_dead_letters(endpoint_to(any_server), "dead")]
    assert len(batches) > 1
    assert pa.concat_tables(batches)["entry_id"].to_pylist() == stored


def test_a_single_entry_is_read_by_the_same_rules() -> None:
    tail = [b"dead:stream", b"s", b"dead:id", b"1-0", b"dead:reason", b"why", b"dead:failures", b"2"]
    letter = DeadLetter.read(b"17-1", [b"a", b"\xff", b"a", b"", *tail])
    assert (letter.origin, letter.stream, letter.original_id) == ("consumer", b"s", b"1-0")
    assert (letter.reason, letter.failures, letter.own) == (b"why", b"2", [(b"a", b"\xff"), (b"a", b"")])
    assert (letter.is_of_row, letter.milliseconds) == (False, 17)
    assert letter.size == 3 + sum(map(len, tail))
    assert DeadLetter.read(b"17-1", [*tail, b"dead:fields", b"1:a2:bc"]).own == [(b"a", b"bc")]
    names = (b"stream_key", b"code", b"message", b"kind", b"written", b"partition", b"ordinal")
    row = [part for name in names for part in (name, b"its " + name)]
    letter = DeadLetter.read(b"17-1", [*row, b"row", b"ipc"])
    assert (letter.origin, letter.row, letter.own) == ("spark", b"ipc", [(b"row", b"ipc")])
    assert (letter.stream, letter.code, letter.reason) == (b"its stream_key", b"its code", b"its message")
    assert (letter.written, letter.ordinal, letter.place) == (b"its written", b"its ordinal", None)
    letter = DeadLetter.read(b"17-1", [*row, b"payload", b"x", b"source", b"orders.csv"])
    assert (letter.origin, letter.place, letter.row) == ("send", b"orders.csv:its ordinal", None)
    letter = DeadLetter.read(b"17-1", row[2:])
    assert (letter.origin, letter.stream, letter.own[0]) == ("other", None, (b"code", b"its code"))
    with pytest.raises(ValueError, match="got a name without a value"):
        DeadLetter.read(b"17-1", [b"a"])
