"""What a promoted replica means for members that share streams."""

from __future__ import annotations

from typing import Any

import redis

from headrace import RetryPolicy
from headrace.testing import LocalSentinel
from support.consumers import as_ids
from support.patience import NEVER
from support.processes import wait_until
from support.sentinels import endpoint_of
from support.shard_consumers import member_of, next_batch, take

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


def client_of(group: LocalSentinel) -> Any:
    return redis.Redis(port=group.master().port or 0)


def fail_over(group: LocalSentinel) -> None:
    """Returns when the old master has become a replica: for seconds it takes commits that are lost with it."""
    old = group.master()
    group.fail_over()
    with redis.Redis(port=old.port or 0) as client:
        wait_until(lambda: client.info("replication")["role"] == "slave")


def test_a_member_goes_on_at_the_new_master(group: LocalSentinel) -> None:
    """The replicas had its lease and its last commit."""
    with client_of(group) as client:
        for number in range(1, 21):
            client.xadd("s", {"n": number}, id=f"{number}-0")
    with member_of(endpoint_of(group, sentinel_poll=0.1), batch_rows=5, retry=PATIENT) as member:
        member.commit(next_batch(member))
        member.flush()
        batch = next_batch(member)
        with client_of(group) as client:
            client.wait(2, 10_000)
        fail_over(group)
        member.commit(batch)
        assert take(member, 10) == {"s": as_ids(range(11, 21))}
        report = member.flush()
        assert (report.committed, report.fenced, report.unknown, report.streams_lost) == (20, 0, 0, 0)
    with client_of(group) as client:
        assert client.xinfo_groups("s")[0]["last-delivered-id"] == b"20-0"


def test_an_epoch_does_not_come_twice_if_the_new_master_lacks_the_lease(group: LocalSentinel) -> None:
    """A commit that the new master lacks is returned again, under a greater epoch."""
    with client_of(group) as client:
        for number in range(1, 11):
            client.xadd("s", {"n": number}, id=f"{number}-0")
    with member_of(endpoint_of(group, sentinel_poll=0.1), "a", batch_rows=5, retry=PATIENT) as member:
        batch = next_batch(member)
        member.commit(batch)
        member.flush()
        with client_of(group) as client:
            client.wait(2, 10_000)
        fail_over(group)
        with client_of(group) as client:
            # As if it had been promoted before the lease was replicated.
            client.delete("{s}:lease:g")
            client.xgroup_setid("s", "g", "0")
        # It owns the stream for an hour: its next commit shows that it does not.
        found = [next_batch(member)]
        member.commit(found[0])
        while found[-1].last_id != "10-0" or found[-1].epoch == batch.epoch:
            found.append(next_batch(member))
        again = [entry.id for each in found if each.epoch > batch.epoch for entry in each]
        assert again == as_ids(range(1, 11))
        member.commit(found[-1])
        report = member.flush()
        assert (report.committed, report.fenced, report.streams_lost) == (15, 5, 1)
