"""Scenarios in which a server returns an error of `error_texts` because of its settings, permissions or keys."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from faults.scenario import XADD, Command, ErrorSource, ScenarioTools, Steps, scenario
from support.pipelines import KEY

#: Commands that headrace never sends; the server answers the last of each list with the error text of that name.
COMMANDS: dict[str, Sequence[Command | bytes]] = {
    "too large": [("CONFIG", "SET", "proto-max-bulk-len", 1 << 20), b"*1\r\n$1048577\r\n"],
    "protocol 9": [("HELLO", 9)],
    "odd arguments": [("XADD", KEY, "*", "payload")],
    "invalid ID": [("XADD", KEY, "yesterday", "payload", "x")],
    "ID zero": [("XADD", KEY, "0-0", "payload", "x")],
    "negative MAXLEN": [("XADD", KEY, "MAXLEN", -1, "*", "payload", "x")],
    "MAXLEN without a number": [("XADD", KEY, "MAXLEN", "many", "*", "payload", "x")],
    "negative LIMIT": [("XADD", KEY, "MAXLEN", "~", 5, "LIMIT", -1, "*", "payload", "x")],
    "LIMIT of nothing": [("XADD", KEY, "LIMIT", 1, "*", "payload", "x")],
    "LIMIT without ~": [("XADD", KEY, "MAXLEN", 5, "LIMIT", 1, "*", "payload", "x")],
    "MAXLEN and MINID": [("XADD", KEY, "MAXLEN", 5, "MINID", 1, "*", "payload", "x")],
    "KEEPREF and DELREF": [("XADD", KEY, "KEEPREF", "DELREF", "*", "payload", "x")],
    "IDMP with an ID": [("XADD", KEY, "IDMP", "p", "i", "5-1", "payload", "x")],
    "IDMP without a producer": [("XADD", KEY, "IDMP", "", "i", "*", "payload", "x")],
    "IDMP without an ID": [("XADD", KEY, "IDMP", "p", "", "*", "payload", "x")],
    "IDMP twice": [("XADD", KEY, "IDMP", "p", "i", "IDMP", "p", "i", "*", "payload", "x")],
    "sequence is exhausted": [("XADD", KEY, f"5-{2**64 - 1}", "a", "b"), ("XADD", KEY, "5-*", "a", "b")],
    "no such script": [("EVALSHA", "0" * 40, 0)],
    "unknown command in a script": [("EVAL", "return redis.pcall('XNONE')", 0)],
    "redirected": [("REPLICAOF", "127.0.0.1", 1), ("CLIENT", "CAPA", "REDIRECT"), XADD],
    "WAIT on a replica": [("REPLICAOF", "127.0.0.1", 1), ("WAIT", 1, 1)],
    "too many arguments": [b"*99999999999\r\n"],
    "no bulk string": [b"*1\r\nPING\r\n"],
    "line too long": [b"x" * 70_000],
    "count too long": [b"*" + b"1" * 70_000],
    "length too long": [b"*1\r\n$" + b"1" * 70_000],
    "script is not busy": [("SCRIPT", "KILL")],
    "key is busy": [("SET", KEY, "x"), ("RESTORE", KEY, 0, "x")],
    "aborted transaction": [("MULTI",), ("XADD", KEY), ("EXEC",)],
    "no group": [("XREADGROUP", "GROUP", "g", "c", "STREAMS", KEY, ">")],
    "quotes": [b'PING "\r\n'],
    "database out of range": [("SELECT", 99)],
}


def _config(error_name: str, name: str, value: object, back: object, **source: Any) -> None:
    """Register a scenario with a setting that can be changed at runtime."""

    @scenario(error_name)
    def make(tools: ScenarioTools) -> Steps:
        server, client = tools.start()
        yield ErrorSource(server, **source)
        client.config_set(name, value)
        yield error_name
        client.config_set(name, back)
        yield None


_config("memory is full", "maxmemory", 1, 0)
_config("too few replicas", "min-replicas-to-write", 1, 0)
_config("no password", "requirepass", "secret", "", live=False)
_config("no password in HELLO", "requirepass", "secret", "", live=False, command=("HELLO", 2), modes=())
_config("too many arguments before AUTH", "requirepass", "secret", "", live=False, command=b"*99\r\n", modes=())
_config(
    "too large before AUTH",
    "requirepass",
    "secret",
    "",
    live=False,
    command=b"*2\r\n$4\r\nAUTH\r\n$20000\r\n",
    # The server stops reading at the length of the password.
    modes=(),
)


def _permission(
    error_name: str, rule: str, back: str, *, options: Mapping[str, Any] | None = None, **source: Any
) -> None:
    """Register a scenario in which a user has, loses and regains a permission."""

    @scenario(error_name)
    def make(tools: ScenarioTools) -> Steps:
        server, client = tools.start()
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        given = {"username": "app", "password": "secret", **(options or {})}
        yield ErrorSource(server, before=[("AUTH", "app", "secret")], options=given, **source)
        client.execute_command("ACL", "SETUSER", "app", *rule.split())
        yield error_name
        client.execute_command("ACL", "SETUSER", "app", *back.split())
        yield None


_permission("no permission for the command", "-xadd", "+xadd")
_permission("no permission for the key", "resetkeys ~other", "~*")
_permission("read-only permission for the key", f"resetkeys %R~{KEY}", "~*")
_permission("no permission for the channel", "resetchannels", "&*", command=("PUBLISH", "c", "x"), modes=())
_permission(
    "no permission for the group",
    "-xgroup",
    "+xgroup",
    live=False,
    command=("XGROUP", "CREATE", KEY, "g", "$", "MKSTREAM"),
    options={"consumer_group": "g"},
)
_permission(
    "no permission for the database", "-select", "+select", live=False, command=("SELECT", 3), options={"db": 3}
)


@scenario("wrong password")
def wrong_password(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    client.config_set("requirepass", "another")
    yield ErrorSource(server, ("AUTH", "secret"), options={"password": "secret"}, live=False)
    yield "wrong password"
    client.config_set("requirepass", "secret")
    yield None


@scenario("unexpected password")
def unexpected_password(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    yield ErrorSource(server, ("AUTH", "secret"), options={"password": "secret"}, live=False)
    yield "unexpected password"
    client.config_set("requirepass", "secret")
    yield None


@scenario("protected mode")
def protected_mode(tools: ScenarioTools) -> Steps:
    server, client = tools.start(transport="tcp")
    client.config_set("bind", "0.0.0.0")  # protected mode refuses connections from elsewhere
    assert server.port is not None
    address = (own_address(), server.port)
    options = {"unix_socket": None, "host": address[0]}
    yield ErrorSource(server, b"", address=address, options=options, live=False)
    yield "protected mode"
    client.config_set("protected-mode", "no")
    yield None


def own_address() -> str:
    """The address of this machine for traffic to other hosts, which is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # UDP: connect sends nothing
        except OSError:
            pytest.skip("this machine has no address but 127.0.0.1")
        address: str = probe.getsockname()[0]
    return address


