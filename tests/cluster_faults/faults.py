"""What happens to the owner of a stream. Each fault returns only once it is proven to have happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import redis

from headrace.errors import LocalServerError
from headrace.testing import LocalCluster, LocalServer
from support.clusters import Move, another_master, move_as_one, moves_as_one
from support.processes import stop, wait_until

from .proxied import ProxiedCluster
from .strikes import END, Strike, end, late

Fault = Callable[[ProxiedCluster, str, random.Random], None]

#: Seconds for a failover, and for what was killed to follow again.
PATIENCE = 40.0


def move_by_keys(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    cluster.move_slot(key, another_master(cluster, key))


def move_whole(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    """As servers do it by themselves, if these can."""
    target = another_master(cluster, key)
    if moves_as_one(cluster):
        move_as_one(cluster, key, target)
    else:
        cluster.move_slot(key, target)


def move_slowly(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The stream is there before its slot is: ASK for a while."""
    cluster.move_slot(key, another_master(cluster, key), pause=chance.uniform(0.05, 0.4))


def move_in_turns(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The keys of the slot move one by one, in any order: streams and markers are at two nodes for a while."""
    move = Move(cluster, key, another_master(cluster, key))
    keys = move.left()
    chance.shuffle(keys)
    for one in keys:
        move.take(one)
        time.sleep(chance.uniform(0.0, 0.1))
    move.finish()


def begin_and_abandon(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """A move that is taken back before the stream was moved."""
    slot, source, target = cluster.slot(key), cluster.owner(key), another_master(cluster, key)
    with (
        redis.Redis(unix_socket_path=target.unix_socket) as there,
        redis.Redis(unix_socket_path=source.unix_socket) as here,
    ):
        there.execute_command(
            "CLUSTER", "SETSLOT", slot, "IMPORTING", str(here.execute_command("CLUSTER MYID").decode())
        )
        here.execute_command(
            "CLUSTER", "SETSLOT", slot, "MIGRATING", str(there.execute_command("CLUSTER MYID").decode())
        )
        time.sleep(chance.uniform(0.0, 0.2))
        there.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        here.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


def fail_over(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    cluster.fail_over(key)


def force(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    """Without the master, which does not send its last rows to the replica first."""
    cluster.fail_over(key, "FORCE")


def take_over(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    """Without the other masters either."""
    cluster.fail_over(key, "TAKEOVER")


def freeze_replicas(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The owner goes on alone for a while."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    frozen = cluster.replicas_of(owner)
    for replica in frozen:
        os.kill(replica.pid, signal.SIGSTOP)
    try:
        time.sleep(chance.uniform(0.1, 0.5))
    finally:
        for replica in frozen:
            os.kill(replica.pid, signal.SIGCONT)


def restart_in_turn(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    """As for a new version: the replica first, then the owner behind a failover in agreement."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    replica = cluster.replicas_of(owner)[0]
    replica.kill()
    cluster.restart(replica)
    wait_until(lambda: replica in cluster.replicas_of(owner), PATIENCE)
    cluster.fail_over(key)
    owner.kill()
    cluster.restart(owner)
    wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def end_connections(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    with redis.Redis(unix_socket_path=cluster.owner(key).unix_socket) as client:
        # Behind a move the dispatcher may not be connected to the new owner yet.
        wait_until(
            lambda: int(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")) > 0, PATIENCE
        )


def cut(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The connection to the owner ends at some byte, in either direction."""
    strike = Strike(cluster.proxy_of(cluster.owner(key)), key, chance, END, end(chance), tls=cluster.tls)
    strike.wait(PATIENCE)


def cut_target(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """So does that to the node that a slot moves to, at one of its first bytes: of the row that goes there alone."""
    target = another_master(cluster, key)
    most = chance.choice([200, 2_000])
    strike = Strike(cluster.proxy_of(target), key, chance, most, end(chance), tls=cluster.tls)
    cluster.move_slot(key, target, pause=chance.uniform(0.0, 0.3))
    strike.wait(PATIENCE)


def delay(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The connection ends, and the owner gets the last bytes of it only behind those of the next one."""
    act = late(chance.uniform(0.1, 1.0))
    strike = Strike(cluster.proxy_of(cluster.owner(key)), key, chance, END, act, tls=cluster.tls)
    strike.wait(PATIENCE)


def pause(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The owner stands still for so short that nothing follows."""
    owner = cluster.owner(key)
    stop(owner)
    try:
        time.sleep(chance.uniform(0.1, 0.5))
    finally:
        os.kill(owner.pid, signal.SIGCONT)


def stall(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    """Until a replica has taken over."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    stop(owner)
    try:
        wait_until(lambda: owner_now(cluster, key, without=owner) not in (None, owner), PATIENCE)
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def kill(cluster: ProxiedCluster, key: str, _chance: random.Random) -> None:
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    _kill(cluster, key, owner)


def kill_ahead(cluster: ProxiedCluster, key: str, chance: random.Random) -> None:
    """The replica that takes over stood still before: it lacks the last rows."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    frozen = cluster.replicas_of(owner)
    for replica in frozen:
        stop(replica)
    try:
        time.sleep(chance.uniform(0.1, 0.5))
        owner.kill()
    finally:
        for replica in frozen:
            os.kill(replica.pid, signal.SIGCONT)
    _kill(cluster, key, owner)


def _kill(cluster: ProxiedCluster, key: str, owner: LocalServer) -> None:
    owner.kill()
    wait_until(lambda: owner_now(cluster, key) not in (None, owner), PATIENCE)
    cluster.restart(owner)
    wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def owner_now(cluster: LocalCluster, key: str, without: LocalServer | None = None) -> LocalServer | None:
    """The owner, if the servers other than `without` know one."""
    try:
        return cluster.owner(key, without=without)
    except LocalServerError:
        return None


#: By name.
FAULTS: dict[str, Fault] = {
    "move": move_by_keys,
    "move whole": move_whole,
    "move slowly": move_slowly,
    "move in turns": move_in_turns,
    "abandon": begin_and_abandon,
    "failover": fail_over,
    "force": force,
    "takeover": take_over,
    "freeze": freeze_replicas,
    "restart": restart_in_turn,
    "end": end_connections,
    "cut": cut,
    "cut target": cut_target,
    "delay": delay,
    "pause": pause,
    "stall": stall,
    "kill": kill,
    "kill ahead": kill_ahead,
}
#: A replica took over where none was to: a server of a busy machine stood still.
UNPLANNED = "unplanned failover"
#: A replica takes over.
FAILOVERS = frozenset({"failover", "force", "takeover", "restart", "stall", "kill", "kill ahead"})
#: They may lose what only the old master has.
LOSSY = frozenset({"force", "takeover", "stall", "kill", "kill ahead", UNPLANNED})
#: What was sent on a connection that ended may be written behind what went out on the next one.
LATE = frozenset({"delay"})
