"""A cluster whose clients reach each node through a proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from faults.proxy import Proxy
from headrace.testing import LocalCluster, LocalServer
from support.processes import wait_until


class ProxiedCluster(LocalCluster):
    """Every node announces the port of its proxy: in CLUSTER SLOTS and MOVED, and to its replicas."""

    def __init__(self, program: Path) -> None:
        super().__init__(program)
        self._proxies: dict[LocalServer, Proxy] = {}
        try:
            for server in self.servers:
                self._proxies[server] = Proxy(server.port or 0)
                self._announce(server)
            wait_until(self._is_announced, 40)
        except BaseException:
            self.stop()
            raise

    @property
    def nodes(self) -> list[str]:
        return [f"127.0.0.1:{proxy.port}" for proxy in self._proxies.values()]

    def proxy_of(self, server: LocalServer) -> Proxy:
        return self._proxies[server]

    def restart(self, server: LocalServer) -> None:
        """Start a server again, at the address that it had."""
        server.restart()
        self._announce(server)
        wait_until(self._is_announced, 40)

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            for proxy in getattr(self, "_proxies", {}).values():
                stack.callback(proxy.close)
            self._proxies = {}
            super().stop()

    def _announce(self, server: LocalServer) -> None:
        with redis.Redis(port=server.port or 0) as client:
            client.config_set("cluster-announce-port", self._proxies[server].port)

    def _is_announced(self) -> bool:
        """Whether each node names the proxies of all."""
        ports = {proxy.port for proxy in self._proxies.values()}
        return all(set(_named(server)) == ports for server in self.servers)


def _named(server: LocalServer) -> Iterator[int]:
    """The ports in the reply to CLUSTER SLOTS."""
    with redis.Redis(port=server.port or 0) as client:
        for _, _, *nodes in client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True):
            for node in nodes:
                yield int(node[1])
