"""`headrace shards`: pins shards to members, and frees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from command.conftest import Command
from headrace import Dispatcher
from headrace.testing import LocalServer
from support.groups import GROUP
from support.processes import wait_until
from support.shard_consumers import lease_of, member_of, sharded, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


def test_shards_are_pinned_and_freed(command: Command, server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    endpoint = sharded(server, 4)
    members = [member_of(endpoint, name) for name in ("a", "b")]
    wait_for_shares(members, [2, 2])
    arguments = ("shards", "assign", "orders", "--shards", "4", "--group", GROUP)
    ended = command(*arguments, "0=b", "1=b", "2=b", "3=b")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == b"".join(b"orders:%d  pinned to b\n" % shard for shard in range(4))
    wait_for_shares(members, [0, 4])
    ended = command(*arguments, "-o", "json", "--free", "0", "1", "2", "3")
    assert json.loads(ended.out) == [{"stream": f"orders:{shard}", "pinned": None} for shard in range(4)]
    wait_for_shares(members, [2, 2])
    assert "pinned" not in lease_of(client, "orders:0")
    for member in members:
        member.close()


def test_the_shards_are_those_that_were_recorded(any_command: Command, any_server: LocalServer) -> None:
    endpoint = sharded(any_server, 3)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"one", key="k")
    ended = any_command("shards", "assign", "orders", "--group", GROUP, "2=z", "-o", "jsonl")
    assert ended.code == 0
    assert json.loads(ended.out) == {"stream": "orders:2", "pinned": "z"}
    assert ended.err == (
        "warning: there is no member 'z' of the group 'g' yet: until there is, its shards have no owner\n"
    )
    with member_of(endpoint, "a") as member:
        wait_until(lambda: member.assignment == [b"orders:0", b"orders:1"])


def test_wrong_arguments_change_nothing(any_command: Command, any_server: LocalServer, connect: Connect) -> None:
    for words, message in (
        (["3=a"], "the stream 'orders' has the shards 0 to 2, not 3"),
        (["0"], "give a member for each shard, as SHARD=MEMBER, or --free, got '0'"),
        (["0="], "give a member for each shard, as SHARD=MEMBER, or --free, got '0='"),
        (["x=a"], "a shard must be a number, got 'x'"),
        (["0=a", "0=b"], "shard 0 is named twice"),
        (["--free", "0=a"], "with --free, name shards alone, got '0=a'"),
        ([], "the following arguments are required"),
    ):
        ended = any_command("shards", "assign", "orders", "--shards", "3", "--group", GROUP, *words)
        assert (ended.code, ended.out) == (2, b""), words
        assert message in ended.err
    ended = any_command("shards", "assign", "orders", "--group", GROUP, "0=a")
    assert ended.code == 3
    assert "the stream 'orders' has no shards: no producer has written the key '{orders}:shards'" in ended.err
    assert connect(any_server).keys() == []
