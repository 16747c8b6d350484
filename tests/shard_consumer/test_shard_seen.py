"""What `headrace.inspect` shows of members that share streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace
from headrace.testing import LocalServer
from support import Program
from support.groups import GROUP, add, endpoint_for, row, rows
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until
from support.shard_consumers import lease_key, member_of, next_batch, now, sharded, take, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

LEASE = 30.0


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def time_of(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_leases_and_members_are_tables(server: LocalServer, program: Program, client: Any) -> None:
    endpoint = sharded(server, 3)
    for shard in range(3):
        add(client, 10, key=f"orders:{shard}")
    begun = now(client)
    members = [member_of(endpoint, name, lease=LEASE, batch_rows=4) for name in ("a", "b")]
    wait_for_shares(members, [2, 1])
    batch = next_batch(members[0])
    members[0].commit(batch)
    members[0].flush()
    found = headrace.inspect(endpoint)
    owners = {key.decode(): name for member, name in zip(members, "ab", strict=True) for key in member.assignment}
    assert found.now is not None
    for lease in rows(found.leases):
        is_committed = lease["stream"] == batch.stream.decode()
        assert (lease["group"], lease["owner"]) == (GROUP, owners[lease["stream"]])
        assert begun <= lease["epoch"] <= now(client)
        assert timedelta(0) < lease["until"] - found.now <= timedelta(seconds=LEASE)
        lag = 6 if program.counts_entries else None
        assert (lease["position"], lease["lag"]) == (("4-0", lag) if is_committed else (None, 10))
        assert (lease["lag_unknown_reason"] is None) == (lease["lag"] is not None)
        assert (lease["committed_at"] is not None) == is_committed
        assert lease["committed_at"] is None or time_of(begun) <= lease["committed_at"] <= found.now
        unknown = {lease[name] for name in ("pinned", "failures", "reason")}
        assert unknown == {None}
    assert len(found.leases) == 3
    assert [(each["stream"], each["name"], each["streams"]) for each in rows(found.members)] == [
        ("orders:0", "a", 2),
        ("orders:0", "b", 1),
    ]
    assert all(each["until"] > found.now for each in rows(found.members))
    assert repr(found) == "<Inspection: 3 streams, 3 groups, 0 consumers, 0 pending, 3 leases, 2 members>"
    assert "<caption>3 leases</caption>" in found._repr_html_()
    for member in members:
        member.close()
    after = headrace.inspect(endpoint)
    assert {lease["owner"] for lease in rows(after.leases)} == {None}
    assert {lease["until"] for lease in rows(after.leases)} == {None}
    assert rows(after.members) == []


def test_the_lag_counts_from_the_lease(server: LocalServer, program: Program, client: Any) -> None:
    add(client, 10)
    with member_of(server, "a") as member:
        take(member, 10)
        member.flush()
        add(client, 5, first=11)
        client.xgroup_setid(KEY, GROUP, "13-0")
        lease = row(headrace.inspect(endpoint_to(server)).leases)
    assert (lease["position"], lease["lag"]) == ("10-0", 5 if program.counts_entries else None)


def test_an_entry_that_fails_is_shown(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with member_of(server, "a") as member:
        batch = next_batch(member)
        member.fail(batch[1], "no such customer \\")
        member.flush()
        lease = row(headrace.inspect(endpoint_to(server)).leases)
    assert (lease["position"], lease["failures"], lease["reason"]) == ("1-0", 1, "no such customer \\\\")


def test_leases_that_may_not_be_read_are_left_out(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with member_of(any_server, "a") as member:
        wait_until(lambda: member.assignment)
        rights = ["+xinfo", "+xpending"]
        client.acl_setuser("u", enabled=True, passwords=["+p"], keys=["*"], commands=rights)
        assert len(headrace.inspect(endpoint_for(any_server, "u")).leases) == 0
        client.acl_setuser("u", enabled=True, keys=["*"], commands=["+hgetall"])
        assert len(headrace.inspect(endpoint_for(any_server, "u")).leases) == 1
        client.delete(lease_key(KEY))
        client.set(lease_key(KEY), "text")
        assert len(headrace.inspect(endpoint_for(any_server, "u")).leases) == 0
        client.delete(lease_key(KEY))
