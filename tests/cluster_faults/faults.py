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
from support.clusters import another_master, move_as_one, moves_as_one
from support.processes import wait_until

Fault = Callable[[LocalCluster, str, random.Random], None]

#: Seconds for a failover, and for what was killed to follow again.
PATIENCE = 40.0


def move_by_keys(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    cluster.move_slot(key, another_master(cluster, key))


def move_whole(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    """As servers do it by themselves, if these can."""
    target = another_master(cluster, key)
    if moves_as_one(cluster):
        move_as_one(cluster, key, target)
    else:
        cluster.move_slot(key, target)


def move_slowly(cluster: LocalCluster, key: str, chance: random.Random) -> None:
    """The stream is there before its slot is: ASK for a while."""
    cluster.move_slot(key, another_master(cluster, key), pause=chance.uniform(0.05, 0.4))


def begin_and_abandon(cluster: LocalCluster, key: str, chance: random.Random) -> None:
    """A move that is taken back before the stream was moved."""
    slot, source, target = cluster.slot(key), cluster.owner(key), another_master(cluster, key)
    with redis.Redis(port=target.port or 0) as there, redis.Redis(port=source.port or 0) as here:
        there.execute_command(
            "CLUSTER", "SETSLOT", slot, "IMPORTING", str(here.execute_command("CLUSTER MYID").decode())
        )
        here.execute_command(
            "CLUSTER", "SETSLOT", slot, "MIGRATING", str(there.execute_command("CLUSTER MYID").decode())
        )
        time.sleep(chance.uniform(0.0, 0.2))
        there.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        here.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


def fail_over(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    cluster.fail_over(key)


def force(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    """Without the master, which does not send its last rows to the replica first."""
    cluster.fail_over(key, "FORCE")


def take_over(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    """Without the other masters either."""
    cluster.fail_over(key, "TAKEOVER")


def freeze_replicas(cluster: LocalCluster, key: str, chance: random.Random) -> None:
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


def restart_in_turn(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    """As for a new version: the replica first, then the owner behind a failover in agreement."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    replica = cluster.replicas_of(owner)[0]
    replica.kill()
    replica.restart()
    wait_until(lambda: replica in cluster.replicas_of(owner), PATIENCE)
    cluster.fail_over(key)
    owner.kill()
    owner.restart()
    wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def end_connections(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        # Behind a move the dispatcher may not be connected to the new owner yet.
        wait_until(
            lambda: int(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")) > 0, PATIENCE
        )


def stall(cluster: LocalCluster, key: str, chance: random.Random) -> None:
    """For so short that nothing follows, or until a replica has taken over."""
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    is_long = chance.random() < 0.5
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        if is_long:
            wait_until(lambda: owner_now(cluster, key, without=owner) not in (None, owner), PATIENCE)
        else:
            time.sleep(chance.uniform(0.1, 0.5))
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    if is_long:
        wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def kill(cluster: LocalCluster, key: str, _chance: random.Random) -> None:
    owner = cluster.owner(key)
    wait_until(lambda: cluster.replicas_of(owner), PATIENCE)
    owner.kill()
    wait_until(lambda: owner_now(cluster, key) not in (None, owner), PATIENCE)
    owner.restart()
    wait_until(lambda: owner in cluster.replicas_of(cluster.owner(key)), PATIENCE)


def owner_now(cluster: LocalCluster, key: str, without: LocalServer | None = None) -> LocalServer | None:
    """The owner, if the servers other than `without` know one."""
    try:
        return cluster.owner(key, without=without)
    except LocalServerError:
        return None


#: By name; those of `LOSSY` may lose what only the old master has.
FAULTS: dict[str, Fault] = {
    "move": move_by_keys,
    "move whole": move_whole,
    "move slowly": move_slowly,
    "abandon": begin_and_abandon,
    "failover": fail_over,
    "force": force,
    "takeover": take_over,
    "freeze": freeze_replicas,
    "restart": restart_in_turn,
    "end": end_connections,
    "stall": stall,
    "kill": kill,
}
LOSSY = frozenset({"force", "takeover", "stall", "kill"})
