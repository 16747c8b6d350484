"""Clusters, and the content of their streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import redis

from headrace import Endpoint
from headrace.testing import LocalCluster, LocalServer
from support.patience import LATE, PATIENCE
from support.processes import wait_until

#: Starts a cluster: takes the arguments of `LocalCluster`.
StartCluster = Callable[..., LocalCluster]

#: Moves the slot of a key to another master.
MoveSlot = Callable[[str, LocalServer], object]


def endpoint_of(cluster: LocalCluster, key: str | bytes, **options: Any) -> Endpoint:
    """The endpoint of a stream of the cluster, whose nodes may be slow to accept on a busy machine."""
    return Endpoint(**{"nodes": cluster.nodes, "stream_key": key, "connect_timeout": LATE, **options})


def rows_of(cluster: LocalCluster, key: str, without: LocalServer | None = None) -> list[int]:
    """The numbers in a stream, in order, from its owner, which is not `without`: a server that is not asked.

    Nodes learn of a failover one after another. One that does not know of it yet refuses to answer.
    """
    entries: list[Any] | None = None

    def are_read() -> bool:
        nonlocal entries
        with (
            redis.Redis(unix_socket_path=owner_after(cluster, key, without).unix_socket) as client,
            contextlib.suppress(redis.exceptions.ClusterDownError),
        ):
            entries = client.xrange(key)
        return entries is not None

    wait_until(are_read)
    return [int(fields[b"payload"]) for _, fields in entries or []]


def owner_after(cluster: LocalCluster, key: str, old: LocalServer | None) -> LocalServer:
    """The owner of a stream, once the servers other than `old` know that this one no longer has its slot."""
    wait_until(lambda: cluster.owner(key, old) is not old)
    return cluster.owner(key, old)


def wait_until_whole(cluster: LocalCluster, seconds: float = PATIENCE) -> None:
    """Wait until every server of the cluster says that all slots are served."""

    def is_whole(server: LocalServer) -> bool:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

    wait_until(lambda: all(is_whole(server) for server in cluster.servers), seconds)


def another_master(cluster: LocalCluster, key: str) -> LocalServer:
    """A master that does not have the slot of `key`."""
    owner = cluster.owner(key)
    keys = (f"{number}" for number in range(1_000))
    return next(other for name in keys if (other := cluster.owner(name)) is not owner)


def keys_on_all_masters(cluster: LocalCluster, key: str, count: int = 6) -> list[str]:
    """Keys of streams in different slots, including some on each master."""
    names: dict[int, str] = {}
    owners: dict[int, int | None] = {}
    for number in range(200):
        slot = cluster.slot(f"{key} {number}")
        names.setdefault(slot, f"{key} {number}")
        owners.setdefault(slot, cluster.owner(names[slot]).port)
        if len(names) >= count and len(set(owners.values())) == 3:
            break
    first = {owner: names[slot] for slot, owner in owners.items()}
    assert len(first) == 3, f"streams of {key!r} are on {len(first)} masters"
    return [*first.values(), *(name for name in names.values() if name not in first.values())][:count]


def move_as_one(cluster: LocalCluster, key: str, target: LocalServer) -> None:
    """Move the slot of `key` with the command of servers that move slots themselves: Redis 8.4 and later."""
    slot, source = cluster.slot(key), cluster.owner(key)
    with (
        redis.Redis(unix_socket_path=target.unix_socket) as there,
        redis.Redis(unix_socket_path=source.unix_socket) as here,
    ):
        if target.name == "valkey":
            node = str(there.execute_command("CLUSTER MYID").decode())
            here.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node)
        else:
            try:
                there.execute_command("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
            except redis.ResponseError as error:
                # It took the slot over in a failover that the other nodes do not yet know of.
                if "already the owner" not in str(error):
                    raise
    wait_until(lambda: cluster.owner(key) is target)


def moves_as_one(cluster: LocalCluster) -> bool:
    server = cluster.servers[0]
    major, minor = (int(part) for part in server.version.split(".")[:2])
    return (major, minor) >= ((9, 0) if server.name == "valkey" else (8, 4))


class Move:
    """The slot of `key` while it moves to `target`, key by key; the caller decides when it is finished."""

    def __init__(self, cluster: LocalCluster, key: str, target: LocalServer) -> None:
        self._cluster, self._key, self._target = cluster, key, target
        self._slot, self._source = cluster.slot(key), cluster.owner(key)
        here, there = self._id(self._source), self._id(target)
        self._order(target, "CLUSTER", "SETSLOT", self._slot, "IMPORTING", here)
        self._order(self._source, "CLUSTER", "SETSLOT", self._slot, "MIGRATING", there)

    def left(self) -> list[bytes]:
        """The keys that the old owner still has."""
        return list(self._order(self._source, "CLUSTER", "GETKEYSINSLOT", self._slot, 100))

    def take(self, *keys: str | bytes) -> None:
        """Move some keys."""
        for key in keys:
            self._order(self._source, "MIGRATE", "127.0.0.1", self._target.port or 0, key, 0, 10_000)

    def finish(self) -> None:
        """Move the remaining keys, then the slot."""
        self.take(*self.left())
        for server in (self._target, self._source):
            self._order(server, "CLUSTER", "SETSLOT", self._slot, "NODE", self._id(self._target))
        wait_until(lambda: self._cluster.owner(self._key) is self._target)

    def _id(self, server: LocalServer) -> str:
        return str(self._order(server, "CLUSTER", "MYID").decode())

    def _order(self, server: LocalServer, *command: str | bytes | int) -> Any:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            return client.execute_command(*command)
