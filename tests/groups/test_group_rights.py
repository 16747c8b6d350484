"""ACL users of `Group` and `inspect`: the fewest rights that work, and which one an error names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace import CommandError, Endpoint, Group
from headrace.testing import LocalServer
from support import Certs
from support.endpoints import CANARY
from support.groups import GROUP, add, endpoint_for, read, row
from support.paths import ROOT
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: A call, and the ACL rules that it needs beside the key.
CALLS: dict[str, tuple[Callable[[Group], object], list[str]]] = {
    "create": (lambda g: g.create(), ["xgroup|create"]),
    "set_position": (lambda g: g.set_position("earliest"), ["xgroup|setid"]),
    "pending": (lambda g: g.pending(), ["xpending"]),
    "claim": (lambda g: g.claim("c", ["1-0"]), ["xclaim"]),
    "delete_consumer": (lambda g: g.delete_consumer("idle"), ["eval", "xinfo|consumers", "xgroup|delconsumer"]),
    "remove_idle_consumers": (
        lambda g: g.remove_idle_consumers(0),
        ["eval", "xinfo|consumers", "xgroup|delconsumer"],
    ),
    "destroy": (lambda g: g.destroy(), ["xgroup|destroy"]),
    "inspect": (
        lambda g: headrace.inspect(g.endpoint),
        ["xinfo|stream", "xinfo|groups", "xinfo|consumers", "xpending"],
    ),
    "inspect a pattern": (lambda g: headrace.inspect(g.endpoint, "events*", groups=False), ["scan", "xinfo|stream"]),
}


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    """The stream with a group, of which a consumer has an entry pending and another one has not."""
    client = connect(server)
    add(client, 3)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 1)
    client.xgroup_createconsumer(KEY, GROUP, "idle")
    return client


def allow(client: Any, *rules: str, key: str = KEY) -> None:
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", f"~{key}", *(f"+{rule}" for rule in rules))


@pytest.mark.parametrize("name", CALLS)
def test_the_minimal_rights_are_sufficient(server: LocalServer, client: Any, name: str) -> None:
    call, rules = CALLS[name]
    group = Group(endpoint_for(server, "u"), GROUP)
    allow(client, *rules)
    call(group)


@pytest.mark.parametrize(("name", "missing"), [(name, rule) for name, (_, rules) in CALLS.items() for rule in rules])
def test_the_missing_right_is_named(server: LocalServer, client: Any, name: str, missing: str) -> None:
    call, rules = CALLS[name]
    allow(client, *(rule for rule in rules if rule != missing))
    with pytest.raises(CommandError) as refused:
        call(Group(endpoint_for(server, "u"), GROUP))
    assert (refused.value.code, refused.value.kind) == ("NOPERM", "permanent")
    command = missing.upper().replace("|", " ")
    key = "" if missing == "scan" else f" ~{KEY}"
    assert str(refused.value).startswith(f"{command} was refused: the ACL user needs +{missing}{key}: ")


@pytest.mark.parametrize("name", ["pending", "delete_consumer", "inspect"])
def test_a_missing_right_to_the_key_is_named(server: LocalServer, client: Any, name: str) -> None:
    call, rules = CALLS[name]
    allow(client, *rules, key="other")
    with pytest.raises(CommandError, match=rf"the ACL user needs \+\S+ ~{KEY}: NOPERM"):
        call(Group(endpoint_for(server, "u"), GROUP))


def test_memory_and_time_are_null_without_their_rights(server: LocalServer, client: Any) -> None:
    rules = CALLS["inspect"][1]
    allow(client, *rules)
    found = headrace.inspect(endpoint_for(server, "u"))
    assert (row(found.streams)["memory"], found.now) == (None, None)
    allow(client, *rules, "memory|usage", "time")
    found = headrace.inspect(endpoint_for(server, "u"))
    assert row(found.streams)["memory"] > 0
    assert found.now is not None


def test_group_rights_are_not_needed_without_groups(server: LocalServer, client: Any) -> None:
    allow(client, "xinfo|stream")
    assert len(headrace.inspect(endpoint_for(server, "u"), groups=False).streams) == 1


@pytest.mark.parametrize("name", ["pending", "inspect"])
def test_a_wrong_password_is_refused_and_not_shown(server: LocalServer, client: Any, name: str) -> None:
    allow(client, "@all")
    endpoint = endpoint_to(server, username="u", password=CANARY)
    with pytest.raises(CommandError, match="AUTH was refused: WRONGPASS") as refused:
        CALLS[name][0](Group(endpoint, GROUP))
    assert refused.value.code == "WRONGPASS"
    assert CANARY not in repr(refused.value) + repr(Group(endpoint, GROUP))


def test_an_unset_password_variable_raises_a_retryable_error(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, password_env="HEADRACE_TEST_NO_SUCH_VARIABLE")
    with pytest.raises(CommandError, match="HEADRACE_TEST_NO_SUCH_VARIABLE") as refused:
        Group(endpoint, GROUP).pending()
    assert (refused.value.code, refused.value.kind) == ("CONFIG", "retryable")


@pytest.mark.needs("tls")
def test_over_tls(tls_server: LocalServer, certs: Certs) -> None:
    endpoint = endpoint_to(tls_server, tls_ca_cert=certs.ca)
    group = Group(endpoint, GROUP)
    assert group.create()
    assert row(headrace.inspect(endpoint).groups)["name"] == GROUP
    with pytest.raises(headrace.ConnectionFailedError, match="certificate"):
        Group(endpoint_to(tls_server, tls_ca_cert=certs.other_ca), GROUP).pending()


def test_a_replica_can_be_inspected_but_not_changed(replicated: tuple[LocalServer, LocalServer]) -> None:
    """It can be looked at, and not changed."""
    master, replica = replicated
    group = Group(Endpoint(unix_socket=master.unix_socket, stream_key=KEY), GROUP)
    group.create()
    there = Endpoint(unix_socket=replica.unix_socket, stream_key=KEY)
    wait_until(lambda: len(headrace.inspect(there).groups) == 1)
    assert len(Group(there, GROUP).pending()) == 0
    with pytest.raises(CommandError, match="XGROUP DESTROY was refused: READONLY") as refused:
        Group(there, GROUP).destroy()
    assert refused.value.code == "READONLY"


def test_every_rule_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "groups.md").read_text()
    rules = {rule for _, rules in CALLS.values() for rule in rules} | {"time", "memory|usage"}
    assert len(rules) > 10
    assert [rule for rule in sorted(rules) if f"`+{rule}`" not in text.replace("\\|", "|")] == []
