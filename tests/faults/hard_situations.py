"""How a real server is made to say what `error_texts` has: files, restarts, endless scripts, slots."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from faults.error_texts import CLASSIFY
from faults.places import Lab, Place, Steps, ask, situation
from headrace.testing import LocalServer
from support.processes import wait_until


@situation("snapshot failed")
def snapshot_failed(lab: Lab) -> Steps:
    server, client = lab.start(config={"save": "3600 1000000", "dbfilename": "dump.rdb"})
    yield Place(server)
    (Path(server.unix_socket).parent / "dump.rdb").mkdir()  # the snapshot cannot be renamed to this
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield "snapshot failed"
    client.config_set("stop-writes-on-bgsave-error", "no")
    yield None


@situation("file is full")
def file_is_full(lab: Lab) -> Steps:
    server, client = lab.start(config={"appendonly": "yes", "appendfsync": "everysec"})
    yield Place(server, live=False)
    server.kill()
    (file,) = [path for path in Path(server.unix_socket).parent.rglob("*.aof") if "base" not in path.name]
    file.unlink()
    file.symlink_to("/dev/full")
    server.restart()
    # The write that is not kept has been acknowledged before the server knows.
    wait_until(lambda: _refused(client, "SET", "x", "x") == "MISCONF")
    yield "file is full"
    client.config_set("appendonly", "no")
    yield None


def _refused(client: Any, *command: str) -> str:
    """The code of a command's error."""
    try:
        client.execute_command(*command)
    except redis.ResponseError as error:
        return str(error).split()[0]
    return ""


@situation("loading")
def loading(lab: Lab) -> Steps:
    # While it loads, a server looks at its clients after so many bytes: always 2 MiB in Redis 6.2.
    config = {"save": "3600 1000000", "rdbcompression": "no"}
    if lab.program.numbers < (7,):
        config["key-load-delay"] = "40000"
        keys, size = 50, 2 << 20
    else:
        config |= {"loading-process-events-interval-bytes": "1024", "key-load-delay": "10000"}
        keys, size = 120, 2_000
    server, client = lab.start(config=config)
    yield Place(server, classify=CLASSIFY[:1])
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
        with Place(server).connect() as connection:
            return ask(connection, ("PING",)).startswith(b"-LOADING")
    except (OSError, EOFError):
        return False  # not there yet


@situation("busy with a script")
def busy_with_a_script(lab: Lab) -> Steps:
    yield from _busy(lab, "busy with a script", lambda client: client.eval("while true do end", 0), "SCRIPT KILL")


@situation("busy with a function")
def busy_with_a_function(lab: Lab) -> Steps:
    library = "#!lua name=busy\nredis.register_function('busy', function() while true do end end)"

    def run(client: Any) -> None:
        client.function_load(library)
        client.fcall("busy", 0)

    yield from _busy(lab, "busy with a function", run, "FUNCTION KILL")


def _busy(lab: Lab, says: str, run: Callable[[Any], object], kill: str) -> Steps:
    server, client = lab.start(config={"lua-time-limit": 10})
    running = lab.connect(server)

    def until_killed() -> None:
        with contextlib.suppress(redis.ResponseError):  # killed
            run(running)

    thread = threading.Thread(target=until_killed)
    yield Place(server)
    thread.start()
    try:
        wait_until(lambda: _refused(client, "PING") == "BUSY")
        yield says
    finally:
        client.execute_command(kill)
        thread.join()
    yield None


#: The slot of `KEY`, and the name of another node.
SLOT = 9102
OTHER = "0" * 39 + "1"


@situation(
    "slot of nobody",
    "database in a cluster",
    "cluster is down",
    "cluster only reads",
    "two slots",
    "slot on its way",
    "slot of another",
    "slot on its way, two keys",
)
def cluster(lab: Lab) -> Steps:
    server, client = lab.start(transport="tcp", config={"cluster-enabled": "yes"})
    place = Place(server, live=False)

    def cluster(*command: str | int) -> Any:
        return client.execute_command("CLUSTER", *command)

    assert server.port is not None
    yield place
    yield "slot of nobody"
    yield replace(place, command=("SELECT", 1), options={"db": 1})
    yield "database in a cluster"
    cluster("ADDSLOTS", SLOT)
    yield place
    yield "cluster is down"
    client.config_set("cluster-allow-reads-when-down", "yes")
    yield "cluster only reads"
    # Another node, which nobody has to find: it stands in the file.
    myself = cluster("MYID").decode()
    server.kill()
    (Path(server.unix_socket).parent / "nodes.conf").write_text(
        f"{myself} 127.0.0.1:{server.port}@{server.port + 10_000} myself,master - 0 0 1 connected 0-16383\n"
        f"{OTHER} 127.0.0.1:7001@17001 master - 0 0 2 connected\n"
        "vars currentEpoch 2 lastVoteEpoch 0\n"
    )
    server.restart()
    wait_until(lambda: b"cluster_state:ok" in cluster("INFO"))  # a node that starts takes two seconds
    yield None
    yield replace(place, command=("MSET", "a", 1, "b", 2), modes=())
    yield "two slots"
    yield replace(place, live=True)
    client.flushall()
    cluster("SETSLOT", SLOT, "MIGRATING", OTHER)
    yield "slot on its way"
    cluster("SETSLOT", SLOT, "STABLE")
    yield None
    client.flushall()
    cluster("SETSLOT", SLOT, "NODE", OTHER)
    yield "slot of another"
    cluster("SETSLOT", SLOT, "NODE", myself)
    yield None
    client.flushall()
    cluster("SETSLOT", SLOT, "NODE", OTHER)
    cluster("SETSLOT", SLOT, "IMPORTING", OTHER)
    yield replace(place, before=[("ASKING",)], command=("MSET", "{events}a", 1, "{events}b", 2), modes=())
    yield "slot on its way, two keys"