@scenario("too many clients")
def too_many_clients(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    client.ping()  # takes the only slot
    yield ErrorSource(server, b"", live=False)
    client.config_set("maxclients", 1)
    yield "too many clients"
    client.config_set("maxclients", 100)
    yield None


@scenario("no stream")
def no_stream(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    yield ErrorSource(server)
    client.delete(KEY)
    client.set(KEY, "no stream")
    yield "no stream"
    client.delete(KEY)
    yield None


@scenario("replica")
def replica(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    yield ErrorSource(server)
    client.replicaof("127.0.0.1", "1")
    yield "replica"
    client.replicaof("NO", "ONE")
    yield None


@scenario("replica without its master")
def replica_without_its_master(tools: ScenarioTools) -> Steps:
    # A read-only replica would return READONLY.
    server, client = tools.start(config={"replica-serve-stale-data": "no", "replica-read-only": "no"})
    yield ErrorSource(server)
    client.replicaof("127.0.0.1", "1")
    yield "replica without its master"
    client.replicaof("NO", "ONE")
    yield None


@scenario("unknown command")
def unknown_command(tools: ScenarioTools) -> Steps:
    server, _ = tools.start(config={"rename-command": 'XADD ""'})
    # In script mode the preflight of the script already fails.
    yield ErrorSource(server, live=False, modes=("off", "idmp"))
    yield "unknown command"


@scenario("ID below the top")
def id_below_the_top(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    yield ErrorSource(
        server, ("XADD", KEY, "5-1", "payload", "canary"), entry_id="5-1", modes=("off", "script"), live=False
    )
    client.xadd(KEY, {"payload": "x"}, id="5-2")
    yield "ID below the top"


@scenario("stream is exhausted")
def stream_is_exhausted(tools: ScenarioTools) -> Steps:
    server, client = tools.start()
    yield ErrorSource(server)
    client.xadd(KEY, {"payload": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    yield "stream is exhausted"
    client.delete(KEY)
    yield None
