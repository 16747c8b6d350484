"""A cluster whose clients reach each node through a proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from faults.proxy import Proxy
from headrace.testing import LocalCluster, LocalServer
from support.certs import Certs
from support.processes import wait_until


class ProxiedCluster(LocalCluster):
    """Without TLS every node announces the port of its proxy: in CLUSTER SLOTS and MOVED, and to its replicas.

    With `certs` the nodes speak TLS and announce their own ports, and `options` map these to the proxies: what passes
    a proxy is then from clients alone.
    """

    def __init__(self, program: Path, certs: Certs | None = None) -> None:
        files: dict[str, Any] = {}
        if certs:
            files = {"tls_cert": certs.server.cert, "tls_key": certs.server.key, "tls_ca_cert": certs.ca}
        super().__init__(program, **files)
        self._certs = certs
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

    @property
    def tls(self) -> bool:
        """Whether the nodes speak TLS."""
        return self._certs is not None

    @property
    def options(self) -> dict[str, Any]:
        """What an endpoint needs beside `nodes` and its stream."""
        if self._certs is None:
            return {}
        shown = {f"127.0.0.1:{server.port}": f"127.0.0.1:{proxy.port}" for server, proxy in self._proxies.items()}
        return {"tls": True, "tls_ca_cert": self._certs.ca, "node_map": shown}

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
        if self._certs is None:
            with redis.Redis(unix_socket_path=server.unix_socket) as client:
                client.config_set("cluster-announce-port", self._proxies[server].port)

    def _is_announced(self) -> bool:
        """Whether each node names all others: by their proxies, without TLS."""
        named = [dict(_named(server)) for server in self.servers]
        if self._certs:
            return all(len(ports) == len(self.servers) for ports in named)
        return all(set(ports.values()) == {proxy.port for proxy in self._proxies.values()} for ports in named)


def _named(server: LocalServer) -> Iterator[tuple[str, int]]:
    """The nodes in the reply to CLUSTER SLOTS, by their IDs, and their ports."""
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        for _, _, *nodes in client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True):
            for node in nodes:
                yield node[2], int(node[1])
