"""LocalSentinel: what holds once it has started, and what it says if it does not start."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace.errors import LocalServerError
from headrace.testing import LocalSentinel
from support import Program
from support.sentinels import StartGroup


def test_all_sentinels_have_reached_all_servers_once_a_group_has_started(group: LocalSentinel) -> None:
    for sentinel in group.sentinels:
        with redis.Redis(unix_socket_path=sentinel.unix_socket) as client:
            found: dict[str, list[dict[str, Any]]] = {
                "replicas": client.sentinel_slaves(group.master_name),
                "sentinels": client.sentinel_sentinels(group.master_name),
            }
        ports = {name: {state["port"] for state in states} for name, states in found.items()}
        assert ports == {
            "replicas": {server.port for server in group.servers[1:]},
            "sentinels": {other.port for other in group.sentinels if other is not sentinel},
        }
        assert [state["flags"] for state in found["replicas"]] == ["slave"] * 2
        assert [state["flags"] for state in found["sentinels"]] == ["sentinel"] * 2
    assert group.master() is group.servers[0]


def test_a_new_group_can_fail_over_at_once_and_keeps_what_was_written(group: LocalSentinel) -> None:
    with redis.Redis(unix_socket_path=group.servers[0].unix_socket) as client:
        client.set("key", "value")
    new = group.fail_over()
    assert new in group.servers[1:]
    with redis.Redis(unix_socket_path=new.unix_socket) as client:
        assert client.get("key") == b"value"


def test_the_error_says_which_replicas_are_missing(program: Program) -> None:
    config = {"rename-command": ['SYNC ""', 'PSYNC ""']}
    with pytest.raises(LocalServerError) as raised:
        LocalSentinel(program.path, config=config, start_timeout=0.3)
    assert str(raised.value) == "the replicas made no progress for 0.3 s: the master has 0 of 2 replicas online"
    assert len(raised.value.__notes__) == 3


def test_the_error_says_what_the_sentinels_have_reached(group: LocalSentinel) -> None:
    group.sentinels[2].kill()
    with pytest.raises(LocalServerError) as raised:
        group._wait("the sentinels", group._strange, 0.3)
    lacking = [
        *(f"sentinel {number} of 3 has reached 1 of 2 others and 2 of 2 replicas" for number in (1, 2)),
        "sentinel 3 of 3 has reached 0 of 2 others and 0 of 2 replicas",
    ]
    assert str(raised.value) == f"the sentinels made no progress for 0.3 s: {', '.join(lacking)}"


def test_the_error_says_why_there_is_no_failover(start_group: StartGroup) -> None:
    group = start_group(replicas=0, sentinels=1)
    port = group.servers[0].port
    with pytest.raises(LocalServerError) as raised:
        group.fail_over(timeout=0.3)
    assert str(raised.value).startswith(
        f"the failover made no progress for 0.3 s: the sentinels name {port} as the port of the master -NOGOODSLAVE"
    )
