"""What each call of a `Group` does to a real server, beside real consumers."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from headrace import CommandError, ConfigError, Endpoint, Group, GroupMissingError, StateError
from headrace.testing import LocalServer
from support import Monitor, Program
from support.groups import GROUP, add, group_of, pending_of, read, rows
from support.pipelines import KEY, endpoint_to
from support.processes import in_child, wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

MAX = 2**64 - 1


def consumers(client: Any, group: str | bytes = GROUP) -> list[bytes]:
    return [consumer["name"] for consumer in client.xinfo_consumers(KEY, group)]


def last_delivered(client: Any) -> str:
    (group,) = client.xinfo_groups(KEY)
    return group["last-delivered-id"].decode()  # type: ignore[no-any-return]


# --- create, set_position, destroy


def test_create_creates_group_and_stream_once(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    assert group.create() is True
    assert client.xlen(KEY) == 0
    assert group.create("earliest") is False
    add(client, 1)
    assert read(client, "c", 10) == ["1-0"]


def test_create_without_mkstream_needs_the_stream(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    with pytest.raises(GroupMissingError, match="the stream 'events' does not exist: create it, or leave mkstream on"):
        group.create(mkstream=False)
    assert client.exists(KEY) == 0
    add(client, 1)
    assert group.create(mkstream=False)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 1),
        ("latest", None),
        ("3-0", 3),
        ("3", 3),
        ("2-1", 3),
        ("(3-0", 4),
        ("(3", 4),
        ("0", 1),
        ("7-0", None),
        (f"{MAX}-{MAX}", None),
        (f"({MAX}-{MAX}", None),
        (datetime(1970, 1, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 0, 0, 0, 3_000, tzinfo=UTC), 3),
        (datetime(1970, 1, 1, 0, 0, 0, 3_001, tzinfo=UTC), 4),
        (datetime(1970, 1, 1, 2, 0, 0, 3_000, tzinfo=timezone(timedelta(hours=2))), 3),
    ],
    ids=str,
)
def test_start_selects_the_first_entry_delivered_to_the_group(
    any_server: LocalServer, connect: Connect, start: str | datetime, first: int | None
) -> None:
    client = connect(any_server)
    add(client, 6)
    created, moved = group_of(any_server), group_of(any_server, "moved")
    created.create(start)
    moved.create("earliest")
    moved.set_position(start)
    for group in (created, moved):
        expected = [] if first is None else [f"{number}-0" for number in range(first, 7)]
        assert read(client, "c", 10, group=group.name) == expected


def test_set_position_delivers_pending_entries_again(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    add(client, 5)
    group.create("earliest")
    read(client, "a", 5)
    group.set_position("4-0")
    assert pending_of(client)["4-0"] == (b"a", 1)
    assert read(client, "b", 5) == ["4-0", "5-0"]
    assert pending_of(client)["4-0"] == (b"b", 1)


def test_entries_read_is_passed_to_the_server(server: LocalServer, program: Program, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    add(client, 5)
    group.create()
    if program.is_redis and program.numbers < (7,):
        with pytest.raises(ConfigError, match=r"entries_read needs Redis 7\.0") as caught:
            group.set_position("4-0", entries_read=3)
        assert caught.value.option == "entries_read"
        return
    group.set_position("4-0", entries_read=3)
    (info,) = client.xinfo_groups(KEY)
    assert (info["entries-read"], info["lag"]) == (3, 2)


def test_destroy_returns_whether_the_group_existed(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    assert group.destroy() is False  # no stream
    group.create()
    add(client, 1)
    read(client, "c", 1)
    assert group.destroy() is True
    assert group.destroy() is False
    assert client.xlen(KEY) == 1


def test_no_call_creates_the_consumer_group_of_the_endpoint(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    group = group_of(any_server, consumer_group="other")
    assert group.destroy() is False
    assert client.exists(KEY) == 0
    group.create()
    assert [info["name"] for info in client.xinfo_groups(KEY)] == [GROUP.encode()]


# --- pending


def test_pending_lists_unacknowledged_entries(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    add(client, 7)
    group.create("earliest")
    assert rows(group.pending()) == []
    read(client, "a", 4)
    read(client, "b", 3)
    client.xack(KEY, GROUP, "2-0")
    client.xclaim(KEY, GROUP, "a", 0, ["6-0"])  # a second delivery
    table = pa.table(group.pending())
    assert table.schema == pa.schema(
        [
            pa.field("entry_id", pa.utf8(), nullable=False),
            pa.field("consumer", pa.utf8(), nullable=False),
            pa.field("idle", pa.duration("ms"), nullable=False),
            pa.field("deliveries", pa.int64(), nullable=False),
        ]
    )
    seen = {one["entry_id"]: (one["consumer"].encode(), one["deliveries"]) for one in table.to_pylist()}
    assert seen == pending_of(client)
    assert list(seen) == ["1-0", "3-0", "4-0", "5-0", "6-0", "7-0"]
    assert seen["6-0"] == (b"a", 2)
    assert all(timedelta(0) <= idle < timedelta(minutes=1) for idle in table["idle"].to_pylist())


def ids(table: object) -> list[str]:
    return [one["entry_id"] for one in rows(table)]


def test_pending_entries_are_filtered_by_consumer_start_limit_and_min_idle(
    server: LocalServer, connect: Connect
) -> None:
    client, group = connect(server), group_of(server)
    add(client, 9)
    group.create("earliest")
    for _ in range(3):
        read(client, "a", 2)
        read(client, "b", 1)
    assert ids(group.pending(consumer="b")) == ["3-0", "6-0", "9-0"]
    assert ids(group.pending(consumer="unknown")) == []
    assert ids(group.pending(start="4-0", limit=3)) == ["4-0", "5-0", "6-0"]
    assert ids(group.pending(start="(4-0", limit=2)) == ["5-0", "6-0"]
    assert ids(group.pending(start="(4", consumer="a")) == ["5-0", "7-0", "8-0"]
    assert ids(group.pending(start=datetime(1970, 1, 1, 0, 0, 0, 8_000, tzinfo=UTC))) == ["8-0", "9-0"]
    assert ids(group.pending(start=f"({MAX}-{MAX}")) == []
    assert ids(group.pending(limit=None)) == [f"{number}-0" for number in range(1, 10)]
    # As if they had been delivered that long ago.
    client.xclaim(KEY, GROUP, "a", 0, ["2-0", "7-0"], idle=60_000, justid=True)
    assert ids(group.pending(min_idle=50)) == ["2-0", "7-0"]
    assert ids(group.pending(min_idle=50, limit=1, start="(2-0")) == ["7-0"]
    assert ids(group.pending(min_idle=3_600)) == []


def test_pages_are_exact_at_the_limits_of_ids(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    stored = ["0-1", f"0-{MAX}", "1-0", f"{MAX}-0", f"{MAX}-{MAX - 1}", f"{MAX}-{MAX}"]
    for entry_id in stored:
        client.xadd(KEY, {"f": "v"}, id=entry_id)
    group.create("earliest")
    read(client, "c", 10)
    seen: list[str] = []
    start = None
    while page := ids(group.pending(start=start, limit=1)):
        seen += page
        start = f"({page[-1]}"
    assert seen == stored
    assert ids(group.pending(limit=None)) == stored


def test_pending_entries_are_fetched_in_pages_of_ten_thousand(any_server: LocalServer, connect: Connect) -> None:
    client, group = connect(any_server), group_of(any_server)
    stored = add(client, 25_000)
    group.create("earliest")
    read(client, "c", 25_000)
    with Monitor(any_server) as monitor:
        assert ids(group.pending(limit=None)) == stored
        asked = [command[-1] for command in monitor.commands("XPENDING")]
    assert asked == [b"10000"] * 3
    with Monitor(any_server) as monitor:
        assert ids(group.pending(limit=20_000)) == stored[:20_000]
        assert len(monitor.commands("XPENDING")) == 2
        assert len(monitor.commands("CLIENT")) == 3  # the handshake of one connection


# --- claim


def test_claim_moves_only_entries_that_are_idle_long_enough(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    add(client, 6)
    group.create("earliest")
    read(client, "a", 5)
    client.xack(KEY, GROUP, "2-0")
    client.xclaim(KEY, GROUP, "a", 0, ["1-0", "2-0", "4-0"], idle=60_000, justid=True)
    # Not one that was acknowledged, nor one that was never delivered: never FORCE.
    assert group.claim("dog", ["1-0", "2-0", "3-0", "4", b"6-0"], min_idle=30) == ["1-0", "4-0"]
    assert pending_of(client) == {"1-0": (b"dog", 1), "3-0": (b"a", 1), "4-0": (b"dog", 1), "5-0": (b"a", 1)}
    assert group.claim("dog", pa.table(group.pending())["entry_id"].to_pylist()) == ["1-0", "3-0", "4-0", "5-0"]
    assert group.claim("dog", []) == []


def test_claim_sends_a_thousand_ids_at_a_time(any_server: LocalServer, connect: Connect) -> None:
    client, group = connect(any_server), group_of(any_server)
    stored = add(client, 2_500)
    group.create("earliest")
    read(client, "a", 2_500)
    with Monitor(any_server) as monitor:
        assert group.claim("b", iter(stored)) == stored
        assert [len(command) for command in monitor.commands("XCLAIM")] == [1_006, 1_006, 506]
    assert {consumer for consumer, _ in pending_of(client).values()} == {b"b"}


# --- consumers


def test_a_consumer_with_pending_entries_is_not_deleted(server: LocalServer, connect: Connect) -> None:
    client, group = connect(server), group_of(server)
    add(client, 3)
    group.create("earliest")
    read(client, "busy", 3)
    client.xgroup_createconsumer(KEY, GROUP, "free")
    before = pending_of(client)
    with pytest.raises(StateError) as refused:
        group.delete_consumer("busy")
    assert str(refused.value) == (
        "the consumer 'busy' of the group 'g' has 3 pending entries, which would be lost with it: "
        "claim them for another consumer, or acknowledge them, before it is deleted"
    )
    assert pending_of(client) == before
    assert group.delete_consumer("free") is True
    assert group.delete_consumer("free") is False
    client.xack(KEY, GROUP, *before)
    assert group.delete_consumer("busy") is True
    assert consumers(client) == []


def test_consumers_that_are_long_idle_are_removed(server: LocalServer, connect: Connect) -> None:
    """All that this looks at is older than half a second, but for what has just read."""
    client, group = connect(server), group_of(server)
    add(client, 3)
    group.create("earliest")
    client.xgroup_createconsumer(KEY, GROUP, "never read")
    assert read(client, "done", 1) == ["1-0"]
    assert read(client, "busy", 1) == ["2-0"]
    client.xack(KEY, GROUP, "1-0")

    def old() -> bool:
        return all(consumer["idle"] > 500 for consumer in client.xinfo_consumers(KEY, GROUP))

    assert group.remove_idle_consumers(3_600) == []
    wait_until(old)
    assert read(client, "active", 1) == ["3-0"]
    client.xack(KEY, GROUP, "3-0")
    assert sorted(map(str, group.remove_idle_consumers(0.5))) == ["done", "never read"]
    assert sorted(consumers(client)) == [b"active", b"busy"]
    assert group.remove_idle_consumers(0) == ["active"]
    assert pending_of(client) == {"2-0": (b"busy", 1)}


# --- names and keys of any bytes


def test_names_and_keys_can_contain_any_bytes(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    key, name, consumer = b"\x00k\xff\r\n", b"g\xfe", b"c\xff\\xff"
    group = group_of(server, name, stream_key=key)
    with pytest.raises(GroupMissingError):
        group.pending()
    group.create("earliest")
    add(client, 1, key=key)
    read(client, consumer, 1, key=key, group=name)
    assert [one["consumer"] for one in rows(group.pending())] == [r"c\xff\\xff"]
    assert len(rows(group.pending(consumer=consumer))) == 1
    with pytest.raises(StateError, match=r"the consumer 'c\\xff\\\\xff' of the group 'g\\xfe' has 1 pending"):
        group.delete_consumer(consumer)
    client.xack(key, name, "1-0")
    client.xgroup_createconsumer(key, name, "ü")
    assert sorted(map(str, group.remove_idle_consumers(0))) == sorted(map(str, [consumer, "ü"]))
    assert (group.name, group_of(server, "ü").name) == (name, "ü")
    assert group.destroy()


# --- the object


def test_a_group_can_be_pickled_and_forked(any_server: LocalServer) -> None:
    group = group_of(any_server)
    assert repr(group) == f"<Group: 'g' of {group.endpoint}>"
    again = pickle.loads(pickle.dumps(group))
    assert (again.name, again.endpoint) == ("g", group.endpoint)
    assert again.create() is True
    assert in_child(lambda: group.create()) is False


def test_each_call_closes_its_connection(any_server: LocalServer, connect: Connect) -> None:
    client, group = connect(any_server), group_of(any_server)
    client.ping()

    def count() -> int:
        return len(client.client_list())

    assert count() == 1
    group.create()
    for call in (group.pending, lambda: group_of(any_server, "missing").pending(), lambda: Group.create(group)):
        with contextlib.suppress(GroupMissingError):
            call()
        wait_until(lambda: count() == 1)


# --- refusals


@pytest.mark.parametrize(
    ("call", "option", "text"),
    [
        (lambda g: g.create("$"), "start", "start must be 'earliest', 'latest', an entry ID .*, got '\\$'"),
        (lambda g: g.create(5), "start", "got 5"),
        (lambda g: g.create(datetime(2026, 1, 1)), "start", "a datetime with a time zone, got datetime.datetime"),
        (lambda g: g.create(datetime(1969, 1, 1, tzinfo=UTC)), "start", "must not be before 1970"),
        (lambda g: g.create(mkstream=1), "mkstream", "must be a boolean"),
        (lambda g: g.create(None), "start", "start must not be None"),
        (lambda g: g.set_position("latest", entries_read=-1), "entries_read", "at least 0, got -1"),
        (lambda g: g.set_position("5-"), "start", "got '5-'"),
        (lambda g: g.pending(limit=0), "limit", "at least 1, got 0"),
        (lambda g: g.pending(limit=-5), "limit", "at least 1, got -5"),
        (lambda g: g.pending(limit=True), "limit", "got True"),
        (lambda g: g.pending(min_idle=-1), "min_idle", "a number of seconds from 0"),
        (lambda g: g.pending(min_idle=float("nan")), "min_idle", "a number of seconds from 0"),
        (lambda g: g.pending(consumer=""), "consumer", "text or bytes, of 1 byte to 512 MiB"),
        (lambda g: g.pending(start="latest"), "start", "start must be an entry ID"),
        (lambda g: g.claim("c", "1-0"), "ids", "a sequence of entry IDs, got str"),
        (lambda g: g.claim("c", 5), "ids", "a sequence of entry IDs, got int"),
        (lambda g: g.claim("c", ["1-0", "x"]), "ids", "an entry ID .*, got 'x'"),
        (lambda g: g.claim("c", [1]), "ids", "an entry ID .*, got 1"),
        (lambda g: g.claim("", ["1-0"]), "consumer", "text or bytes"),
        (lambda g: g.claim("c", ["1-0"], min_idle=None), "min_idle", "must not be None"),
        (lambda g: g.claim(None, ["1-0"]), "consumer", "must not be None"),
        (lambda g: g.delete_consumer(""), "consumer", "text or bytes"),
        (lambda g: g.remove_idle_consumers(-0.1), "idle", "a number of seconds from 0"),
        (lambda g: g.remove_idle_consumers("1 h"), "idle", "got '1 h'"),
        (lambda g: Group(g.endpoint, ""), "name", "text or bytes, of 1 byte to 512 MiB, got '' \\(empty\\)"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_sent(
    closed_port: int, call: Callable[[Group], object], option: str, text: str
) -> None:
    group = Group(Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY), GROUP)
    with pytest.raises(ConfigError, match=text) as refused:
        call(group)
    assert refused.value.option == option


CALLS: dict[str, Callable[[Group], object]] = {
    "set_position": lambda g: g.set_position("latest"),
    "pending": lambda g: g.pending(),
    "claim": lambda g: g.claim("c", ["1-0"]),
    "delete_consumer": lambda g: g.delete_consumer("c"),
    "remove_idle_consumers": lambda g: g.remove_idle_consumers(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_stream_or_group_is_named(server: LocalServer, connect: Connect, name: str) -> None:
    client, group = connect(server), group_of(server)
    with pytest.raises(GroupMissingError) as missing:
        CALLS[name](group)
    assert "'events'" in str(missing.value)
    assert "'g'" in str(missing.value)
    assert "create() creates" in str(missing.value)
    assert client.exists(KEY) == 0
    add(client, 1)
    with pytest.raises(LookupError, match="the consumer group 'g' of the stream 'events' does not exist: create"):
        CALLS[name](group)


@pytest.mark.parametrize("name", [*CALLS, "create", "destroy"])
def test_a_key_of_another_type_is_refused(server: LocalServer, connect: Connect, name: str) -> None:
    connect(server).set(KEY, "text")
    call = CALLS.get(name) or (lambda g: getattr(g, name)())
    with pytest.raises(CommandError, match="the key 'events' does not hold a stream") as refused:
        call(group_of(server))
    assert (refused.value.code, refused.value.kind) == ("WRONGTYPE", "permanent")


def test_a_group_is_created_in_the_database_of_the_endpoint(any_server: LocalServer, connect: Connect) -> None:
    group = Group(endpoint_to(any_server, db=3), GROUP)
    assert group.create()
    assert connect(any_server).exists(KEY) == 0
    assert connect(any_server, db=3).exists(KEY) == 1
