"""The servers of schedules: one, or the masters of a cluster. Each schedule has streams of its own."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis

from headrace import Endpoint
from headrace.testing import LocalCluster, LocalServer
from support.servers import Program

#: Nodes of a stream with few entries, so that approximate trimming removes some.
_CONFIG: dict[str, Any] = {"stream-node-max-entries": 4}

#: The user of the readers, whose rights change.
USER = "reader"


class Servers:
    """A server, or a cluster of three masters, and a client of each."""

    def __init__(self, program: Program, *, is_cluster: bool) -> None:
        self.is_cluster = is_cluster
        with ExitStack() as stack:
            if is_cluster:
                self._cluster = stack.enter_context(LocalCluster(program.path, replicas=0, config=_CONFIG))
                servers = self._cluster.servers
            else:
                servers = (stack.enter_context(LocalServer(program.path, config=_CONFIG)),)
            self._servers: dict[LocalServer, redis.Redis] = {
                server: stack.enter_context(redis.Redis(unix_socket_path=server.unix_socket, protocol=2))
                for server in servers
            }
            self._owners: dict[int, redis.Redis] = {}
            for client in self._servers.values():
                client.acl_setuser(USER, enabled=True, nopass=True, categories=["+@all"], keys=["*"])
            self._stack = stack.pop_all()

    def client(self, key: bytes) -> redis.Redis:
        """A client of the server that has this key."""
        if not self.is_cluster:
            return next(iter(self._servers.values()))
        slot = self._cluster.slot(key)
        if slot not in self._owners:
            self._owners[slot] = self._servers[self._cluster.owner(key)]
        return self._owners[slot]

    def allow(self, keys: list[bytes]) -> None:
        """Let the reader's user read these streams and no others."""
        for client in self._servers.values():
            client.acl_setuser(USER, enabled=True, nopass=True, categories=["+@all"], keys=keys, reset_keys=True)

    def endpoint(self, key: bytes) -> Endpoint:
        if self.is_cluster:
            return Endpoint(nodes=self._cluster.nodes, stream_key=key, username=USER, password=USER)
        unix_socket = next(iter(self._servers)).unix_socket
        return Endpoint(unix_socket=unix_socket, stream_key=key, username=USER, password=USER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
