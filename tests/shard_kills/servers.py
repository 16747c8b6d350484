"""The servers of an episode: one, or a cluster."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal, Protocol, get_args

import redis

from cluster_faults.proxied import ProxiedCluster
from headrace.testing import LocalServer
from support.clusters import wait_until_whole
from support.processes import wait_until
from support.servers import DURABLE, Program

from .check import Entry, Lease
from .member import GROUP
from .sink import EntryId, entry_id

Topology = Literal["server", "cluster"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
#: Seconds that a server has to reply to who only looks.
GLANCE = 0.3


def lease_key(stream: str) -> str:
    """The lease of a stream: docs/shards.md, "Commits"."""
    return f"lease:{stream}:{GROUP}" if "{" in stream else f"{{{stream}}}:lease:{GROUP}"


def members_key(stream: str) -> str:
    """The list of members, beside the first stream."""
    return f"members:{stream}:{GROUP}" if "{" in stream else f"{{{stream}}}:members:{GROUP}"


class Servers(Protocol):
    """Where the shards are."""

    #: What the endpoint of the producer is made of.
    endpoint: dict[str, Any]

    def client(self, stream: str, timeout: float | None = None) -> Any:
        """A client of the server that has a stream."""

    def whole(self) -> None:
        """Wait until every server replies, and those of a cluster agree."""

    def stop(self) -> None: ...


class OneServer:
    """One server, which loses nothing that it has acknowledged. Members reach it through proxies."""

    def __init__(self, program: Program) -> None:
        self.server = LocalServer(program.path, transport="tcp", config=DURABLE)
        self.endpoint: dict[str, Any] = {"unix_socket": self.server.unix_socket}

    def client(self, stream: str, timeout: float | None = None) -> Any:
        del stream
        return _client(self.server, timeout)

    def whole(self) -> None:
        wait_until(lambda: self.server.running and bool(self.client("").ping()))

    def stop(self) -> None:
        self.server.stop()


class Cluster:
    """A cluster with a replica for each master. Everything reaches each node through a proxy."""

    def __init__(self, program: Program) -> None:
        with ExitStack() as stack:
            self.cluster = ProxiedCluster(program.path)
            stack.callback(self.cluster.stop)
            self._stop = stack.pop_all()
        self.endpoint: dict[str, Any] = {"nodes": self.cluster.nodes}
        self._owners: dict[str, LocalServer] = {}

    def client(self, stream: str, timeout: float | None = None) -> Any:
        if stream not in self._owners:
            self._owners[stream] = self.cluster.owner(stream)
        return _client(self._owners[stream], timeout)

    def forget(self, stream: str) -> None:
        """Find out again which server has a stream."""
        self._owners.pop(stream, None)

    def whole(self) -> None:
        wait_until_whole(self.cluster)
        self._owners.clear()

    def stop(self) -> None:
        self._stop.close()


def start(topology: Topology, program: Program) -> OneServer | Cluster:
    return Cluster(program) if topology == "cluster" else OneServer(program)


def masters(servers: OneServer | Cluster) -> set[int | None]:
    """The ports of the masters."""
    if isinstance(servers, OneServer):
        return {servers.server.port}
    ports = set()
    for server in servers.cluster.servers:
        with _client(server) as client:
            if client.info("replication")["role"] == "master":
                ports.add(server.port)
    return ports


def leases(servers: OneServer | Cluster, streams: Sequence[str]) -> dict[str, tuple[Lease, int]]:
    """The leases that are there, with the milliseconds of their servers' clocks. A server that is away is left out."""
    found: dict[str, tuple[Lease, int]] = {}
    for client, names in _by_server(servers, streams):
        try:
            with client, client.pipeline(transaction=False) as pipeline:
                pipeline.time()
                for name in names:
                    pipeline.hmget(lease_key(name), "owner", "epoch", "until", "position")
                (seconds, micros), *replies = pipeline.execute(raise_on_error=False)
        except (redis.RedisError, OSError, ValueError, TypeError):
            replies, seconds, micros = [None] * len(names), 0, 0
        for name, reply in zip(names, replies, strict=True):
            if not isinstance(reply, list):
                if isinstance(servers, Cluster):
                    servers.forget(name)
            elif reply[1] is not None:
                owner, epoch, until, position = reply
                lease = Lease((owner or b"").decode(), int(epoch), int(until or 0), _entry_of(position))
                found[name] = (lease, seconds * 1000 + micros // 1000)
    return found


def entries(servers: OneServer | Cluster, stream: str) -> list[Entry]:
    """What is in a stream."""
    with servers.client(stream) as client:
        found = client.xrange(stream)
    result = []
    for each, fields in found:
        key, _, number = fields[b"payload"].decode().partition(" ")
        result.append(Entry(entry_id(each.decode()), key, int(number)))
    return result


def end(servers: OneServer | Cluster, stream: str) -> EntryId:
    """The ID of the last entry of a stream."""
    with servers.client(stream) as client:
        last = client.xrevrange(stream, count=1)
    return entry_id(last[0][0].decode()) if last else (0, 0)


def group_position(servers: OneServer | Cluster, stream: str) -> EntryId:
    """The ID up to which the group has delivered, as tools show it."""
    with servers.client(stream) as client, contextlib.suppress(redis.ResponseError):
        for group in client.xinfo_groups(stream):
            if group["name"] == GROUP.encode():
                return entry_id(group["last-delivered-id"].decode())
    return (0, 0)


def _by_server(servers: OneServer | Cluster, streams: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    if isinstance(servers, OneServer):
        yield servers.client("", GLANCE), list(streams)
        return
    groups: dict[str, list[str]] = {}
    for stream in streams:
        with contextlib.suppress(Exception):  # the servers may not agree who has it
            path = servers.client(stream, GLANCE).connection_pool.connection_kwargs["path"]
            groups.setdefault(path, []).append(stream)
    for path, names in groups.items():
        yield redis.Redis(unix_socket_path=path, protocol=2, socket_timeout=GLANCE), names


def _client(server: LocalServer, timeout: float | None = None) -> Any:
    return redis.Redis(unix_socket_path=server.unix_socket, protocol=2, socket_timeout=timeout or 60)


def _entry_of(position: bytes | None) -> EntryId | None:
    found = re.search(rb'"id":"(\d+-\d+)"', position or b"")
    return entry_id(found[1].decode()) if found else None
