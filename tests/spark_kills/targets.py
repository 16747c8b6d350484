"""The target of a run's rows: one server, or a cluster. What can be done to it, and its content at the end."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any, Protocol, cast

import redis

from cluster_faults.faults import owner_now
from headrace.testing import LocalCluster, LocalServer
from support.clusters import another_master, move_as_one, moves_as_one, wait_until_whole
from support.processes import rewrite_aof, stopped, wait_until

from .plan import STREAMS, Strike

STREAM_KEY = "events"

#: Seconds within which a replica must have taken over, or a server must replicate again.
PATIENCE = 60.0
#: How often the entries of a cluster are counted, in seconds: each count takes a command to each server.
COUNTED_EVERY = 0.02
#: Seconds between the move of the last key and that of its slot, when a slot moves slowly.
PAUSE = 0.2


class Target(Protocol):
    """Where the rows go."""

    #: The options of the sink.
    options: dict[str, str]
    #: The expressions of the columns that are written.
    columns: list[str]

    def entries(self) -> int:
        """The current number of entries; -1 if it is unknown."""

    def strike(self, strike: Strike) -> None:
        """Carry out a strike on servers or slots; returns when it is done."""

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Suspend a server inside the block."""

    def contents(self) -> list[Iterator[bytes]]:
        """The payloads of each stream, at the end of the run."""


class OneServer:
    """One server, with one stream."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
        self.options = {"host": str(server.host), "port": str(server.port), "stream_key": STREAM_KEY}
        self.columns = ["payload"]

    def entries(self) -> int:
        try:
            return int(self._client.xlen(STREAM_KEY))
        except redis.RedisError:
            return -1  # it is being restarted

    def strike(self, strike: Strike) -> None:
        assert strike.kind == "server", strike
        self._server.kill()
        time.sleep(strike.downtime)
        self._server.restart()
        rewrite_aof(self._server)

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return stopped(self._server)

    def contents(self) -> list[Iterator[bytes]]:
        return [_payloads(self._client, STREAM_KEY)]


class Cluster:
    """Three masters, each with a replica and two of the streams; a row's number determines its stream."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._keys = _keys(cluster)
        # Including replicas, which may take over. A server is asked only while it is running.
        self._clients = {
            server: redis.Redis(unix_socket_path=server.unix_socket, protocol=2) for server in cluster.servers
        }
        self._counted, self._entries = 0.0, 0
        self.options = {"url": cluster.url, "stream_key": self._keys[0]}
        names = ", ".join(f"'{key}'" for key in self._keys)
        # `00001:0000123:…`: the row's number in its file (`rows.line`).
        number = "cast(substring(payload, 7, 7) as int)"
        self.columns = ["payload", f"element_at(array({names}), pmod({number}, {STREAMS}) + 1) as stream_key"]

    def entries(self) -> int:
        """The entries that masters have now, without those of a dead master and of a stream that is being moved."""
        if time.monotonic() > self._counted + COUNTED_EVERY:
            self._entries = sum(self._entries_of(server) for server in self._cluster.servers if server.running)
            self._counted = time.monotonic()
        return self._entries

    def strike(self, strike: Strike) -> None:
        key = self._keys[strike.stream]
        if strike.kind == "move":
            home = self._cluster.owner(key)
            for target in (another_master(self._cluster, key), home):
                self._move(key, target, strike)
                time.sleep(strike.downtime)
            return
        assert strike.kind == "master", strike
        owner = self._cluster.owner(key)
        wait_until(lambda: self._cluster.replicas_of(owner), PATIENCE)
        owner.kill()
        # Wait first: the old owner would come back without data, and continue as the master.
        wait_until(lambda: owner_now(self._cluster, key) not in (None, owner), PATIENCE)
        time.sleep(strike.downtime)
        owner.restart()

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return stopped(self._cluster.owner(self._keys[0]))

    def contents(self) -> list[Iterator[bytes]]:
        wait_until_whole(self._cluster, PATIENCE)
        return [_payloads(self._clients[self._cluster.owner(key)], key) for key in self._keys]

    def _move(self, key: str, target: LocalServer, strike: Strike) -> None:
        if strike.way == "whole" and moves_as_one(self._cluster):
            move_as_one(self._cluster, key, target)
        else:
            self._cluster.move_slot(key, target, pause=PAUSE if strike.way == "slowly" else 0.0)

    def _entries_of(self, server: LocalServer) -> int:
        pipeline = self._clients[server].pipeline(transaction=False)
        for key in self._keys:
            pipeline.xlen(key)
        try:
            replies = pipeline.execute(raise_on_error=False)
        except redis.RedisError:
            return 0  # it is starting
        return sum(reply for reply in replies if isinstance(reply, int))


def _keys(cluster: LocalCluster) -> list[str]:
    """Keys of streams, the same number on each master."""
    names = (f"{STREAM_KEY}:{number}" for number in itertools.count())
    found: dict[LocalServer, list[str]] = {}
    masters = 3
    while sum(map(len, found.values())) < STREAMS:
        key = next(names)
        of_owner = found.setdefault(cluster.owner(key), [])
        if len(of_owner) < STREAMS // masters:
            of_owner.append(key)
    return [key for keys in zip(*found.values(), strict=True) for key in keys]


def _payloads(client: redis.Redis, key: str) -> Iterator[bytes]:
    start, entries = b"-", [(b"", {b"": b""})]
    while entries:
        entries = cast("Any", client.xrange(key, min=start, count=10_000))
        yield from (fields[b"payload"] for _, fields in entries)
        start = b"(" + entries[-1][0] if entries else start
