"""Who owns which stream: members that come, leave and wait; the order of the entries meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import ShardBatch, ShardConsumer
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.fixture_types import BySize
from support.groups import GROUP, add
from support.marks import thorough
from support.patience import NEVER
from support.processes import wait_until
from support.shard_consumers import (
    SHORT,
    Work,
    ids_of,
    lease_of,
    member_of,
    next_batch,
    now,
    sharded,
    take,
    wait_for_shares,
)

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def fill(client: Any, shards: int, count: int, first: int = 1) -> None:
    for shard in range(shards):
        add(client, count, first=first, key=f"orders:{shard}")


def close_all(members: list[ShardConsumer]) -> None:
    for member in members:
        member.close()


@pytest.mark.parametrize(("streams", "shares"), [(12, [3, 3, 2, 2, 2]), (3, [1, 1, 1, 0, 0]), (1, [1, 0])])
def test_members_share_the_streams_evenly(server: LocalServer, streams: int, shares: list[int]) -> None:
    """The first in the order of their names have the greater shares, whoever came first."""
    endpoint = sharded(server, streams)
    members = [member_of(endpoint, f"m{number}") for number in range(len(shares))]
    owned = wait_for_shares(members, shares)
    assert sorted(key for keys in owned for key in keys) == sorted(endpoint.stream_keys)
    # Once they are shared, nothing moves.
    taken = sum(member.report().streams_taken for member in members)
    lost = [member.report().streams_lost for member in members]
    assert (taken - sum(member.report().streams_given_up for member in members), sum(lost)) == (streams, 0)
    close_all(members)


@pytest.mark.parametrize("name", ["first", *thorough("m05", "m15", "z")])
def test_a_newcomer_moves_its_share_and_one_stream_at_most(server: LocalServer, name: str) -> None:
    members = [member_of(sharded(server, 12), f"m{number}0") for number in range(3)]
    before = wait_for_shares(members, [4, 4, 4])
    newcomer = member_of(sharded(server, 12), name)
    wait_until(lambda: len(newcomer.assignment) == 3)
    *after, own = wait_for_shares([*members, newcomer], [3, 3, 3, 3])
    assert sum(len(set(keys) - set(was)) for keys, was in zip(after, before, strict=True)) <= 1
    assert len(own) == 3
    close_all([*members, newcomer])


def test_what_a_leaver_had_is_what_moves(server: LocalServer) -> None:
    members = [member_of(sharded(server, 12), f"m{number}") for number in range(4)]
    *before, leaving = wait_for_shares(members, [3, 3, 3, 3])
    # Its lease would have gone on for an hour.
    report = members.pop().close()
    assert (report.streams_given_up >= 3, report.streams_lost) == (True, 0)
    after = wait_for_shares(members, [4, 4, 4])
    gained = [set(keys) - set(was) for keys, was in zip(after, before, strict=True)]
    assert sorted(key for keys in gained for key in keys) == sorted(leaving)
    close_all(members)


def test_the_order_of_each_stream_holds_while_members_come_and_leave(
    server: LocalServer, client: Any, by_size: BySize
) -> None:
    """No lease ends: each entry is noted once, in the order of its stream."""
    count, rounds = by_size(300, 3_000), by_size(4, 20)
    endpoint = sharded(server, 12)
    with Work() as work:
        for number in range(3):
            work.join(f"m{number}", member_of(endpoint, f"m{number}", batch_rows=7))
        written = 0
        for turn in range(rounds):
            fill(client, 12, count // rounds, first=written + 1)
            written += count // rounds
            work.join(f"n{turn}", member_of(endpoint, f"n{turn}", batch_rows=7))
            work.wait_for(written * 6)
            work.leave(f"n{turn}" if turn % 2 else f"m{turn % 3}")
            if not turn % 2:
                work.join(f"m{turn % 3}", member_of(endpoint, f"m{turn % 3}", batch_rows=7))
        work.wait_for(written * 12)
    assert dict(work.noted) == {key: as_ids(range(1, written + 1)) for key in endpoint.stream_keys}
    reports = work.reports
    assert sum(report.committed for report in reports) == sum(report.handed_over for report in reports) == written * 12
    assert sum(report.fenced + report.unknown + report.pending + report.streams_lost for report in reports) == 0


def test_the_owner_finishes_its_batch_before_the_next_owner_begins(server: LocalServer, client: Any) -> None:
    fill(client, 2, 20)
    revoked: list[bytes] = []
    old = member_of(sharded(server, 2), "a", batch_rows=5, on_revoked=revoked.extend)
    held: dict[bytes, list[ShardBatch]] = {}
    while len(held) < 2:
        batch = next_batch(old)
        held.setdefault(batch.stream, []).append(batch)
    new = member_of(sharded(server, 2), "b", batch_rows=5)
    wait_until(lambda: len(old.assignment) == 1)
    (kept,) = old.assignment
    (given_up,) = set(held) - {kept}
    # It returns no further batch of it, also if one was read.
    assert all(ids == as_ids(range(6, 21)) for ids in [take(old, 20 - 5 * len(held[kept]))[kept.decode()][-15:]])
    assert revoked == [given_up]
    # The new one waits for the commit.
    assert new.poll(0.2) is None
    assert new.assignment == []
    last = held[given_up][-1]
    last.check()
    old.commit(last)
    first = next_batch(new)
    assert (first.stream, first.first_id) == (given_up, as_ids([5 * len(held[given_up]) + 1])[0])
    assert first.epoch > last.epoch
    report = old.flush()
    assert (report.fenced, report.pending, report.streams_given_up, report.streams_lost) == (0, 0, 1, 0)
    close_all([old, new])


def test_a_batch_that_is_not_committed_is_given_up_after_the_lease(server: LocalServer, client: Any) -> None:
    """It is alive, and renews its lease: the limit is for its batch."""
    fill(client, 2, 4)
    old = member_of(sharded(server, 2), "a", lease=SHORT, batch_rows=10)
    take(old, 8, commit=False)
    new = member_of(sharded(server, 2), "b")
    batch = next_batch(new)
    assert ids_of(batch) == as_ids(range(1, 5))
    assert old.assignment == [key for key in sharded(server, 2).stream_keys if key != batch.stream]
    close_all([old, new])


def test_no_stream_is_taken_from_a_member_that_is_alive(server: LocalServer, client: Any) -> None:
    """It polls nothing for several leases: its thread renews them."""
    fill(client, 4, 2)
    with member_of(sharded(server, 4), "a", lease=5.0) as idle, member_of(sharded(server, 4), "b") as other:
        wait_for_shares([idle, other], [2, 2])
        epochs = {key: lease_of(client, key)["epoch"] for key in idle.assignment}
        ends = {key: int(lease_of(client, key)["until"]) for key in idle.assignment}
        wait_until(lambda: all(int(lease_of(client, key)["until"]) > end + 3_000 for key, end in ends.items()))
        assert {key: lease_of(client, key)["epoch"] for key in idle.assignment} == epochs
        assert take(idle, 4).keys() == {key.decode() for key in epochs}


def test_the_end_of_the_block_gives_streams_up_also_after_an_exception(server: LocalServer, client: Any) -> None:
    fill(client, 2, 10)
    with pytest.raises(ZeroDivisionError), member_of(sharded(server, 2), "a", batch_rows=5) as first:  # noqa: PT012
        batch = next_batch(first)
        first.commit(batch)
        next_batch(first)
        raise ZeroDivisionError
    with member_of(sharded(server, 2), "b") as second:
        found = take(second, 15)
    assert found[batch.stream.decode()] == as_ids(range(6, 11))


def test_a_member_without_a_stream_waits_until_it_gets_one(server: LocalServer, client: Any) -> None:
    add(client, 5)
    first, second = member_of(server, "a"), member_of(server, "b")
    take(first, 5)
    assert second.poll(0.1) is None
    thread = threading.Thread(target=first.close)
    add(client, 5, first=6)
    thread.start()
    assert take(second, 5) == {"events": as_ids(range(6, 11))}
    thread.join()
    second.close()


STREAMS = [b"plain", b"{tag}1", b"{tag}2", b"a{b}c", b"\xff\xfe\x00", b"{}", b"{", b"a b", b"{}{x}", "ü".encode()]


def test_streams_and_names_may_be_any_bytes(server: LocalServer, client: Any) -> None:
    for key in STREAMS:
        add(client, 5, key=key)
    name = {"group": b"g \xff{x}", "lease": NEVER}
    with member_of(server, b"a\xfe", STREAMS, **name) as a, member_of(server, b"b\x00", STREAMS, **name) as b:
        wait_for_shares([a, b], [5, 5])
        found = {**take(a, 25), **take(b, 25)}
        assert (a.member, a.group) == (b"a\xfe", b"g \xff{x}")
        assert (a.flush().committed, b.flush().committed) == (25, 25)
    assert list(found.values()) == [as_ids(range(1, 6))] * 10
    for key in STREAMS:
        (group,) = client.xinfo_groups(key)
        assert (group["name"], group["last-delivered-id"]) == (b"g \xff{x}", b"5-0")
    leases = [key for key in client.scan_iter() if b"lease:" in key]
    assert len(leases) == len(STREAMS)


def test_members_may_name_the_streams_in_any_order(server: LocalServer, client: Any) -> None:
    keys = ["x", "y", "z", "w"]
    for key in keys:
        add(client, 3, key=key)
    with member_of(server, "a", keys) as a, member_of(server, "b", reversed(keys)) as b:
        wait_for_shares([a, b], [2, 2])
        assert {**take(a, 6), **take(b, 6)} == {key: as_ids([1, 2, 3]) for key in keys}


def test_groups_do_not_know_each_other(server: LocalServer, client: Any) -> None:
    fill(client, 3, 4)
    with (
        member_of(sharded(server, 3), "a", group="one") as one,
        member_of(sharded(server, 3), "a", group="two") as two,
    ):
        assert take(one, 12) == take(two, 12)


def test_members_learn_what_they_got_before_its_first_batch(server: LocalServer, client: Any) -> None:
    fill(client, 4, 3)
    calls: list[tuple[str, list[bytes]]] = []
    threads: set[threading.Thread] = set()

    def note(what: str) -> Callable[[list[bytes]], None]:
        def called(keys: list[bytes]) -> None:
            threads.add(threading.current_thread())
            calls.append((what, keys))

        return called

    a = member_of(sharded(server, 4), "a", on_assigned=note("got"), on_revoked=note("lost"), batch_rows=10)
    known: set[bytes] = set()
    for _ in range(4):
        batch = next_batch(a)
        known = {key for what, keys in calls if what == "got" for key in keys}
        assert batch.stream in known
        a.commit(batch)
    assert known == set(sharded(server, 4).stream_keys)
    b = member_of(sharded(server, 4), "b")
    wait_for_shares([a, b], [2, 2])
    assert a.poll(0.0) is None
    assert calls[-1][0] == "lost"
    assert sorted(calls[-1][1]) == sorted(b.assignment)
    b.close()
    wait_for_shares([a], [4])
    assert a.poll(0.0) is None
    assert threads == {threading.current_thread()}
    calls.clear()
    a.close()
    assert calls == [], "whoever closes knows"


def test_an_exception_of_a_callback_ends_the_call_and_the_next_one_continues(server: LocalServer, client: Any) -> None:
    fill(client, 2, 3)

    def refuse(keys: list[bytes]) -> None:
        raise RuntimeError(f"no {len(keys)}")

    with member_of(sharded(server, 2), "a", on_assigned=refuse) as a:
        wait_for_shares([a], [2])
        with pytest.raises(RuntimeError, match="no 2"):
            a.poll()
        assert take(a, 6) == {f"orders:{shard}": as_ids([1, 2, 3]) for shard in range(2)}


def keepers() -> int:
    """The threads of this process that renew leases."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("headrace-keeper")


def test_a_dropped_member_loses_its_streams_when_its_lease_ends(server: LocalServer, client: Any) -> None:
    fill(client, 2, 3)
    before = keepers()
    dropped = member_of(sharded(server, 2), "a", lease=SHORT)
    take(dropped, 6, commit=False)
    assert keepers() == before + 1
    del dropped
    assert keepers() == before
    with member_of(sharded(server, 2), "b") as other:
        assert take(other, 6) == {f"orders:{shard}": as_ids([1, 2, 3]) for shard in range(2)}
        assert now(client) >= max(int(lease_of(client, key)["epoch"]) for key in other.assignment)
        assert other.report().streams_taken == 2


def test_the_members_hash_is_for_those_that_are_there(server: LocalServer, client: Any) -> None:
    """A name in it that did not leave counts until its lease ends."""
    key = "{orders:0}:members:" + GROUP
    with member_of(sharded(server, 4), "a") as a:
        wait_for_shares([a], [4])
        client.hset(key, "ghost", now(client) + 2_000)
        wait_for_shares([a], [2])
        wait_for_shares([a], [4])
        assert set(client.hkeys(key)) == {b"a", b""}
    assert client.hkeys(key) == [b""]
