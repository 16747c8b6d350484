"""`headrace.inspect` on real servers: what its tables say beside what the servers do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace import CommandError, ConfigError, Endpoint
from headrace.testing import LocalServer
from support import Program
from support.fake_server import FakeServer, Peer
from support.groups import GROUP, add, group_of, read, row, rows
from support.pipelines import KEY, endpoint_to
from support.processes import PeakMemory, wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


# --- streams


def test_a_stream_is_described_in_one_row(server: LocalServer, program: Program, connect: Connect) -> None:
    client = connect(server)
    for entry_id in ("1713091234567-0", "1713091234568-3", "1713091234569-0", "1713091234570-0"):
        client.xadd(KEY, {"field": b"\xff" * 100}, id=entry_id)
    client.xdel(KEY, "1713091234569-0", "1713091234570-0")
    client.xgroup_create(KEY, GROUP)
    found = headrace.inspect(endpoint_to(server))
    stream = row(found.streams)
    assert stream.pop("memory") == pytest.approx(client.memory_usage(KEY, samples=5), rel=0.2)
    start = datetime(2024, 4, 14, 10, 40, 34, 567_000, tzinfo=UTC)
    known = program.counts_entries
    assert stream == {
        "key": KEY,
        "exists": True,
        "length": 2,
        "entries_added": 4 if known else None,
        "first_id": "1713091234567-0",
        "first_timestamp": start,
        "last_id": "1713091234568-3",
        "last_timestamp": start + timedelta(milliseconds=1),
        "last_generated_id": "1713091234570-0",
        "max_deleted_id": "1713091234570-0" if known else None,
        "groups": 1,
    }
    assert found.now is not None
    assert abs(found.now.timestamp() - time.time()) < 60
    assert repr(found) == "<Inspection: 1 stream, 1 group, 0 consumers, 0 pending>"
    assert found.streams._repr_html_().startswith("<table><caption>1 row</caption><thead><tr><th>key</th>")


def test_missing_and_empty_streams_are_listed(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 1, key="empty")
    client.xtrim("empty", maxlen=0)
    found = headrace.inspect(endpoint_to(server), ["missing", b"empty", "missing"])
    missing, empty = rows(found.streams)
    assert missing.pop("key") == "missing"
    assert missing.pop("exists") is False
    assert missing.pop("length") == 0
    assert set(missing.values()) == {None}
    assert (empty["key"], empty["exists"], empty["length"]) == ("empty", True, 0)
    assert (empty["first_id"], empty["last_id"], empty["last_generated_id"]) == (None, None, "1-0")
    assert client.keys() == [b"empty"]
    assert rows(headrace.inspect(endpoint_to(server), []).streams) == []


def test_timestamps_are_null_for_ids_beyond_their_range(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    for entry_id in (f"{2**63 - 1}-0", f"{2**64 - 1}-{2**64 - 1}"):
        client.xadd(KEY, {"f": "v"}, id=entry_id)
    table = pa.table(headrace.inspect(endpoint_to(any_server)).streams)
    assert table["first_timestamp"].cast(pa.int64()).to_pylist() == [2**63 - 1]
    assert table["last_timestamp"].to_pylist() == [None]
    assert table["last_id"].to_pylist() == [f"{2**64 - 1}-{2**64 - 1}"]


def test_entries_larger_than_the_reply_limit_take_little_memory(any_server: LocalServer, connect: Connect) -> None:
    """The server shows whole entries where their IDs are wanted."""
    client = connect(any_server)
    for entry_id in ("5-0", "7-5"):
        client.xadd(KEY, {"field": bytes(70_000_000)}, id=entry_id)
    client.xgroup_create(KEY, GROUP, "0")
    client.xadd(KEY, {"field": b"small"}, id="8-0")
    client.xtrim(KEY, maxlen=2, approximate=False)
    memory = PeakMemory()
    found = headrace.inspect(endpoint_to(any_server))
    stream = row(found.streams)
    assert (stream["first_id"], stream["last_id"], stream["length"]) == ("7-5", "8-0", 2)
    assert row(found.groups)["trimmed_unread"] == 1
    assert memory.growth < 16 * 1024 * 1024


def test_a_pattern_finds_only_streams(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    expected = sorted(f"orders-{number}" for number in range(50))
    for key in expected:
        client.xadd(key, {"f": "v"})
    client.xadd("other", {"f": "v"})
    for number in range(2_000):
        client.set(f"orders-text-{number}", "text")

    def keys(streams: str | bytes) -> list[str]:
        found = headrace.inspect(endpoint_to(server), streams)
        assert not found.truncated
        return [stream["key"] for stream in rows(found.streams)]

    assert keys("orders-*") == expected
    assert keys(b"*") == [*expected, "other"]
    assert keys("orders-[12]") == ["orders-1", "orders-2"]
    assert keys("nothing-*") == []
    assert keys("other") == ["other"]
    assert keys("missing") == ["missing"]


@pytest.mark.thorough
def test_a_pattern_finds_at_most_ten_thousand_streams(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    pipeline = client.pipeline(transaction=False)
    for number in range(12_000):
        pipeline.xadd(f"s{number:05}", {"f": "v"})
    pipeline.execute()
    found = headrace.inspect(endpoint_to(any_server), "*", groups=False)
    assert (len(found.streams), found.truncated) == (10_000, True)
    exactly = headrace.inspect(endpoint_to(any_server), [f"s{number:05}" for number in range(12_000)], groups=False)
    assert (len(exactly.streams), exactly.truncated) == (12_000, False)


# --- groups


def test_groups_consumers_and_pending_entries(server: LocalServer, program: Program, connect: Connect) -> None:
    client = connect(server)
    for key in ("a", "b"):
        add(client, 10, key=key)
        client.xgroup_create(key, "one", id="0")
        client.xgroup_create(key, "two", id="0")
    read(client, "x", 2, key="a", group="one")
    read(client, "y", 3, key="a", group="one")
    read(client, "z", 10, key="b", group="two")
    client.xack("a", "one", "1-0", "4-0")
    client.xclaim("a", "one", "x", 0, ["5-0"], idle=90_000)
    found = headrace.inspect(endpoint_to(server), ["a", "b"], pending_limit=2)
    known = program.counts_entries

    def group(stream: str, name: str, **values: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"stream": stream, "name": name, "consumers": 0, "pending": 0, "last_delivered_id": "0-0"}
        unread = 0 if known or values else None  # without a count a group at the beginning may have missed something
        row |= {"entries_read": None, "lag": 10, "lag_unknown_reason": None, "trimmed_unread": unread}
        return row | {"oldest_pending_id": None, "oldest_pending_timestamp": None} | values

    def first(number: int) -> dict[str, Any]:
        then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)
        return {"oldest_pending_id": f"{number}-0", "oldest_pending_timestamp": then}

    within = {"entries_read": 5, "lag": 5} if known else {"lag": None, "lag_unknown_reason": ANY_TEXT}
    at_end = {"entries_read": 10} if known else {}
    assert rows(found.groups) == [
        group("a", "one", consumers=2, pending=3, last_delivered_id="5-0", **within, **first(2)),
        group("a", "two"),
        group("b", "one"),
        group("b", "two", consumers=1, pending=10, last_delivered_id="10-0", lag=0, **at_end, **first(1)),
    ]
    consumers = rows(found.consumers)
    assert [(c["stream"], c["group"], c["name"], c["pending"]) for c in consumers] == [
        ("a", "one", "x", 2),
        ("a", "one", "y", 1),
        ("b", "two", "z", 10),
    ]
    has_inactive = not program.is_redis or program.numbers >= (7, 2)
    for consumer in consumers:
        assert timedelta(0) <= consumer["idle"] < timedelta(minutes=1)
        assert (consumer["inactive"] is not None) == has_inactive
    pending = rows(found.pending)
    assert [(p["stream"], p["group"], p["entry_id"], p["consumer"], p["deliveries"]) for p in pending] == [
        ("a", "one", "2-0", "x", 1),
        ("a", "one", "3-0", "y", 1),
        ("b", "two", "1-0", "z", 1),
        ("b", "two", "2-0", "z", 1),
    ]
    everything = headrace.inspect(endpoint_to(server), ["a"])
    (claimed,) = [p for p in rows(everything.pending) if p["entry_id"] == "5-0"]
    assert (claimed["consumer"], claimed["deliveries"]) == ("x", 2)
    assert claimed["idle"] >= timedelta(seconds=90)


class _AnyText:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(other)

    def __hash__(self) -> int:
        return 0


ANY_TEXT = _AnyText()


def test_groups_and_pending_entries_can_be_left_out(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    add(client, 2)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 2)
    found = headrace.inspect(endpoint_to(any_server), groups=False)
    assert [len(table) for table in (found.streams, found.groups, found.consumers, found.pending)] == [1, 0, 0, 0]
    assert pa.table(found.groups).num_columns == 11
    found = headrace.inspect(endpoint_to(any_server), pending_limit=0)
    assert [len(table) for table in (found.streams, found.groups, found.consumers, found.pending)] == [1, 1, 1, 0]
    assert row(found.groups)["oldest_pending_id"] == "1-0"


def test_inactive_is_null_for_a_consumer_that_never_read(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    group.create()
    client.xgroup_createconsumer(KEY, GROUP, "new")
    consumer = row(headrace.inspect(endpoint_to(server)).consumers)
    assert (consumer["name"], consumer["pending"], consumer["inactive"]) == ("new", 0, None)


def test_inspecting_keys_takes_two_round_trips() -> None:
    """The server answers no command of a round trip before it has them all."""
    seen = []

    def answer(peer: Peer) -> None:
        seen.append(peer.commands(7))
        peer.send(b"*2\r\n$1\r\n7\r\n$1\r\n9\r\n")
        for _ in range(2):
            peer.send(_pack(["length", 3, "last-generated-id", "3-0", "groups", 1, "first-entry", ["1-0", []]]))
            peer.send(_pack([["name", "g", "consumers", 1, "pending", 3, "last-delivered-id", "3-0"]]))
            peer.send(b":512\r\n")
        seen.append(peer.commands(8))
        for _ in range(2):
            peer.send(_pack([["name", "c", "pending", 3, "idle", 5]]))
            peer.send(_pack([["1-0", "c", 5, 1]]))
            peer.send(_pack(["owner", "m", "until", "8"]))
            peer.send(_pack(["m", "8", "", "3"]))
        seen.append(peer.commands(1))

    with FakeServer(answer) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY)
        found = headrace.inspect(endpoint, ["a", "b"], pending_limit=7)
    first, second, rest = [[b" ".join(command).decode() for command in commands] for commands in seen]
    of_stream = ("XINFO STREAM {}", "XINFO GROUPS {}", "MEMORY USAGE {} SAMPLES 5")
    of_group = ("XINFO CONSUMERS {0} g", "XPENDING {0} g - + 7", "HGETALL {{{0}}}:lease:g", "HGETALL {{{0}}}:members:g")
    assert first == ["TIME", *(command.format(key) for key in "ab" for command in of_stream)]
    assert second == [command.format(key) for key in "ab" for command in of_group]
    assert rest == []
    assert found.now == datetime(1970, 1, 1, 0, 0, 7, 9, tzinfo=UTC)
    tables = (found.streams, found.groups, found.consumers, found.pending, found.leases, found.members)
    assert [len(table) for table in tables] == [2] * 6


def _pack(value: object) -> bytes:
    """A reply in RESP2."""
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(_pack, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    text = str(value).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


# --- lag and loss


def lag_of(server: LocalServer) -> tuple[int | None, int | None, str | None]:
    """Lag, entries trimmed unread, and why the lag is unknown."""
    group = row(headrace.inspect(endpoint_to(server)).groups)
    assert (group["lag"] is None) == (group["lag_unknown_reason"] is not None)
    return group["lag"], group["trimmed_unread"], group["lag_unknown_reason"]


def test_lag_and_loss_by_trimming(server: LocalServer, program: Program, connect: Connect) -> None:
    """The truth is counted by reading on."""
    client, group, known = connect(server), group_of(server), program.counts_entries
    stored = add(client, 100)
    group.create("earliest")
    assert lag_of(server)[:2] == (100, 0 if known else None)
    read(client, "c", 60)
    assert lag_of(server)[:2] == ((40, 0) if known else (None, 0))
    client.xtrim(KEY, maxlen=45, approximate=False)
    assert lag_of(server)[:2] == ((40, 0) if known else (None, 0))
    client.xtrim(KEY, maxlen=20, approximate=False)
    assert lag_of(server)[:2] == (20, 20 if known else None)
    assert read(client, "c", 100) == stored[80:]
    assert lag_of(server)[:2] == (0, 0)
    client.xtrim(KEY, maxlen=0)
    assert lag_of(server)[:2] == (0, 0)


def test_unread_entries_of_an_emptied_stream_count_as_trimmed(
    server: LocalServer, program: Program, connect: Connect
) -> None:
    client, group = connect(server), group_of(server)
    add(client, 10)
    group.create("earliest")
    read(client, "c", 4)
    client.xtrim(KEY, maxlen=0)
    assert lag_of(server)[:2] == (0, 6 if program.counts_entries else None)


def test_lag_and_loss_are_updated_after_reading_past_trimmed_entries(
    server: LocalServer, program: Program, connect: Connect
) -> None:
    """Redis 7.0 itself reports a lag of 6 here."""
    client, group = connect(server), group_of(server)
    add(client, 10)
    group.create("earliest")
    read(client, "c", 2)
    client.xtrim(KEY, maxlen=3, approximate=False)
    assert lag_of(server)[:2] == (3, 5 if program.counts_entries else None)
    read(client, "c", 2)
    lag, lost, _ = lag_of(server)
    assert lost == 0
    if program.counts_entries:
        old = program.is_redis and program.numbers < (7, 2)
        assert lag == (3 if old else 1)  # at most the length: an upper bound


def test_the_reason_for_an_unknown_lag_is_given(server: LocalServer, program: Program, connect: Connect) -> None:
    client = connect(server)
    add(client, 10)
    group_of(server).create("5-0")
    lag, lost, reason = lag_of(server)
    assert (lag, lost) == (None, 0)
    assert reason is not None
    if not program.counts_entries:
        assert "Redis 7.0" in reason
        return
    assert "entries_read" in reason
    group_of(server).set_position("5-0", entries_read=4)
    assert lag_of(server)[:2] == (6, 0)
    read(client, "c", 1)
    client.xdel(KEY, "8-0")
    lag, _, reason = lag_of(server)
    assert lag is None
    assert reason is not None
    assert "XDEL" in reason


# --- names and libraries


def test_keys_and_names_can_contain_any_bytes(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    key, name, consumer = b"k\xff\x00", b"g\xfe", "cö".encode()
    add(client, 1, key=key)
    client.xgroup_create(key, name, id="0")
    read(client, consumer, 1, key=key, group=name)
    for streams in ([key], b"k*"):
        found = headrace.inspect(endpoint_to(server), streams)
        assert row(found.streams)["key"] == "k\\xff\x00"
        assert row(found.groups)["name"] == r"g\xfe"
        assert row(found.consumers)["name"] == "cö"
        pending = row(found.pending)
        assert [pending[column] for column in ("stream", "group", "consumer")] == ["k\\xff\x00", r"g\xfe", "cö"]


def test_tables_work_with_or_without_an_arrow_library(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    group_of(any_server).create("earliest")
    found = headrace.inspect(endpoint_to(any_server))
    frame = pl.DataFrame(found.groups)
    assert frame["lag"].to_list() == [3]
    assert len(found.groups) == 1
    assert pa.table(found.streams).schema.field("first_timestamp").type == pa.timestamp("ms", "UTC")
    program = (
        "import sys, headrace\n"
        "from headrace import Endpoint, Group\n"
        "endpoint = Endpoint(unix_socket=sys.argv[1], stream_key='events')\n"
        "print(len(headrace.inspect(endpoint).groups), len(Group(endpoint, 'g').pending()))\n"
        "assert not {'pyarrow', 'pandas', 'polars'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program, any_server.unix_socket]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1 0\n", "")


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "option", "text"),
    [
        ({"pending_limit": -1}, "pending_limit", "an integer from 0 to 100000, got -1"),
        ({"pending_limit": 100_001}, "pending_limit", "an integer from 0 to 100000, got 100001"),
        ({"pending_limit": "9"}, "pending_limit", "got '9'"),
        ({"groups": 1}, "groups", "a boolean"),
        ({"streams": ""}, "streams", "text or bytes, of 1 byte to 512 MiB, got ''"),
        ({"streams": ["a", ""]}, "streams", "text or bytes, of 1 byte to 512 MiB, got ''"),
        ({"streams": [7]}, "streams", "text or bytes, of 1 byte to 512 MiB, got 7"),
        ({"streams": [None]}, "streams", "got nothing"),
        ({"streams": 5}, "streams", "a sequence of keys, or a key or pattern, got int"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_sent(
    closed_port: int, arguments: dict[str, Any], option: str, text: str
) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)
    with pytest.raises(ConfigError, match=text) as refused:
        headrace.inspect(endpoint, **arguments)
    assert refused.value.option == option


def test_a_key_of_another_type_is_refused(server: LocalServer, connect: Connect) -> None:
    connect(server).set("text", "x")
    with pytest.raises(CommandError, match="the key 'text' does not hold a stream: XINFO STREAM: WRONGTYPE") as refused:
        headrace.inspect(endpoint_to(server), [KEY, "text"])
    assert refused.value.code == "WRONGTYPE"


def test_inspect_creates_no_keys(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    before = client.info("stats")["total_connections_received"]
    headrace.inspect(endpoint_to(any_server, consumer_group="new"))
    assert client.keys() == []
    assert client.info("stats")["total_connections_received"] == before + 1
    wait_until(lambda: len(client.client_list()) == 1)
