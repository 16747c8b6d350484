"""The group that shows how far a streaming query is: created, moved, never moved back, refused. No Spark runs here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import CommandError, ConfigError, StateError, inspect
from headrace.spark.source.entry_ids import LOWEST
from headrace.spark.source.mirror import GroupMirror, step
from headrace.spark.source.place import GroupState, Place
from headrace.spark.source.stream import StreamReader
from headrace.spark.source.survey import Survey
from headrace.testing import LocalServer
from support.source import add, ids, next_end, query_on, settings

Connect = Callable[..., redis.Redis]


def group_of(client: redis.Redis, name: str = "spark") -> dict[str, Any]:
    """The group of the stream `s`, as the server shows it."""
    return {group["name"].decode(): group for group in client.xinfo_groups("s")}[name]


def run_batch(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch: Spark asks for the end of the next one when it is finished."""
    end = next_end(reader, start)
    reader.partitions(start, end)
    return end


def begun(server: LocalServer, **options: Any) -> tuple[StreamReader, dict[str, Any]]:
    """A query whose first micro-batch is finished, and its end."""
    reader = query_on(server, commit_group="spark", **options)
    end = run_batch(reader, reader.initialOffset())
    next_end(reader, end)
    return reader, end


def test_the_group_follows_each_micro_batch(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(10), ids)
    reader = query_on(server, max_entries_per_trigger=4, commit_group="spark")
    end = run_batch(reader, reader.initialOffset())
    assert client.xinfo_groups("s") == []
    reader.commit(end)
    is_counted = "entries-added" in client.xinfo_stream("s")
    found = group_of(client)
    assert (found["last-delivered-id"], found["consumers"], found["pending"]) == (b"4-0", 0, 0)
    assert (found.get("entries-read"), found.get("lag")) == ((4, 6) if is_counted else (None, None))
    following = run_batch(reader, end)
    reader.commit(following)
    next_end(reader, following)
    assert group_of(client)["last-delivered-id"] == b"8-0"
    add(client, "s", range(10, 15), ids)
    # No commit comes for the last micro-batch as long as there is no other one.
    last = run_batch(reader, following)
    next_end(reader, last)
    assert group_of(client)["last-delivered-id"] == b"12-0"
    if is_counted:
        (row,) = pa.table(inspect(settings(server).endpoint).groups).to_pylist()
        assert (row["entries_read"], row["lag"], row["trimmed_unread"]) == (12, 3, 0)


@pytest.mark.needs("redis-7.0")
def test_the_lag_is_right_after_trimming_and_in_several_streams(client: redis.Redis, any_server: LocalServer) -> None:
    for key in ("s", "a\\b"):
        add(client, key, range(100), ids)
        client.xtrim(key, maxlen=30, approximate=False)
    reader, end = begun(any_server, stream_keys='["s", "a\\\\b", "nothing"]')
    for key in ("s", "a\\b"):
        (group,) = client.xinfo_groups(key)
        assert (group["last-delivered-id"], group["entries-read"], group["lag"]) == (b"100-0", 100, 0)
    assert not client.exists("nothing")
    client.config_resetstat()
    for _ in range(5):
        next_end(reader, end)
    assert not [name for name in client.info("commandstats") if "xgroup" in name or "groups" in name]


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_group_with_consumers_is_refused(server: LocalServer, connect: Connect, is_pending: bool) -> None:
    client = connect(server)
    add(client, "s", range(3), ids)
    client.xgroup_create("s", "spark", id="0")
    client.xreadgroup("spark", "me", {"s": ">"}, noack=not is_pending)
    reader = query_on(server, commit_group="spark")
    use = "1 consumer and 3 pending entries" if is_pending else "1 consumer,"
    with pytest.raises(StateError, match=f"commit_group='spark': the group of stream 's' has {use}"):
        reader.initialOffset()
    assert query_on(server, commit_group="other").initialOffset()


