"""How a real server is made to say what `error_texts` has, and to stop saying it: by its settings, rights and keys."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from faults.places import XADD, Lab, Place, Steps, Words, situation
from support.pipelines import KEY

#: What is answered by a text: the last of these commands, which headrace never sends.
COMMANDS: dict[str, Sequence[Words | bytes]] = {
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
    "IDMP of nobody": [("XADD", KEY, "IDMP", "", "i", "*", "payload", "x")],
    "IDMP of nothing": [("XADD", KEY, "IDMP", "p", "", "*", "payload", "x")],
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
    "transaction is off": [("MULTI",), ("XADD", KEY), ("EXEC",)],
    "no group": [("XREADGROUP", "GROUP", "g", "c", "STREAMS", KEY, ">")],
    "quotes": [b'PING "\r\n'],
    "database of no number": [("SELECT", 99)],
}


def _config(says: str, name: str, value: object, back: object, **place: Any) -> None:
    """A setting that can be changed at run time."""

    @situation(says)
    def make(lab: Lab) -> Steps:
        server, client = lab.start()
        yield Place(server, **place)
        client.config_set(name, value)
        yield says
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
    # The server reads no further than the length of the password.
    modes=(),
)


def _right(says: str, rule: str, back: str, *, options: Mapping[str, Any] | None = None, **place: Any) -> None:
    """A right that a user has, loses and gets back."""

    @situation(says)
    def make(lab: Lab) -> Steps:
        server, client = lab.start()
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        given = {"username": "app", "password": "secret", **(options or {})}
        yield Place(server, before=[("AUTH", "app", "secret")], options=given, **place)
        client.execute_command("ACL", "SETUSER", "app", *rule.split())
        yield says
        client.execute_command("ACL", "SETUSER", "app", *back.split())
        yield None


_right("no right to the command", "-xadd", "+xadd")
_right("no right to the key", "resetkeys ~other", "~*")
_right("no right but to read the key", f"resetkeys %R~{KEY}", "~*")
_right("no right to the channel", "resetchannels", "&*", command=("PUBLISH", "c", "x"), modes=())
_right(
    "no right to the group",
    "-xgroup",
    "+xgroup",
    live=False,
    command=("XGROUP", "CREATE", KEY, "g", "$", "MKSTREAM"),
    options={"consumer_group": "g"},
)
_right("no right to the database", "-select", "+select", live=False, command=("SELECT", 3), options={"db": 3})


@situation("wrong password")
def wrong_password(lab: Lab) -> Steps:
    server, client = lab.start()
    client.config_set("requirepass", "another")
    yield Place(server, ("AUTH", "secret"), options={"password": "secret"}, live=False)
    yield "wrong password"
    client.config_set("requirepass", "secret")
    yield None


@situation("password for nothing")
def password_for_nothing(lab: Lab) -> Steps:
    server, client = lab.start()
    yield Place(server, ("AUTH", "secret"), options={"password": "secret"}, live=False)
    yield "password for nothing"
    client.config_set("requirepass", "secret")
    yield None


@situation("protected mode")
def protected_mode(lab: Lab) -> Steps:
    server, client = lab.start(transport="tcp")
    client.config_set("bind", "0.0.0.0")  # protected, it lets nobody in from elsewhere
    assert server.port is not None
    address = (own_address(), server.port)
    options = {"unix_socket": None, "host": address[0]}
    yield Place(server, b"", address=address, options=options, live=False)
    yield "protected mode"
    client.config_set("protected-mode", "no")
    yield None


def own_address() -> str:
    """An address of this machine that is no loopback one: that by which others would be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but 127.0.0.1")
        address: str = probe.getsockname()[0]
    return address


@situation("too many clients")
def too_many_clients(lab: Lab) -> Steps:
    server, client = lab.start()
    client.ping()  # it is the one client
    yield Place(server, b"", live=False)
    client.config_set("maxclients", 1)
    yield "too many clients"
    client.config_set("maxclients", 100)
    yield None


@situation("no stream")
def no_stream(lab: Lab) -> Steps:
    server, client = lab.start()
    yield Place(server)
    client.delete(KEY)
    client.set(KEY, "no stream")
    yield "no stream"
    client.delete(KEY)
    yield None


@situation("replica")
def replica(lab: Lab) -> Steps:
    server, client = lab.start()
    yield Place(server)
    client.replicaof("127.0.0.1", "1")
    yield "replica"
    client.replicaof("NO", "ONE")
    yield None


@situation("replica without its master")
def replica_without_its_master(lab: Lab) -> Steps:
    # One that is read-only would say READONLY.
    server, client = lab.start(config={"replica-serve-stale-data": "no", "replica-read-only": "no"})
    yield Place(server)
    client.replicaof("127.0.0.1", "1")
    yield "replica without its master"
    client.replicaof("NO", "ONE")
    yield None


@situation("unknown command")
def unknown_command(lab: Lab) -> Steps:
    server, _ = lab.start(config={"rename-command": 'XADD ""'})
    # In mode script the refusal comes from the check of what the script needs.
    yield Place(server, live=False, modes=("off", "idmp"))
    yield "unknown command"


@situation("ID below the top")
def id_below_the_top(lab: Lab) -> Steps:
    server, client = lab.start()
    yield Place(server, ("XADD", KEY, "5-1", "payload", "canary"), entry_id="5-1", modes=("off", "script"), live=False)
    client.xadd(KEY, {"payload": "x"}, id="5-2")
    yield "ID below the top"


@situation("stream is exhausted")
def stream_is_exhausted(lab: Lab) -> Steps:
    server, client = lab.start()
    yield Place(server)
    client.xadd(KEY, {"payload": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    yield "stream is exhausted"
    client.delete(KEY)
    yield None
