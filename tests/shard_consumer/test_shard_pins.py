"""Streams that are pinned to a member: who owns them, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import ConfigError, Group
from headrace.testing import LocalServer
from support.groups import GROUP, add
from support.pipelines import endpoint_to
from support.processes import wait_until
from support.shard_consumers import lease_of, member_of, next_batch, sharded, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def test_a_pinned_stream_goes_to_its_member_in_addition_to_its_share(server: LocalServer, client: Any) -> None:
    endpoint = sharded(server, 6)
    revoked: list[bytes] = []
    a = member_of(endpoint, "a")
    b = member_of(endpoint, "b", on_revoked=revoked.extend)
    _, of_b = wait_for_shares([a, b], [3, 3])
    pinned = of_b[0]
    group = Group(endpoint, GROUP)
    group.assign({pinned: "a"})
    wait_until(lambda: pinned in a.assignment)
    assert b.poll(0.0) is None
    assert revoked == [pinned]
    # The five others are shared: three and two.
    wait_for_shares([a, b], [4, 2])
    assert lease_of(client, pinned)["pinned"] == "a"
    # Another member comes: what is pinned stays.
    c = member_of(endpoint, "c")
    of_a, _, _ = wait_for_shares([a, b, c], [3, 2, 1])
    assert pinned in of_a
    group.assign({pinned: None})
    wait_for_shares([a, b, c], [2, 2, 2])
    assert "pinned" not in lease_of(client, pinned)
    for member in (a, b, c):
        member.close()


def test_a_pinned_stream_drains_before_it_moves(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    endpoint = sharded(any_server, 2)
    add(client, 5, key="orders:1")
    a = member_of(endpoint, "a")
    wait_until(lambda: len(a.assignment) == 2)
    batch = next_batch(a)
    b = member_of(endpoint, "b")
    wait_for_shares([a, b], [1, 1])
    # The stream of which the caller has something in hand was not given up.
    assert a.assignment == [b"orders:1"]
    Group(endpoint, GROUP).assign({"orders:1": "b", "orders:0": "a"})
    wait_until(lambda: a.assignment == [b"orders:0"])
    assert lease_of(client, "orders:1")["owner"] == "a"
    a.commit(batch)
    wait_until(lambda: b.assignment == [b"orders:1"])
    report = a.close()
    assert (report.committed, report.fenced) == (5, 0)
    assert lease_of(client, "orders:1")["position"].find('"5-0"') > 0
    b.close()


def test_nobody_takes_what_is_pinned_to_a_member_that_is_not_there(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    endpoint = sharded(any_server, 2)
    Group(endpoint, GROUP).assign({"orders:0": "z"})
    a = member_of(endpoint, "a")
    wait_until(lambda: a.assignment == [b"orders:1"])
    with member_of(endpoint, "z") as z:
        wait_until(lambda: z.assignment == [b"orders:0"])
    assert lease_of(client, "orders:0")["owner"] == ""
    Group(endpoint, GROUP).assign({"orders:0": None})
    wait_until(lambda: len(a.assignment) == 2)
    a.close()


def test_streams_of_a_list_are_pinned(any_server: LocalServer) -> None:
    keys = ["x", "y"]
    members = [member_of(any_server, name, keys) for name in ("a", "b")]
    wait_for_shares(members, [1, 1])
    group = Group(endpoint_to(any_server), GROUP)
    group.assign({"x": "a", "y": "a"}, streams=keys)
    wait_for_shares(members, [2, 0])
    group.assign({}, streams=keys)
    for member in members:
        member.close()


def test_wrong_pins_are_refused(any_server: LocalServer, connect: Connect) -> None:
    group = Group(sharded(any_server, 2), GROUP)
    pins: Any
    for pins, message in (
        ({"orders:7": "a"}, "pins must be of streams that the members share, got 'orders:7'"),
        ({"": "a"}, "streams must be text or bytes, of 1 byte to 512 MiB, got '' \\(empty\\)"),
        ({"orders:0": ""}, "member must be text or bytes, of 1 byte to 512 MiB, got '' \\(empty\\)"),
        ({"orders:0": 7}, "member must be text or bytes"),
        (["orders:0"], "pins must be a mapping from streams to members, got list"),
    ):
        with pytest.raises(ConfigError, match=message):
            group.assign(pins)
    assert connect(any_server).keys() == []
