"""`headrace inspect` of groups whose members share streams: each finding staged, with real members or their leases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from command.conftest import Command
from headrace import Group
from headrace.testing import LocalServer
from support.groups import GROUP, add
from support.processes import wait_until
from support.shard_consumers import lease_key, member_of, next_batch, now, sharded, take, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

MINUTE = 60_000


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def look(command: Command, *arguments: str) -> list[dict[str, Any]]:
    """What it says of each shard."""
    ended = command("inspect", "orders", "--shards", "2", "-o", "json", *(arguments or ("--sample", "0")))
    assert ended.err == ""
    found: list[dict[str, Any]] = json.loads(ended.out)
    assert ended.code == (0 if all(each["healthy"] for each in found) else 1)
    return found


def findings(command: Command, *arguments: str) -> dict[str, dict[str, Any]]:
    """The findings by their codes; of several shards the last."""
    return {finding["code"]: finding for each in look(command, *arguments) for finding in each["findings"]}


def stage(client: Any, shard: int = 0, **fields: Any) -> None:
    """The lease of a group at the start: `a` took it ten minutes ago, and has it for another ten."""
    key, at = f"orders:{shard}", now(client)
    client.xgroup_create(key, GROUP, "0", mkstream=True)
    lease = {"owner": "a", "instance": "i", "epoch": at - 10 * MINUTE, "until": at + 10 * MINUTE, "commit": 0}
    client.hset(lease_key(key), mapping={**lease, **fields})


def test_members_at_work_are_healthy(command: Command, server: LocalServer, client: Any) -> None:
    endpoint = sharded(server, 2)
    for shard in range(2):
        add(client, 10, key=f"orders:{shard}")
    members = [member_of(endpoint, name) for name in ("a", "b")]
    wait_for_shares(members, [1, 1])
    for member in members:
        take(member, 10)
        member.flush()
    first, second = look(command)
    assert first["findings"] == second["findings"] == []
    (group,) = first["groups"]
    (lease, of_members) = (group["lease"], group["members"])
    assert (group["lag"], group["last_delivered_id"]) == (0, "10-0")
    assert (lease["owner"], lease["position"], lease["pinned"]) == (
        "b" if members[1].assignment == [b"orders:0"] else "a",
        "10-0",
        None,
    )
    assert lease["rest"] > 0
    assert 0 <= lease["committed_age"] <= lease["age"]
    assert [(member["name"], member["streams"]) for member in of_members] == [("a", 1), ("b", 1)]
    assert second["groups"][0]["members"] == []
    text = command("inspect", "orders", "--shards", "2", "--sample", "0").out.decode()
    assert "group g: lag 0\n  owner " in text
    assert ", committed 10-0 " in text
    assert "\n  2 members\n    a  1 stream\n    b  1 stream\n" in text
    assert "no consumer" not in text
    for member in members:
        member.close()


def test_a_stream_that_members_left_has_no_owner(command: Command, server: LocalServer, client: Any) -> None:
    with member_of(sharded(server, 2), "a") as member:
        wait_until(lambda: len(member.assignment) == 2)
    assert findings(command).keys() <= {"NEVER_WRITTEN"}, "nothing waits"
    add(client, 3, key="orders:1")
    found = findings(command, "--sample", "0.01")["NO_OWNER"]
    assert (found["alarm"], found["group"]) == (True, GROUP)
    assert found["text"] == "'orders:1' of group 'g' has no owner, while 3 entries wait"
    assert found["advice"] == "start a member of the group"


def test_a_lease_that_nobody_takes_ended(command: Command, client: Any) -> None:
    add(client, 3, key="orders:0")
    stage(client, until=now(client) - 2 * MINUTE)
    stage(client, 1)
    found = findings(command)["LEASE_ENDED"]
    assert found["alarm"]
    assert found["text"] == (
        "the lease of 'orders:0' of group 'g' ended 2 min ago, and no member has taken it, while 3 entries wait: its "
        "owner 'a' is probably dead"
    )


def test_a_member_that_commits_nothing(command: Command, server: LocalServer, client: Any) -> None:
    add(client, 3, key="orders:0")
    stage(client, committed_at=now(client) - 5 * MINUTE)
    stage(client, 1)
    found = findings(command)["COMMITS_NOTHING"]
    assert found["alarm"]
    assert found["text"] == (
        "member 'a' owns 'orders:0' of group 'g', and has committed nothing for 5 min, while 3 entries wait: it hangs, "
        "is slow, or does not commit"
    )
    # Not if the entries have just arrived, or if it has just taken the stream or committed.
    client.xadd("orders:0", {"field": "new"})
    client.xtrim("orders:0", maxlen=1, approximate=False)
    assert "COMMITS_NOTHING" not in findings(command)
    add(client, 3, key="orders:1")
    client.hset(lease_key("orders:1"), "committed_at", now(client) - MINUTE // 2)
    assert "COMMITS_NOTHING" not in findings(command)
    assert findings(command, "--sample", "0", "--stuck-after", "20s")["COMMITS_NOTHING"]["alarm"]


def test_a_real_member_that_hangs_commits_nothing(command: Command, server: LocalServer, client: Any) -> None:
    add(client, 3, key="orders:0")
    with member_of(sharded(server, 2), "a") as member:
        wait_until(lambda: len(member.assignment) == 2)
        batch = next_batch(member)
        arguments = ("--sample", "0", "--stuck-after", "50ms")
        wait_until(lambda: "COMMITS_NOTHING" in findings(command, *arguments))
        member.commit(batch)
        member.flush()
        assert "COMMITS_NOTHING" not in findings(command, *arguments)


def test_an_entry_that_fails_holds_its_stream_up(command: Command, server: LocalServer, client: Any) -> None:
    add(client, 3, key="orders:0")
    stage(client, failures=2, reason="no such customer", committed_at=now(client))
    stage(client, 1)
    found = findings(command)["FAILING_ENTRY"]
    assert found["text"] == "'orders:0' of group 'g' waits: entry 1-0 failed 2 times: no such customer"
    assert not found["alarm"]
    assert found["command"].endswith(" orders:0 --from 1-0 -n 1")
    text = command("inspect", "orders", "--shards", "2", "--sample", "0").out.decode()
    assert "waits: entry 1-0 failed 2 times: no such customer" in text
    client.hset(lease_key("orders:0"), "failures", 5)
    assert findings(command)["FAILING_ENTRY"]["alarm"]
    client.hset(lease_key("orders:0"), mapping={"failures": 0, "limit": 1})
    text = findings(command)["FAILING_ENTRY"]["text"]
    assert text == "'orders:0' of group 'g' waits: entry 1-0, or one of those that follow, failed: no such customer"


def test_more_members_than_shards_are_a_note(command: Command, server: LocalServer) -> None:
    members = [member_of(sharded(server, 2), name) for name in ("a", "b", "c")]
    wait_for_shares(members, [1, 1, 0])
    found = findings(command)["MORE_MEMBERS"]
    assert not found["alarm"]
    assert found["text"] == "group 'g' has 3 members for 2 shards: 1 member owns none"
    # One shard alone does not tell.
    ended = command("inspect", "orders:0", "-o", "json", "--sample", "0")
    assert "MORE_MEMBERS" not in ended.out.decode()
    for member in members:
        member.close()


def test_pins_that_do_not_hold_are_found(command: Command, server: LocalServer) -> None:
    endpoint = sharded(server, 2)
    group = Group(endpoint, GROUP)
    with member_of(endpoint, "a") as member:
        wait_until(lambda: len(member.assignment) == 2)
        with member_of(endpoint, "b") as other:
            wait_for_shares([member, other], [1, 1])
            group.assign({b"orders:0": "z", other.assignment[0]: "b"})
            wait_until(lambda: not {b"orders:0"} & {*member.assignment, *other.assignment})
            found = findings(command)
            assert found["PIN_ABSENT"]["alarm"]
            assert found["PIN_ABSENT"]["text"] == (
                "'orders:0' of group 'g' is pinned to member 'z', which is not there: no other member takes it"
            )
            assert "PIN_PENDING" not in found


def test_a_pin_that_waits_for_its_owner_is_a_note(command: Command, client: Any) -> None:
    stage(client, pinned="b")
    stage(client, 1)
    client.hset("{orders:0}:members:g", mapping={"a": now(client) + MINUTE, "b": now(client) + MINUTE})
    found = findings(command)["PIN_PENDING"]
    assert not found["alarm"]
    assert found["text"].startswith(
        "'orders:0' of group 'g' is pinned to member 'b', and 'a' owns it: it gives the stream up"
    )


def test_a_user_who_may_not_read_leases_is_told(command: Command, server: LocalServer, client: Any) -> None:
    add(client, 3, key="orders:0")
    stage(client)
    stage(client, 1)
    rights = ["+xinfo", "+xpending", "+hello"]
    client.acl_setuser("u", enabled=True, passwords=["+p"], keys=["*"], commands=rights)
    options = ("--username", "u", "--password-env", "P", "--shards", "2", "--sample", "0", "-o", "json")
    ended = command("inspect", "orders", *options, environment={"P": "p"})
    (finding,) = json.loads(ended.out)[0]["findings"]
    assert finding["code"] == "NO_CONSUMER"
    assert finding["text"].endswith(
        "whether a ShardConsumer reads for it is unknown: the user may not read its lease (HGETALL)"
    )
