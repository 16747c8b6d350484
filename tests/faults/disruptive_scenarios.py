"""Scenarios in which a server returns an error of `error_texts` because of files, restarts, busy scripts or slots."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from faults.error_texts import CLASSIFY
from faults.scenario import ErrorSource, ScenarioTools, Steps, ask, scenario
from headrace.testing import LocalServer
from support.processes import wait_until


@scenario("snapshot failed")
def snapshot_failed(tools: ScenarioTools) -> Steps:
    server, client = tools.start(config={"save": "3600 1000000", "dbfilename": "dump.rdb"})
    yield ErrorSource(server)
    (Path(server.unix_socket).parent / "dump.rdb").mkdir()  # the snapshot cannot replace a folder
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield "snapshot failed"
    client.config_set("stop-writes-on-bgsave-error", "no")
    yield None


@scenario("file is full")
def file_is_full(tools: ScenarioTools) -> Steps:
    server, client = tools.start(config={"appendonly": "yes", "appendfsync": "everysec"})
    yield ErrorSource(server, live=False)
    server.kill()
    (file,) = [path for path in Path(server.unix_socket).parent.rglob("*.aof") if "base" not in path.name]
    file.unlink()
    file.symlink_to("/dev/full")
    server.restart()
    # The server acknowledges one write before it notices that the file is full.
    wait_until(lambda: _refused(client, "SET", "x", "x") == "MISCONF")
    yield "file is full"
    client.config_set("appendonly", "no")
    yield None


def _refused(client: Any, *command: str) -> str:
    """The code of the error that a command returns."""
    try:
        client.execute_command(*command)
    except redis.ResponseError as error:
        return str(error).split()[0]
    return ""


@scenario("loading")
def loading(tools: ScenarioTools) -> Steps:
    # A loading server serves its clients each time it has read this many bytes; in Redis 6.2 always 2 MiB.
    config = {"save": "3600 1000000", "rdbcompression": "no"}
    if tools.program.numbers < (7,):
        config["key-load-delay"] = "40000"
        keys, size = 50, 2 << 20
    else:
        config |= {"loading-process-events-interval-bytes": "1024", "key-load-delay": "10000"}
        keys, size = 120, 2_000
    server, client = tools.start(config=config)
    yield ErrorSource(server, classify=CLASSIFY[:1])
    client.eval(f"for i = 1, {keys} do redis.call('SET', i, string.rep('x', {size})) end", 0)
    client.save()
    server.kill()
    restarting = threading.Thread(target=server.restart)
    restarting.start()
    try:
        wait_until(lambda: _is_loading(server))
        yield "loading"
    finally:
        restarting.join()
    yield None


def _is_loading(server: LocalServer) -> bool:
    try:
        with ErrorSource(server).connect() as connection:
            return ask(connection, ("PING",)).startswith(b"-LOADING")
    except (OSError, EOFError):
        return False  # not listening yet


@scenario("busy with a script")
def busy_with_a_script(tools: ScenarioTools) -> Steps:
    yield from _busy(tools, "busy with a script", lambda client: client.eval("while true do end", 0), "SCRIPT KILL")


@scenario("busy with a function")
def busy_with_a_function(tools: ScenarioTools) -> Steps:
    library = "#!lua name=busy\nredis.register_function('busy', function() while true do end end)"

    def run(client: Any) -> None:
        client.function_load(library)
        client.fcall("busy", 0)

    yield from _busy(tools, "busy with a function", run, "FUNCTION KILL")


def _busy(tools: ScenarioTools, error_name: str, run: Callable[[Any], object], kill: str) -> Steps:
    server, client = tools.start(config={"lua-time-limit": 10})
    running = tools.connect(server)

    def until_killed() -> None:
        with contextlib.suppress(redis.ResponseError):  # killed
            run(running)

    thread = threading.Thread(target=until_killed)
    yield ErrorSource(server)
    thread.start()
    try:
        wait_until(lambda: _refused(client, "PING") == "BUSY")
        yield error_name
    finally:
        client.execute_command(kill)
        thread.join()
    yield None


#: The slot of `KEY`, and the ID of another node.
SLOT = 9102
OTHER = "0" * 39 + "1"


@scenario(
    "unassigned slot",
    "database in a cluster",
    "cluster is down",
    "cluster only reads",
    "two slots",
    "migrating slot",
    "slot of another node",
    "migrating slot, two keys",
)
def cluster(tools: ScenarioTools) -> Steps:
    # The other node does not exist: once it is missed, this one is in a minority, and the cluster is down.
    config = {"cluster-enabled": "yes", "cluster-node-timeout": "600000"}
    server, client = tools.start(transport="tcp", config=config)
    source = ErrorSource(server, live=False)

    def cluster(*command: str | int) -> Any:
        return client.execute_command("CLUSTER", *command)

    assert server.port is not None
    yield source
    yield "unassigned slot"
    yield replace(source, command=("SELECT", 1), options={"db": 1})
    yield "database in a cluster"
    cluster("ADDSLOTS", SLOT)
    yield source
    yield "cluster is down"
    client.config_set("cluster-allow-reads-when-down", "yes")
    yield "cluster only reads"
    # The configuration file names another node, which does not exist.
    myself = cluster("MYID").decode()
    server.kill()
    (Path(server.unix_socket).parent / "nodes.conf").write_text(
        f"{myself} 127.0.0.1:{server.port}@{server.port + 10_000} myself,master - 0 0 1 connected 0-16383\n"
        f"{OTHER} 127.0.0.1:7001@17001 master - 0 0 2 connected\n"
        "vars currentEpoch 2 lastVoteEpoch 0\n"
    )
    server.restart()
    wait_until(lambda: b"cluster_state:ok" in cluster("INFO"))  # a starting node takes two seconds
    yield None
    yield replace(source, command=("MSET", "a", 1, "b", 2), modes=())
    yield "two slots"
    yield replace(source, live=True)
    client.flushall()
    cluster("SETSLOT", SLOT, "MIGRATING", OTHER)
    yield "migrating slot"
    cluster("SETSLOT", SLOT, "STABLE")
    yield None
    client.flushall()
    cluster("SETSLOT", SLOT, "NODE", OTHER)
    yield "slot of another node"
    cluster("SETSLOT", SLOT, "NODE", myself)
    yield None
    client.flushall()
    cluster("SETSLOT", SLOT, "NODE", OTHER)
    cluster("SETSLOT", SLOT, "IMPORTING", OTHER)
    yield replace(source, before=[("ASKING",)], command=("MSET", "{events}a", 1, "{events}b", 2), modes=())
    yield "migrating slot, two keys"
