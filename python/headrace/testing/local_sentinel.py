"""A local master with replicas and sentinels, for tests and experiments with failovers."""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.errors import LocalServerError
from headrace.testing.local_server import QUICK_REPLICATION, Directive, LocalServer, stalled
from headrace.testing.process import ask_all
from headrace.testing.progress import wait_for

__all__ = ["LocalSentinel"]


class LocalSentinel:
    """A master, its replicas and the sentinels that watch them, each a `LocalServer` on a port of 127.0.0.1.

    All servers are ready when the constructor returns (after about half a second): the replicas follow the master, and
    the sentinels know them and each other. The servers end as a `LocalServer` does.

    Example:
        >>> from headrace import Dispatcher, Endpoint
        >>> from headrace.testing import LocalSentinel
        >>> with LocalSentinel() as group:
        ...     endpoint = Endpoint(nodes=group.nodes, sentinel_master=group.master_name, stream_key="orders")
        ...     with Dispatcher(endpoint) as dispatcher:
        ...         dispatcher.produce(b'{"order_id": 123}')
        ...         dispatcher.flush().delivered
        1

    Args:
        executable: The program of all servers. Default: the one that `find_server` finds.
        replicas: The number of replicas. Default 2.
        sentinels: The number of sentinels; more than half of them must agree on a failover. Default 3.
        master_name: The sentinels' name for the master. Default `"mymaster"`.
        down_after: Seconds without a reply after which a sentinel considers the master dead. Default 1.
        config: Directives of the master and the replicas, as for `LocalServer`.
        sentinel_config: Directives of the sentinels, such as `{"requirepass": "secret"}`, except `sentinel`.
        tls_cert: The certificate chain of all servers, a PEM file. With it they accept only TLS, and also use it among
            themselves.
        tls_key: Its private key, a PEM file.
        tls_ca_cert: The PEM file of the CA that signed it.
        start_timeout: Seconds without progress after which the start fails. Default 30.

    Raises:
        LocalServerError: No server program was found, a server did not start, or the servers do not find each other; it
            says what is missing. The servers' logs are in the error's notes.
    """

    def __init__(
        self,
        executable: str | os.PathLike[str] | None = None,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        master_name: str = "mymaster",
        down_after: float = 1.0,
        config: Mapping[str, Directive | Sequence[Directive]] | None = None,
        sentinel_config: Mapping[str, Directive | Sequence[Directive]] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca_cert: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        self.master_name = master_name
        self._servers: list[LocalServer] = []
        self._sentinels: list[LocalServer] = []
        self._ids = [secrets.token_hex(20) for _ in range(sentinels)]
        data: dict[str, Any] = {**QUICK_REPLICATION, **(config or {})}
        own: dict[str, Any] = {**(sentinel_config or {})}
        self._password = password = _word(data.get("requirepass"))
        self._sentinel_password = _word(own.get("requirepass"))
        tls: dict[str, Any] = {"transport": "tcp"}
        if tls_cert is not None:
            tls = {"transport": "tls", "tls_cert": tls_cert, "tls_key": tls_key, "tls_ca_cert": tls_ca_cert}
            data["tls-replication"] = own["tls-replication"] = True
        if password:
            data["masterauth"] = password  # any server may become a replica
        tls["start_timeout"] = start_timeout
        try:
            first = LocalServer(executable, config=data, **tls)
            self._servers.append(first)
            for _ in range(replicas):
                replica = {**data, "replicaof": f"127.0.0.1 {first.port}"}
                self._servers.append(LocalServer(executable, config=replica, **tls))
            # A sentinel that sees them earlier looks again only after a second.
            self._wait("the replicas", self._lonely, start_timeout)
            watched = [
                f"monitor {master_name} 127.0.0.1 {first.port} {sentinels // 2 + 1}",
                f"down-after-milliseconds {master_name} {round(down_after * 1000)}",
                f"failover-timeout {master_name} {max(6000, round(down_after * 6000))}",
                *([f"auth-pass {master_name} {password}"] if password else []),
                # Otherwise a sentinel asks the master for its replicas at once, and then only after ten seconds.
                *(f"known-replica {master_name} 127.0.0.1 {server.port}" for server in self._servers[1:]),
            ]
            for own_id in self._ids:
                lines = [f"myid {own_id}", *watched]
                self._sentinels.append(_Sentinel(executable, config={**own, "sentinel": lines}, **tls))
            self._wait("the sentinels", self._strange, start_timeout)
        except BaseException:
            self.stop()
            raise

    @property
    def nodes(self) -> list[str]:
        """The addresses of the sentinels, each `"127.0.0.1:port"`: the option `nodes` of an endpoint."""
        return [f"127.0.0.1:{sentinel.port}" for sentinel in self._sentinels]

    @property
    def url(self) -> str:
        """The sentinels and the name of the master as a URL without credentials: `redis+sentinel://…/mymaster`."""
        return f"redis+sentinel://{','.join(self.nodes)}/{self.master_name}"

    @property
    def servers(self) -> tuple[LocalServer, ...]:
        """The first master and the replicas."""
        return tuple(self._servers)

    @property
    def sentinels(self) -> tuple[LocalServer, ...]:
        """The sentinels."""
        return tuple(self._sentinels)

    def master(self) -> LocalServer:
        """Return the server that the first running sentinel names as the master.

        Raises:
            LocalServerError: No sentinel is running, or none of `servers` is the one that it names.
        """
        for sentinel in self._sentinels:
            port = self._named(sentinel)
            for server in self._servers:
                if server.port == port:
                    return server
        raise LocalServerError("no sentinel names one of the servers as the master")

    def fail_over(self, timeout: float = 60.0) -> LocalServer:
        """Make the sentinels promote a replica (`SENTINEL FAILOVER`), and return it once all of them name it.

        The old master becomes a replica only after about ten seconds, and acknowledges writes until then.

        Args:
            timeout: Seconds without progress after which it fails. A sentinel that was suspended for two seconds does
                nothing for 30 s (TILT).

        Raises:
            LocalServerError: The sentinels refuse, or do not agree.
        """
        before = self.master()

        def missing() -> str:
            first = self._ask(self._sentinels[0], f"SENTINEL MASTER {self.master_name}")
            said = ""
            if _fields(first, "port") == [str(before.port)] and "failover_in_progress" not in first:
                # Also after a failover that was given up.
                said = self._ask(self._sentinels[0], f"SENTINEL FAILOVER {self.master_name}").strip()
            named = [self._named(sentinel) for sentinel in self._sentinels]
            if len({*named}) == 1 and named[0] not in (None, before.port):
                return ""
            return f"the sentinels name {', '.join(map(str, named))} as the port of the master {said}".rstrip()

        self._wait("the failover", missing, timeout)
        return self.master()

    def stop(self) -> None:
        """Stop all servers and remove their folders. A second call does nothing."""
        for server in (*self._sentinels, *self._servers):
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        left = [server for server in (*self._sentinels, *self._servers) if server.running]
        if left:
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=2)
            self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _named(self, sentinel: LocalServer) -> int | None:
        """Return the port of the master that a sentinel names."""
        found = re.search(r"address=[^:]*:(\d+)", self._info(sentinel))
        return found and int(found[1])

    def _lonely(self) -> str:
        """Return how many replicas the first master has, if some are missing."""
        online, count = self._ask(self._servers[0], "INFO replication").count("state=online"), len(self._servers) - 1
        return "" if online == count else f"the master has {online} of {count} replicas online"

    def _strange(self) -> str:
        """Introduce the sentinels to each other, and return which have not reached all replicas and sentinels.

        A sentinel announces itself through the master, but only every two seconds. Others may announce it too, by
        sending its message to a sentinel.
        """
        count, replicas, port = len(self._sentinels), len(self._servers) - 1, self._servers[0].port
        missing = []
        for number, sentinel in enumerate(self._sentinels):
            said = self._ask(sentinel, f"SENTINEL SENTINELS {self.master_name}")
            for other, other_id in zip(self._sentinels, self._ids, strict=True):
                if other is not sentinel and other_id not in said:
                    # Address, ID and epoch of the sentinel; name, address and epoch of the master.
                    hello = f"127.0.0.1,{other.port},{other_id},0,{self.master_name},127.0.0.1,{port},0"
                    self._ask(sentinel, f'PUBLISH __sentinel__:hello "{hello}"')
            others = sum("disconnected" not in flags for flags in _fields(said, "flags"))
            said = self._ask(sentinel, f"SENTINEL REPLICAS {self.master_name}")
            states = zip(_fields(said, "flags"), _fields(said, "master-link-status"), strict=False)
            known = sum("disconnected" not in flags and link == "ok" for flags, link in states)
            if others < count - 1 or known < replicas:
                missing.append(
                    f"sentinel {number + 1} of {count} has reached {others} of {count - 1} others and "
                    f"{known} of {replicas} replicas"
                )
        return ", ".join(missing)

    def _info(self, sentinel: LocalServer) -> str:
        return self._ask(sentinel, "INFO sentinel") if sentinel.running else ""

    def _ask(self, server: LocalServer, command: str) -> str:
        password = self._sentinel_password if server in self._sentinels else self._password
        if not password:
            return ask_all(server.unix_socket, command).decode(errors="replace")
        return ask_all(server.unix_socket, f"AUTH {password}", command).decode(errors="replace").removeprefix("+OK\r\n")

    def _wait(self, what: str, missing: Callable[[], str], patience: float) -> None:
        if text := wait_for(missing, patience):
            raise stalled(what, text, patience, (*self._servers, *self._sentinels))


class _Sentinel(LocalServer):
    """A server in sentinel mode."""

    _arguments = ("--sentinel",)

    def _all_directives(self) -> Iterator[tuple[str, list[str]]]:
        for name, lines in super()._all_directives():
            # In the file `sentinel` comes after the addresses; a sentinel stores nothing.
            if name not in ("save", "appendonly"):
                yield name, lines


def _fields(said: str, name: str) -> list[str]:
    """Return the values of a field in a reply of names and values."""
    return re.findall(rf"\r\n{name}\r\n\$\d+\r\n([^\r]*)", said)


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None