def test_a_group_is_not_moved_while_it_has_consumers(
    server: LocalServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(server)
    add(client, "s", range(3), ids)
    reader, end = begun(server)
    add(client, "s", range(3, 6), ids)
    client.xreadgroup("spark", "me", {"s": ">"}, count=1)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        for number in range(6, 9):
            end = run_batch(reader, end)
            reader.commit(end)
            add(client, "s", [number], ids)
    assert group_of(client)["last-delivered-id"] == b"4-0"
    (warning,) = caplog.messages
    assert "the group of stream 's' has 1 consumer and 1 pending entry now: it is not moved" in warning
    client.xack("s", "spark", "4-0")
    client.xgroup_delconsumer("s", "spark", "me")
    reader.commit(run_batch(reader, end))
    assert group_of(client)["last-delivered-id"] == b"9-0"


def test_a_group_is_never_moved_back(server: LocalServer, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(server)
    add(client, "s", range(10), ids)
    client.xgroup_create("s", "spark", id="6-0")
    reader = query_on(server, max_entries_per_trigger=4, commit_group="spark")
    end = reader.initialOffset()
    places = []
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        for _ in range(3):
            end = run_batch(reader, end)
            reader.commit(end)
            places.append(group_of(client)["last-delivered-id"])
    assert places == [b"6-0", b"8-0", b"10-0"]
    assert caplog.messages == [
        "commit_group='spark': the group of stream 's' is at 6-0, and the query at 4-0: it is not moved back, but "
        "moves again once the query is ahead"
    ]


def test_a_group_that_was_destroyed_is_created_again(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(3), ids)
    reader, end = begun(server)
    client.xgroup_destroy("s", "spark")
    add(client, "s", range(3, 6), ids)
    reader.commit(run_batch(reader, end))
    assert group_of(client)["last-delivered-id"] == b"6-0"


def test_an_unknown_position_creates_no_group(client: redis.Redis, any_server: LocalServer) -> None:
    """With AvailableNow Spark 4.0 and 4.1 ask for the end first, and `latest` is not where the query is."""
    add(client, "s", range(3), ids)
    reader = query_on(any_server, commit_group="spark", starting="latest")
    reader.latestOffset()
    assert client.xinfo_groups("s") == []


RIGHTS = ("+xinfo|stream", "+xinfo|groups", "+xrange")


def test_missing_permissions_are_reported(
    client: redis.Redis, any_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "s", range(3), ids)

    def query(*rights: str) -> StreamReader:
        client.acl_setuser("spark", reset=True, enabled=True, passwords=["+x"], keys=["s"], commands=list(rights))
        return query_on(any_server, commit_group="spark", username="spark", password="x")

    with pytest.raises(CommandError, match=r"needs \+xinfo\|groups ~s"):
        query("+xinfo|stream").initialOffset()
    for given, needed in ((RIGHTS, "create"), ((*RIGHTS, "+xgroup|create"), "setid")):
        reader = query(*given)
        end = run_batch(reader, reader.initialOffset())
        with pytest.raises(CommandError, match=rf"needs \+xgroup\|{needed} ~s"):
            reader.commit(end)
    client.xgroup_destroy("s", "spark")
    reader = query(*RIGHTS, "+xgroup|create", "+xgroup|setid")
    end = run_batch(reader, reader.initialOffset())
    reader.commit(end)
    # A right that is lost later does not end the query.
    client.acl_setuser("spark", enabled=True, commands=["-xgroup"])
    add(client, "s", range(3, 6), ids)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        reader.commit(run_batch(reader, end))
    assert "commit_group='spark': was not moved: " in caplog.text


def test_a_connection_that_is_lost_does_not_end_the_query(
    start_server: Callable[..., LocalServer], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    client = connect(server)
    add(client, "s", range(3), ids)
    made = settings(server)
    mirror = GroupMirror(Survey(made), made.endpoint, "spark")
    server.stop()
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        mirror.follow({"s": Place((2, 0), 2)})
    assert "commit_group='spark': was not moved: " in caplog.text


def test_commit_group_is_refused_for_batch_reads(any_server: LocalServer) -> None:
    with pytest.raises(ConfigError, match=r"commit_group is for spark\.readStream"):
        settings(any_server, commit_group="spark")


@pytest.mark.parametrize(
    ("group", "what"),
    [
        (None, "create"),
        (GroupState(0, 0, Place(LOWEST, None)), "move"),
        (GroupState(0, 0, Place((5, 0), 5)), "stay"),
        (GroupState(0, 0, Place((5, 0), None)), "move"),
        (GroupState(0, 0, Place((5, 1), 6)), "ahead"),
        (GroupState(1, 0, Place(LOWEST, None)), "used"),
        (GroupState(0, 1, Place((9, 0), None)), "used"),
    ],
)
def test_the_next_step_depends_on_the_state_of_the_group(group: GroupState | None, what: str) -> None:
    assert step(group, Place((5, 0), 5)) == what
    assert step(GroupState(0, 0, Place((5, 0), 3)), Place((5, 0), None)) == "stay"
