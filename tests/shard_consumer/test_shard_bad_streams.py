"""What a person, or another program, does to streams, leases, groups and the list of members meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace import CommandError, Endpoint, HeadraceError, ShardConsumer, StreamReplacedError
from headrace.testing import LocalServer
from support.bad_streams import STREAMS, Change, allow, fill, overwrite
from support.consumers import as_ids
from support.groups import GROUP, add
from support.patience import PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until
from support.shard_consumers import SHORT, lease_key, lease_of, member_of, next_batch, sharded, take, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

MEMBERS = "{events}:members:" + GROUP


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def errors_of(member: ShardConsumer, count: int) -> list[HeadraceError]:
    """The next errors, which must come; what is returned meanwhile is committed."""
    errors: list[HeadraceError] = []

    def look() -> bool:
        try:
            batch = member.poll(0.02)
        except HeadraceError as error:
            errors.append(error)
        else:
            if batch is not None:
                member.commit(batch)
        return len(errors) >= count

    wait_until(look)
    return errors


def test_a_deleted_lease_is_taken_again_after_what_the_group_has(server: LocalServer, client: Any) -> None:
    add(client, 20)
    lost: list[bytes] = []
    with member_of(server, batch_rows=5, on_revoked=lost.extend) as member:
        member.commit(next_batch(member))
        member.flush()
        batch = next_batch(member)
        client.delete(lease_key(KEY))
        member.commit(batch)
        report = member.flush()
        assert (report.committed, report.fenced, report.streams_lost) == (5, 5, 1)
        assert take(member, 15) == {KEY: as_ids(range(6, 21))}
        assert lost == [KEY.encode()]
        assert next_epoch(client) > batch.epoch


def next_epoch(client: Any) -> int:
    return int(lease_of(client, KEY)["epoch"])


def test_a_destroyed_group_is_made_again_by_the_next_commit(server: LocalServer, client: Any) -> None:
    """The place is in the lease: nothing is read twice."""
    add(client, 20)
    with member_of(server, batch_rows=5) as member:
        member.commit(next_batch(member))
        member.flush()
        client.xgroup_destroy(KEY, GROUP)
        batch = next_batch(member)
        member.commit(batch)
        report = member.flush()
        assert (report.committed, report.fenced) == (10, 0)
        assert client.xinfo_groups(KEY)[0]["last-delivered-id"] == b"10-0"
    client.xgroup_destroy(KEY, GROUP)
    with member_of(server, "b") as member:
        assert take(member, 10) == {KEY: as_ids(range(11, 21))}


def test_a_deleted_list_of_members_fills_again(server: LocalServer, client: Any) -> None:
    with member_of(sharded(server, 4), "a") as a, member_of(sharded(server, 4), "b") as b:
        before = wait_for_shares([a, b], [2, 2])
        client.delete("{orders:0}:members:g")
        wait_until(lambda: set(client.hkeys("{orders:0}:members:g")) >= {b"a", b"b"})
        assert wait_for_shares([a, b], [2, 2]) == before or a.report().streams_lost + b.report().streams_lost == 0


@pytest.mark.parametrize("fields", [{"position": "garbage"}, {"position": '{"v":99}'}], ids=str)
def test_a_place_that_cannot_be_read_is_an_error(server: LocalServer, client: Any, fields: dict[str, str]) -> None:
    add(client, 3)
    client.hset(lease_key(KEY), mapping=fields)
    with member_of(server) as member:
        (error,) = errors_of(member, 1)
        assert "stream events" in str(error)
        assert lease_key(KEY).decode() in str(error)
        assert "position" in str(error)
        # A person mends it.
        client.delete(lease_key(KEY))
        assert take(member, 3) == {KEY: as_ids([1, 2, 3])}


@pytest.mark.parametrize("field", ["until", "epoch"])
def test_a_number_that_cannot_be_read_counts_as_none(server: LocalServer, client: Any, field: str) -> None:
    add(client, 3)
    client.hset(lease_key(KEY), mapping={"owner": "gone", field: "garbage"})
    with member_of(server) as member:
        assert take(member, 3) == {KEY: as_ids([1, 2, 3])}


def test_a_member_whose_time_cannot_be_read_does_not_count(server: LocalServer, client: Any) -> None:
    add(client, 3)
    client.hset(MEMBERS, "a person", "garbage")
    with member_of(server) as member:
        assert take(member, 3) == {KEY: as_ids([1, 2, 3])}


@pytest.mark.parametrize("key", ["{events}:lease:g", MEMBERS])
def test_a_key_of_another_type_in_place_of_a_hash_is_named(server: LocalServer, client: Any, key: str) -> None:
    add(client, 3)
    client.set(key, "a string")
    with member_of(server) as member:
        (error,) = errors_of(member, 1)
        assert isinstance(error, CommandError)
        assert error.code == "WRONGTYPE"
        assert key in str(error)
        client.delete(key)
        assert take(member, 3) == {KEY: as_ids([1, 2, 3])}


def test_each_stream_that_is_refused_is_named(server: LocalServer, client: Any) -> None:
    for key in ("b1", "b2"):
        client.set(key, "a string")
    add(client, 3, key="good")
    with member_of(server, "a", ["b1", "good", "b2"]) as member:
        errors = errors_of(member, 2)
        assert {getattr(error, "stream", None) for error in errors} == {b"b1", b"b2"}
        # Once each; the other stream goes on.
        add(client, 3, first=4, key="good")
        assert member.poll(PATIENCE) is not None
        for key in ("b1", "b2"):
            client.delete(key)
            add(client, 2, key=key)
        assert sum(map(len, take(member, 4).values())) == 4


@pytest.fixture
def limited(server: LocalServer, client: Any) -> Endpoint:
    allow(client)
    fill(client, STREAMS)
    return endpoint_to(server, username="limited", password="secret")


def forbid(client: Any) -> None:
    """Take the right to use b, and nothing else, from the user."""
    client.execute_command("ACL", "SETUSER", "limited", "resetkeys", "~a", "~c", "~{*")


@pytest.mark.parametrize(("change", "code"), [(overwrite, "WRONGTYPE"), (forbid, "NOPERM")])
def test_a_stream_that_becomes_unreadable_is_told_and_the_others_go_on(
    limited: Endpoint, client: Any, change: Change, code: str
) -> None:
    with member_of(limited, "a", STREAMS) as member:
        take(member, 15)
        member.flush()
        change(client)
        (error,) = errors_of(member, 1)
        assert isinstance(error, CommandError)
        assert (error.code, getattr(error, "stream", None)) == (code, b"b")
        client.xadd("a", {"n": 1})
        client.xadd("c", {"n": 1})
        done = member.report().handed_over

        def goes_on() -> bool:
            errors_of_now: list[HeadraceError] = []
            try:
                batch = member.poll(0.02)
            except HeadraceError as error:
                errors_of_now.append(error)
                batch = None
            if batch is not None:
                member.commit(batch)
            return member.report().handed_over == done + 2

        wait_until(goes_on)


def test_a_right_that_is_withdrawn_refuses_the_commit_and_each_flush_says_so(limited: Endpoint, client: Any) -> None:
    with member_of(limited, "a", STREAMS) as member:
        batches = [next_batch(member) for _ in range(3)]
        client.execute_command("ACL", "SETUSER", "limited", "-hset")
        for batch in batches:
            member.commit(batch)
        for _ in range(2):
            with pytest.raises(CommandError, match=r"stream [abc]: the commit \(EVAL with .*HSET.*\) was ref") as no:
                member.flush()
            assert (no.value.code, no.value.kind) == ("NOPERM", "permanent")
        assert member.report().committed == 0
        allow(client)
        wait_until(lambda: is_flushed(member))
        assert member.report().committed == 15


def is_flushed(member: ShardConsumer) -> bool:
    try:
        member.flush()
    except CommandError:
        return False
    return True


def test_close_raises_when_a_commit_is_refused(limited: Endpoint, client: Any) -> None:
    """Within its time: it does not wait for the right."""
    member = member_of(limited, "a", STREAMS)
    batch = next_batch(member)
    client.execute_command("ACL", "SETUSER", "limited", "-hset")
    member.commit(batch)
    with pytest.raises(CommandError, match="was refused"):
        member.close(timeout=PATIENCE)
    report = member.report()
    assert (report.committed, report.unknown) == (0, 0)


def test_a_server_without_memory_is_an_error_and_the_members_keep_their_streams(
    server: LocalServer, client: Any
) -> None:
    add(client, 10)
    with member_of(server, batch_rows=5) as member:
        batch = next_batch(member)
        client.config_set("maxmemory", 1)
        member.commit(batch)
        with pytest.raises(CommandError, match="OOM"):
            member.flush()
        client.config_set("maxmemory", 0)
        wait_until(lambda: is_flushed(member))
        assert member.report().committed == 5
        assert take(member, 5) == {KEY: as_ids(range(6, 11))}


def test_a_stream_that_is_deleted_with_all_its_keys_begins_again(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with member_of(server, lease=SHORT) as member:
        take(member, 10)
        member.flush()
        client.delete(KEY, lease_key(KEY))
        add(client, 4)
        found = None
        while found is None:
            with contextlib.suppress(StreamReplacedError):
                found = take(member, 4)
        assert found == {KEY: as_ids(range(1, 5))}
