"""Durability: what `wait_replicas` and `wait_aof` require of the server, and the errors without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace import ConfigError, Dispatcher
from headrace.spark.settings import read
from headrace.testing import LocalServer
from support import Program
from support.delivery import MISSING, to_replicas, waits
from support.fixture_types import Replicate, StartServer
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, batch_of, endpoint_to, labels, payloads_of, stored

Connect = Callable[..., Any]


@pytest.mark.parametrize("appendonly", [True, False])
def test_wait_aof_needs_an_append_only_file(
    start_server: StartServer, program: Program, connect: Connect, appendonly: bool
) -> None:
    """Delivered messages survive a kill; a server without the file is refused before the first message."""
    config = {"appendonly": appendonly, "appendfsync": "everysec"}
    server = start_server(program, config=config)
    payloads = payloads_of(0, 5_000, 100)
    with to_replicas(server, wait_replicas=0, wait_aof=True, wait_timeout=NEVER) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads))
        report = dispatcher.flush()
        if appendonly and program.can("waitaof"):
            assert report.delivered == 5_000
            assert waits(connect(server), "waitaof") == 1
            server.kill()
            server.restart()
            assert [payload for _, payload in stored(connect(server))] == payloads
            return
        # Memory alone may get a file; an older server never has the command.
        kind = "retryable" if program.can("waitaof") else "permanent"
        assert Counter(labels(report)) == {(kind, "ERR", "no"): 5_000}
        why = "appendonly is disabled." if program.can("waitaof") else "; wait_aof needs Redis 7.2 or later, or Valkey"
        assert {failure.message[-len(why) :] for failure in report.failed} == {why}
        assert "WAITAOF was refused: ERR " in report.failed[0].message
        assert connect(server).xlen(KEY) == 0


def test_a_file_that_is_never_synced_fails_the_messages(start_server: StartServer) -> None:
    server = start_server(needs="redis-8.0", config={"appendonly": True, "appendfsync": "no"})
    with to_replicas(server, wait_replicas=0, wait_aof=True, wait_timeout=0.1) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [MISSING]
        assert report.failed[0].message.startswith("the entry was not in the server's append-only file within 0.1 s")


@pytest.mark.parametrize("appendonly", [True, False])
def test_wait_aof_covers_the_files_of_replicas(
    start_server: StartServer, replicate: Replicate, appendonly: bool
) -> None:
    synced = {"appendfsync": "always"}
    master, _ = replicate(config={"appendonly": appendonly, **synced}, appendonly=True, **synced)
    with to_replicas(master, wait_aof=True, wait_timeout=NEVER if appendonly else 0.5) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [DELIVERED if appendonly else MISSING]
        if not appendonly:
            assert "in 1 of 1 append-only files of the server and in 0 of 1 of replicas" in report.failed[0].message


def test_a_user_without_permission_for_wait_is_refused(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    master, _ = any_replicated
    client = connect(master)
    client.acl_setuser("writer", enabled=True, passwords=["+secret"], keys=["*"], commands=["+xadd"])
    with to_replicas(master, {"username": "writer", "password": "secret"}) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [("permanent", "NOPERM", "no")]
        assert report.failed[0].message.startswith("WAIT was refused: NOPERM ")
        assert client.xlen(KEY) == 0
        # A permission revoked later shows in the outcomes of written messages.
        client.execute_command("ACL", "SETUSER", "writer", "+wait")
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
        client.execute_command("ACL", "SETUSER", "writer", "-wait")
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [MISSING]
        assert report.failed[0].message.startswith("WAIT was refused: NOPERM ")
        assert client.xlen(KEY) == 2


def test_writes_to_a_replica_fail_with_readonly(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """The code is READONLY, which a failover fixes, and not an error of WAIT."""
    _, replica = any_replicated
    with to_replicas(replica) as dispatcher:
        dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [("permanent", "READONLY", "no")]
        connect(replica).config_set("replica-read-only", "no")
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [MISSING]
        assert "WAIT was refused: ERR WAIT cannot be used with replica instances" in report.failed[0].message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_replicas": -1}, "wait_replicas must be an integer of at least 0, or 'all', got -1"),
        ({"wait_replicas": 1, "wait_timeout": 0}, "wait_timeout must be a number of seconds from 0.001 to 3600, got 0"),
        ({"wait_aof": 1}, "wait_aof must be a boolean"),
        ({"wait_aof": True, "wait_every": 0}, "wait_every must be an integer from 1 to 1000000, got 0"),
        ({"wait_timeout": 2}, "wait_timeout needs wait_replicas or wait_aof"),
        ({"wait_every": 1}, "wait_every needs wait_replicas or wait_aof"),
    ],
)
def test_invalid_options_are_refused(any_server: LocalServer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dispatcher(endpoint_to(any_server), **options)


def test_spark_accepts_the_options(any_replicated: tuple[LocalServer, LocalServer]) -> None:
    master, _ = any_replicated
    options = {"unix_socket": master.unix_socket, "stream_key": KEY, "wait_replicas": "2", "wait_timeout": "0.05"}
    with read(options, streaming=False).make_dispatcher() as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        # Spark provides at-least-once: the dispatcher does not retry.
        assert (labels(report), report.retries) == ([MISSING], 0)
    with pytest.raises(ConfigError, match="wait_timeout must be a number of seconds"):
        read({**options, "wait_timeout": "0"}, streaming=False)
