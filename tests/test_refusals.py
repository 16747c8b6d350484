"""Error replies of a server that is in no state to write: each with its code, its kind, and `written` no."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import StartServer
from headrace import Dispatcher
from headrace.server import LocalServer
from support import Program
from support.pipelines import KEY, endpoint_to, labels, stored
from support.processes import wait_until

Connect = Callable[..., Any]
Label = tuple[str | None, str | None, str | None]

DELIVERED: Label = (None, None, None)


def outcome_of(dispatcher: Dispatcher, payload: bytes = b"x") -> Label:
    dispatcher.produce(payload)
    (label,) = labels(dispatcher.flush())
    return label


def check(server: LocalServer, client: Any, label: Label, leave: Callable[[], object], **options: object) -> None:
    """The server refuses a new connection's message and an old one's; the next flush after `leave` delivers."""
    with Dispatcher(endpoint_to(server), **options) as dispatcher:  # type: ignore[arg-type]
        assert outcome_of(dispatcher, b"refused") == label
        assert outcome_of(dispatcher, b"refused again") == label
        assert stored(client) == []
        leave()
        assert outcome_of(dispatcher, b"taken") == DELIVERED
        assert [payload for _, payload in stored(client)] == [b"taken"]


def test_oom(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.config_set("maxmemory", 1)
    check(server, client, ("permanent", "OOM", "no"), lambda: client.config_set("maxmemory", 0))


def test_wrongtype(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.set(KEY, "no stream")
    check(server, client, ("permanent", "WRONGTYPE", "no"), lambda: client.delete(KEY))


def test_readonly(start_server: StartServer, program: Program, connect: Connect) -> None:
    primary = start_server(program, transport="tcp", config={"repl-diskless-sync-delay": 0})
    replica = start_server(program)
    client = connect(replica)
    client.replicaof("127.0.0.1", str(primary.port))
    wait_until(lambda: client.info("replication")["master_link_status"] == "up")
    check(replica, client, ("permanent", "READONLY", "no"), lambda: client.replicaof("NO", "ONE"))


def test_masterdown(start_server: StartServer, program: Program, connect: Connect) -> None:
    config = {"replica-serve-stale-data": "no", "replica-read-only": "no"}  # a read-only one would say READONLY
    server = start_server(program, config=config)
    client = connect(server)
    client.replicaof("127.0.0.1", "1")
    with Dispatcher(endpoint_to(server)) as dispatcher:
        assert outcome_of(dispatcher) == ("retryable", "MASTERDOWN", "no")
        client.replicaof("NO", "ONE")
        assert outcome_of(dispatcher) == DELIVERED


def test_noreplicas(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.config_set("min-replicas-to-write", 1)
    check(server, client, ("retryable", "NOREPLICAS", "no"), lambda: client.config_set("min-replicas-to-write", 0))


def test_misconf(start_server: StartServer, program: Program, connect: Connect) -> None:
    server = start_server(program, config={"save": "3600 1000000", "dbfilename": "dump.rdb"})
    client = connect(server)
    in_the_way = Path(server.unix_socket).parent / "dump.rdb"
    in_the_way.mkdir()  # the snapshot cannot be renamed to this
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    check(
        server, client, ("retryable", "MISCONF", "no"), lambda: client.config_set("stop-writes-on-bgsave-error", "no")
    )


def test_busy(start_server: StartServer, program: Program, connect: Connect) -> None:
    server = start_server(program, config={"lua-time-limit": 10})
    client, scripting = connect(server), connect(server)

    def run() -> None:
        with contextlib.suppress(redis.ResponseError):  # killed
            scripting.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")
        return False

    thread = threading.Thread(target=run)
    with Dispatcher(endpoint_to(server)) as before, Dispatcher(endpoint_to(server)) as meanwhile:
        assert outcome_of(before) == DELIVERED
        thread.start()
        try:
            wait_until(is_busy)
            for dispatcher in (before, meanwhile):
                assert outcome_of(dispatcher) == ("retryable", "BUSY", "no")
        finally:
            client.execute_command("SCRIPT KILL")
            thread.join()
        assert outcome_of(before) == outcome_of(meanwhile) == DELIVERED
    assert len(stored(client)) == 3


def test_loading(start_server: StartServer, program: Program, connect: Connect) -> None:
    # While it loads, a server looks at its clients after every 2 MiB.
    config = {"save": "3600 1000000", "rdbcompression": "no", "key-load-delay": 2_000}
    server = start_server(program, config=config)
    client = connect(server)
    client.execute_command("EVAL", "for i = 1, 1000 do redis.call('SET', i, string.rep('x', 50000)) end", 0)
    client.save()
    seen: list[Label] = []

    def is_loading() -> bool:
        seen.append(outcome_of(dispatcher))
        return seen[-1][1] == "LOADING"

    restarting = threading.Thread(target=server.restart)
    with Dispatcher(endpoint_to(server)) as dispatcher:
        assert outcome_of(dispatcher) == DELIVERED
        restarting.start()
        try:
            wait_until(is_loading)
        finally:
            restarting.join()
        assert seen[-1] == ("retryable", "LOADING", "no")
        assert outcome_of(dispatcher) == DELIVERED


def test_clusterdown(start_server: StartServer, program: Program, connect: Connect) -> None:
    server = start_server(program, transport="tcp", config={"cluster-enabled": "yes"})  # and no slot has a node
    with Dispatcher(endpoint_to(server)) as dispatcher:
        assert outcome_of(dispatcher) == ("retryable", "CLUSTERDOWN", "no")
        connect(server).execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        wait_until(lambda: outcome_of(dispatcher) == DELIVERED)


def test_too_many_clients(server: LocalServer, connect: Connect) -> None:
    """Said to whoever connects, before any command: the connect fails, and the batch with it."""
    client = connect(server)
    client.config_set("maxclients", 1)
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce(b"refused")
        report = dispatcher.flush()
        assert labels(report) == [("retryable", "ERR", "no")]
        assert "max number of clients" in report.failed[0].message
        client.config_set("maxclients", 100)
        assert outcome_of(dispatcher) == DELIVERED


def test_noauth(start_server: StartServer, program: Program, connect: Connect) -> None:
    server = start_server(program, config={"requirepass": "hunter2"})
    client = connect(server, password="hunter2")

    def open_up() -> None:
        client.config_set("requirepass", "")

    with Dispatcher(endpoint_to(server)) as dispatcher:
        assert outcome_of(dispatcher) == ("permanent", "NOAUTH", "no")
        open_up()
        # What a connection may do is settled when it is made: this one is refused as before, a new one is not.
        with Dispatcher(endpoint_to(server)) as other:
            assert outcome_of(other) == DELIVERED
        assert outcome_of(dispatcher) in (DELIVERED, ("permanent", "NOAUTH", "no"))


@pytest.mark.parametrize("rule", ["-xadd", "resetkeys"])
def test_noperm(server: LocalServer, connect: Connect, rule: str) -> None:
    """A right that is taken away from a live connection: at once, and back again."""
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
    with Dispatcher(endpoint_to(server, username="app", password="secret")) as dispatcher:
        assert outcome_of(dispatcher, b"first") == DELIVERED
        client.execute_command("ACL", "SETUSER", "app", rule)
        assert outcome_of(dispatcher, b"refused") == ("permanent", "NOPERM", "no")
        client.execute_command("ACL", "SETUSER", "app", "+xadd", "~*")
        assert outcome_of(dispatcher, b"second") == DELIVERED
    assert [payload for _, payload in stored(client)] == [b"first", b"second"]
