"""What descriptions of streams promise about reading: which of it servers keep, and what headrace makes of it.

Each test stands for the row of the same name in docs/guarantees.md.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

import headrace
from headrace import Consumer, DataLossError, Dispatcher, Endpoint, Group, GroupMissingError, Reader, StateError
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, drain, next_batch, take
from support.groups import GROUP, add, group_of, pending_of, read, row, rows
from support.paths import ROOT
from support.patience import NEVER
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return endpoint_to(server)


def ids_of(reader: Reader) -> list[str]:
    return pa.table(reader)["entry_id"].to_pylist()  # type: ignore[no-any-return]


def is_blocking(client: Any, clients: int) -> bool:
    """Whether so many clients wait."""
    return client.info("clients")["blocked_clients"] == clients  # type: ignore[no-any-return]


def ids(reply: Any) -> list[str]:
    """The IDs of a list of entries, or of the only stream of XREAD and XREADGROUP."""
    if reply and isinstance(reply[0][1], list) and reply[0][1] and isinstance(reply[0][1][0], list | tuple):
        reply = reply[0][1]
    return [entry.decode() for entry, _ in reply or []]


def test_ranges_include_both_ends(client: Any, endpoint: Endpoint) -> None:
    for entry in ("4-0", "5-0", "5-1", "6-0"):
        client.xadd(KEY, {"a": "1"}, id=entry)
    assert ids(client.xrange(KEY, "4-0", "5-1")) == ["4-0", "5-0", "5-1"]
    # An exclusive end without a sequence number excludes one ID of its millisecond: the last that there can be.
    assert ids(client.xrange(KEY, "4-0", "(5")) == ["4-0", "5-0", "5-1"]
    assert ids(client.xrange(KEY, "4-0", "(5-0")) == ["4-0"]
    with Reader(endpoint, start="4-0", end="5-0") as reader:
        assert ids_of(reader) == ["4-0", "5-0"]
    with Reader(endpoint, start="5", end="5") as reader:
        assert ids_of(reader) == ["5-0", "5-1"]
    with Reader(endpoint, reverse=True, limit=2) as reader:
        assert ids_of(reader) == ["6-0", "5-1"]


def test_every_reader_gets_every_entry(client: Any, endpoint: Endpoint) -> None:
    stored = add(client, 50)
    for _ in range(2):
        with Reader(endpoint, end="latest") as reader:
            assert ids_of(reader) == stored


def test_xread_returns_all_entries_by_default(client: Any, endpoint: Endpoint) -> None:
    stored = add(client, 2_500)
    assert ids(client.execute_command("XREAD", "STREAMS", KEY, "0")) == stored
    assert ids(client.execute_command("XREAD", "COUNT", 0, "STREAMS", KEY, "0")) == stored
    with headrace.Reader(endpoint, page_bytes=10_000, linger=0.0) as reader:
        largest = 0
        found = 0
        while found < 2_500:
            batch = reader.read()
            assert batch is not None
            largest, found = max(largest, batch.num_rows), found + batch.num_rows
    counts = client.info("commandstats")
    assert counts["cmdstat_xrange"]["calls"] + counts["cmdstat_xread"]["calls"] > 2_500 // 300
    assert largest <= 8_192


def test_xread_from_a_dollar_sign_misses_entries_added_between_two_calls(client: Any, endpoint: Endpoint) -> None:
    with Reader(endpoint, start="latest", linger=0.0) as reader:
        assert not client.execute_command("XREAD", "BLOCK", 1, "STREAMS", KEY, "$")
        assert reader.read(timeout=0.01) is None
        add(client, 1)
        assert not client.execute_command("XREAD", "BLOCK", 1, "STREAMS", KEY, "$")
        batch = reader.read()
        assert batch is not None
        assert (batch.first_id, batch.num_rows) == ("1-0", 1)


def test_a_client_that_waits_for_a_stream_gets_its_first_entry(
    server: LocalServer, client: Any, connect: Connect
) -> None:
    """A client that waits behind `$` of a stream that does not exist gets it."""
    other = connect(server)
    replies: list[Any] = []
    waits = threading.Thread(
        target=lambda: replies.append(other.execute_command("XREAD", "BLOCK", 60_000, "STREAMS", KEY, "$"))
    )
    waits.start()
    wait_until(partial(is_blocking, client, 1))
    add(client, 1)
    waits.join()
    assert ids(replies[0]) == ["1-0"]


def test_a_wait_ends_with_the_first_entry_of_a_pipeline(server: LocalServer, client: Any) -> None:
    """So `linger` waits for the rest."""
    with Reader(endpoint_to(server), block=NEVER, linger=2.0) as reader:
        batches: list[Any] = []
        waits = threading.Thread(target=lambda: batches.append(reader.read()))
        waits.start()
        wait_until(partial(is_blocking, client, 1))
        add(client, 20)
        waits.join()
    assert batches[0].num_rows == 20


def test_the_consumer_that_has_waited_longest_gets_the_next_entry(
    server: LocalServer, client: Any, connect: Connect
) -> None:
    """Not the one with the fewest pending entries, nor in turns: the first one has five, the second none."""
    add(client, 5)
    client.xgroup_create(KEY, GROUP, id="0")
    assert len(read(client, "busy", 5)) == 5
    waiting = []
    for number, name in enumerate(("busy", "idle"), 1):
        other = connect(server)
        command = ["XREADGROUP", "GROUP", GROUP, name, "BLOCK", "60000", "STREAMS", KEY, ">"]
        waits = threading.Thread(target=other.execute_command, args=command)
        waits.start()
        waiting.append(waits)
        wait_until(partial(is_blocking, client, number))
    add(client, 1, first=6)
    waiting[0].join()
    assert pending_of(client)["6-0"] == (b"busy", 1)
    add(client, 1, first=7)
    waiting[1].join()
    assert pending_of(client)["7-0"] == (b"idle", 1)
    # A consumer that asks without waiting gets whatever is there.
    add(client, 10, first=8)
    assert len(read(client, "busy", 10)) == 10


def test_consumers_of_a_group_share_entries_and_groups_do_not(server: LocalServer, client: Any) -> None:
    stored = add(client, 400)
    with (
        consumer_of(server, "a", batch_rows=16, claim=False) as one,
        consumer_of(server, "b", batch_rows=16, claim=False) as two,
        Consumer(endpoint_to(server), group="second", consumer="a", linger=0.0) as other,
    ):
        found: dict[str, list[str]] = {"a": [], "b": []}
        while sum(map(len, found.values())) < 400:
            for name, consumer in (("a", one), ("b", two)):
                if (batch := consumer.poll(0)) is not None:
                    found[name] += batch.entry_ids
        assert sorted(found["a"] + found["b"]) == sorted(stored)
        assert all(part == sorted(part, key=stored.index) for part in found.values())
        assert take(other, 400) == stored


def test_groups_are_created_explicitly_and_consumers_by_their_first_read(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        read(client, "c", 1)
    with pytest.raises(GroupMissingError):
        consumer_of(server, create=False)
    with consumer_of(server, start="(2-0") as consumer:
        assert take(consumer, 1) == ["3-0"]
    assert [consumer["name"] for consumer in client.xinfo_consumers(KEY, GROUP)] == [b"c"]
    # One that asks for its pending entries only is created as well.
    client.execute_command("XREADGROUP", "GROUP", GROUP, "visitor", "STREAMS", KEY, "0")
    names = {consumer["name"] for consumer in client.xinfo_consumers(KEY, GROUP)}
    assert names >= {b"c", b"visitor"} or client.info("server")["redis_version"].startswith("6.")


def test_id_0_reads_only_the_pending_entries_of_the_consumer(server: LocalServer, client: Any) -> None:
    add(client, 6)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 2)
    read(client, "other", 2)
    command = ["XREADGROUP", "GROUP", GROUP, "c", "STREAMS", KEY, "0-0"]
    assert ids(client.execute_command(*command)) == as_ids([1, 2])
    # A consumer hands them out first, then what is new.
    with consumer_of(server, claim=False) as consumer:
        assert take(consumer, 4) == as_ids([1, 2, 5, 6])


def test_deleted_pending_entries_are_returned_without_fields(server: LocalServer, client: Any) -> None:
    add(client, 2)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 2)
    client.xdel(KEY, "1-0")
    reply = client.eval("return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', KEYS[1], '0')", 1, KEY)
    assert [entry for entry, _ in reply[0][1]] == [b"1-0", b"2-0"]
    assert not reply[0][1][0][1]
    with consumer_of(server) as consumer:
        assert take(consumer, 1, ack=True) == ["2-0"]
        report = consumer.flush()
    assert (report.lost, report.acked) == (1, 1)
    assert pending_of(client) == {}


def test_acknowledged_entries_are_redelivered_when_the_position_is_set_back(server: LocalServer, client: Any) -> None:
    add(client, 3)
    group = group_of(server)
    with consumer_of(server) as consumer:
        assert take(consumer, 3, ack=True) == as_ids([1, 2, 3])
        consumer.flush()
        assert consumer.poll(0.02) is None
        group.set_position("earliest")
        assert take(consumer, 3, ack=True) == as_ids([1, 2, 3])
    # XCLAIM FORCE makes it pending again; headrace does not send it.
    assert client.xclaim(KEY, GROUP, "c", 0, ["2-0"], force=True, justid=True) == [b"2-0"]
    assert list(pending_of(client)) == ["2-0"]


def test_xack_does_not_check_the_owner(server: LocalServer, client: Any) -> None:
    add(client, 2)
    with consumer_of(server, "a") as mine:
        batch = next_batch(mine)
        client.xclaim(KEY, GROUP, "b", 0, ["1-0", "2-0"])
        mine.ack(batch, [True, False])
        assert mine.flush().stale == 1
        assert list(pending_of(client)) == as_ids([1, 2])
        assert client.xack(KEY, GROUP, "2-0") == 1, "whoever sends it"
        mine.release(batch)


def test_only_idle_entries_can_be_claimed_and_one_claim_wins(server: LocalServer, client: Any) -> None:
    """And one that succeeds resets the idle time and counts, so that one of several wins."""
    add(client, 2)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "a", 2)
    assert client.execute_command("XCLAIM", KEY, GROUP, "b", 3_600_000, "1-0") == []
    group = group_of(server)
    client.xclaim(KEY, GROUP, "a", 0, ["1-0"], idle=10_000, justid=True)
    assert group.claim("b", ["1-0", "2-0"], min_idle=9.0) == ["1-0"]
    assert group.claim("c", ["1-0", "2-0"], min_idle=9.0) == []
    assert pending_of(client)["1-0"][0] == b"b"


def test_the_idle_time_counts_from_the_last_delivery(client: Any) -> None:
    """Not since the first."""
    add(client, 1)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "a", 1)
    client.xclaim(KEY, GROUP, "a", 0, ["1-0"], idle=100_000, justid=True)
    (before,) = client.xpending_range(KEY, GROUP, "-", "+", 1)
    assert before["time_since_delivered"] >= 100_000
    client.xclaim(KEY, GROUP, "b", 0, ["1-0"])
    (after,) = client.xpending_range(KEY, GROUP, "-", "+", 1)
    assert after["time_since_delivered"] < 100_000
    assert (before["times_delivered"], after["times_delivered"]) == (1, 2)


def test_one_xautoclaim_examines_only_some_of_the_pending_entries(server: LocalServer, client: Any) -> None:
    """XAUTOCLAIM examines ten times COUNT: none that is idle is no end, only the cursor 0-0 is."""
    add(client, 40)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "a", 40)
    client.xclaim(KEY, GROUP, "a", 0, ["40-0"], idle=100_000, justid=True)
    reply = client.execute_command("XAUTOCLAIM", KEY, GROUP, "b", 50_000, "0-0", "COUNT", 1, "JUSTID")
    assert reply[0] != b"0-0"
    assert reply[1] == []
    with consumer_of(server, "b", min_idle=50.0, claim_interval=0.02, block=0.02) as consumer:
        assert take(consumer, 1, ack=True) == ["40-0"]


def test_every_replay_counts_as_a_delivery(server: LocalServer, client: Any) -> None:
    """So the counter by itself condemns healthy entries."""
    add(client, 1)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 1)
    for _ in range(9):
        client.execute_command("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", KEY, "0")
    assert pending_of(client)["1-0"] == (b"c", 10)
    with consumer_of(server, max_failures=5, dead_letter_key="dead") as consumer:
        assert take(consumer, 1, ack=True) == ["1-0"]
        assert consumer.flush().dead == 0


def test_deleting_a_consumer_drops_its_pending_entries(server: LocalServer, client: Any) -> None:
    add(client, 2)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 1)
    group = group_of(server)
    with pytest.raises(StateError, match="pending"):
        group.delete_consumer("c")
    assert client.xgroup_delconsumer(KEY, GROUP, "c") == 1
    with consumer_of(server, "other") as consumer:
        assert drain(consumer) == ["2-0"]


def test_ids_and_minid_are_compared_as_numbers(client: Any, endpoint: Endpoint) -> None:
    for entry in ("9-0", "10-0", "100-0"):
        client.xadd(KEY, {"a": "1"}, id=entry)
    # As texts, "100-0" and "10-0" are below "9-0".
    assert client.execute_command("XTRIM", KEY, "MINID", "10-0") == 1
    with Reader(endpoint, end="latest") as reader:
        assert ids_of(reader) == ["10-0", "100-0"]
    with Reader(endpoint, start="9-0", end="99-0") as reader:
        assert ids_of(reader) == ["10-0"]


def test_xadd_with_minid_adds_an_entry_with_a_lower_id_and_trims_it(client: Any, server: LocalServer) -> None:
    add(client, 3)
    assert client.execute_command("XADD", KEY, "MINID", "9-0", "4-0", "a", "b") == b"4-0"
    assert client.xlen(KEY) == 0, "the entry was trimmed as well, behind its successful reply"


def test_limit_counts_entries_rather_than_bytes(client: Any) -> None:
    client.config_set("stream-node-max-entries", 10)
    add(client, 1_000)
    with pytest.raises(redis.ResponseError, match="LIMIT"):
        client.execute_command("XADD", KEY, "LIMIT", 1_024, "*", "a", "b")
    assert client.execute_command("XADD", KEY, "MAXLEN", "~", 10, "LIMIT", 100, "2000-0", "a", "x" * 100_000)
    # The entry of 100 kB was added, and of the thousand others 100 were removed at most.
    assert 901 <= client.xlen(KEY) <= 1_001
    assert client.xlen(KEY) < 1_001


def test_nomkstream_creates_no_stream(client: Any, endpoint: Endpoint) -> None:
    assert client.execute_command("XADD", "missing", "NOMKSTREAM", "*", "a", "b") is None
    assert client.exists("missing") == 0


def test_xclaim_without_options_takes_the_entry_over(client: Any) -> None:
    """It takes the entry over."""
    add(client, 1)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "a", 1)
    client.execute_command("XCLAIM", KEY, GROUP, "b", 0, "1-0")
    assert pending_of(client)["1-0"] == (b"b", 2)


def test_trimming_may_be_faster_than_a_reader(client: Any, endpoint: Endpoint) -> None:
    """Nothing in a reply says so."""
    add(client, 100)
    with Reader(endpoint, limit=10) as reader:
        assert len(ids_of(reader)) == 10
    client.xtrim(KEY, maxlen=50, approximate=False)
    assert ids(client.execute_command("XREAD", "COUNT", 1, "STREAMS", KEY, "10-0")) == ["51-0"]
    with Reader(endpoint, start=reader.position, end="latest") as behind:
        if client.info("server")["redis_version"].startswith("6."):
            with pytest.warns(RuntimeWarning, match="does not count"):
                assert next(behind).first_id == "51-0"
        else:
            with pytest.raises(DataLossError) as raised:
                next(behind)
            assert (raised.value.lost, raised.value.exact) == (40, True)


def test_noack_delivers_at_most_once(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with consumer_of(server, ack="none") as consumer:
        assert next_batch(consumer).num_rows == 10
    assert pending_of(client) == {}
    with consumer_of(server) as consumer:
        assert consumer.poll(0.02) is None


def test_groups_are_read_from_the_primary_only(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    primary, replica = any_replicated
    there = connect(replica)
    add(connect(primary), 3)
    Group(endpoint_to(primary), GROUP).create(start="earliest")
    wait_until(lambda: there.exists(KEY) and len(there.xinfo_groups(KEY)) == 1)
    with pytest.raises(redis.ReadOnlyError):
        read(there, "c", 1)
    with Reader(Endpoint(unix_socket=replica.unix_socket, stream_key=KEY), end="latest") as reader:
        assert ids_of(reader) == as_ids([1, 2, 3])


def test_pending_entries_can_be_listed(server: LocalServer, client: Any) -> None:
    add(client, 5)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 3)
    assert client.xpending(KEY, GROUP)["pending"] == 3
    found = headrace.inspect(endpoint_to(server))
    assert row(found.groups)["pending"] == 3
    assert [entry["entry_id"] for entry in rows(found.pending)] == as_ids([1, 2, 3])
    assert [entry["entry_id"] for entry in rows(group_of(server).pending(min_idle=3_600))] == []


def test_xadd_and_xack_in_multi_lose_the_entry_if_xadd_is_refused(server: LocalServer, client: Any) -> None:
    """XADD and XACK as two commands, in a pipeline or in MULTI, lose it."""
    add(client, 2)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 1)
    client.set("dead", "no stream")
    transaction = client.pipeline(transaction=True)
    transaction.execute_command("XADD", "dead", "*", "a", "b")
    transaction.xack(KEY, GROUP, "1-0")
    replies = transaction.execute(raise_on_error=False)
    assert isinstance(replies[0], redis.ResponseError)
    assert replies[1] == 1, "acknowledged, and nowhere to be found"
    with consumer_of(server, max_failures=1, dead_letter_key="dead") as consumer:
        consumer.fail(next_batch(consumer), "why")
        with pytest.raises(headrace.CommandError, match="the dead letter"):
            consumer.flush()
    assert "2-0" in pending_of(client)


def test_ids_of_a_stream_always_increase(client: Any, endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        for _ in range(300):
            dispatcher.produce(b"x")
    with Reader(endpoint, end="latest", metadata=["entry_ms", "entry_seq"]) as reader:
        table = pa.table(reader)
    pairs = list(zip(table["entry_ms"].to_pylist(), table["entry_seq"].to_pylist(), strict=True))
    assert pairs == sorted(set(pairs))
    with pytest.raises(redis.ResponseError, match="equal or smaller"):
        client.xadd(KEY, {"a": "b"}, id="0-1")


def test_every_promise_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    block = text.split("<!-- promises -->", 1)[1].split("<!-- /promises -->", 1)[0]
    named = set(re.findall(r"`(test_\w+)`", block))
    tests = {name for name in globals() if name.startswith("test_")} - {"test_every_promise_is_in_the_documentation"}
    assert len(tests) > 25
    assert named == tests
