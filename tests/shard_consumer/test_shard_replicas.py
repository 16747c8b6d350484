"""`wait_replicas`: what a failover does not undo, and what is said while replicas are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import CommandError, ConfigError
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.groups import add
from support.pipelines import KEY, endpoint_to
from support.processes import stopped
from support.shard_consumers import lease_of, member_of, next_batch, take

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


def test_a_replica_has_a_lease_before_its_first_batch_and_commits_that_were_flushed(
    replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    master, replica = replicated
    add(connect(master), 200)
    there = connect(replica)
    with member_of(master, batch_rows=10, wait_replicas=1) as member:
        for done in range(10, 201, 10):
            batch = next_batch(member)
            # At once, without waiting for the replica.
            assert lease_of(there, KEY)["epoch"] == str(batch.epoch)
            member.commit(batch)
            assert member.flush().committed == done
            assert f'"{done}-0"' in lease_of(there, KEY)["position"]
    assert lease_of(there, KEY)["owner"] == ""


def test_commits_that_a_stalled_replica_lacks_are_not_confirmed(
    replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    master, replica = replicated
    client = connect(master)
    add(client, 20)
    with member_of(master, batch_rows=10, wait_replicas=1, wait_timeout=0.2) as member:
        batch = next_batch(member)
        with stopped(replica):
            member.commit(batch)
            said = r"^stream events: the commit: 0 of 1 replicas had it within 0.2 s; the server itself has it; make "
            with pytest.raises(CommandError, match=said):
                member.flush()
            assert (member.report().committed, member.report().unknown) == (0, 0)
            assert '"10-0"' in lease_of(client, KEY)["position"]
        assert member.flush().committed == 10
        assert take(member, 10) == {KEY: as_ids(range(11, 21))}
        assert member.flush().committed == 20


def test_without_the_replicas_nothing_is_returned(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 5)
    with member_of(server, wait_replicas=1, wait_timeout=0.05) as member:
        with pytest.raises(CommandError, match=r"^stream events: the lease: 0 of 1 replicas had it within 0.05 s"):
            member.poll()
        assert member.poll(0.2) is None
        assert member.assignment == []
        # The server itself has the end of the lease.
        member.close()
    assert lease_of(client, KEY)["owner"] == ""


def test_a_user_without_the_right_is_told(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "u", "on", ">p", "+@all", "-wait", "~*")
    endpoint = endpoint_to(server, username="u", password="p")
    with (
        member_of(endpoint, wait_replicas=1) as member,
        pytest.raises(CommandError, match=r"WAIT was refused: NOPERM"),
    ):
        member.poll()


def test_options_that_do_not_fit_are_refused(server: LocalServer) -> None:
    with pytest.raises(ConfigError, match=r"^wait_timeout needs wait_replicas$"):
        member_of(server, wait_timeout=1.0)
    with pytest.raises(ConfigError, match=r"^wait_timeout must be at most a third of lease, 1 s, .* got 1.5$"):
        member_of(server, lease=3.0, wait_replicas=1, wait_timeout=1.5)
    with pytest.raises(ConfigError, match=r"^wait_replicas must be an integer from 0 to"):
        member_of(server, wait_replicas=-1)
