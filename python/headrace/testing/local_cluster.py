"""A local cluster: masters, each with replicas, for tests and experiments with redirects and failovers."""

from __future__ import annotations

import contextlib
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.errors import LocalServerError
from headrace.testing.local_server import Directive, LocalServer
from headrace.testing.process import ask_all, order

__all__ = ["LocalCluster"]

_SLOTS = 16_384

# An inline command is at most 64 KiB long.
_SLOTS_OF_COMMAND = 8_192

# Seconds until a replica is ordered to take over once more.
_FAILOVER_TRY = 2.5

# Seconds until the owner of a slot is announced again if the servers do not agree; they hear of it within one second.
_OWNER_TRY = 3.0

# Timeout of a command in seconds; MIGRATE of a large stream takes a few.
_TIMEOUT = 10.0


class LocalCluster:
    """Masters that share all slots evenly, and their replicas, each a `LocalServer` on a port of 127.0.0.1.

    When the constructor returns (after two to four seconds), all servers agree on the slots, and the replicas follow
    their masters. The servers end as a `LocalServer` does.

    Example:
        >>> from headrace import Dispatcher, Endpoint
        >>> from headrace.testing import LocalCluster
        >>> with LocalCluster() as cluster:
        ...     with Dispatcher(Endpoint(nodes=cluster.nodes, stream_key="orders")) as dispatcher:
        ...         dispatcher.produce(b'{"order_id": 123}')
        ...         dispatcher.flush().delivered
        1

    Args:
        executable: The program of all servers. Default: the one that `find_server` finds.
        masters: The number of masters. With fewer than three, none can be replaced by a failover. Default 3.
        replicas: The number of replicas of each master. Default 1.
        node_timeout: Seconds without a reply after which a node considers another one dead. Default 1.
        config: Directives of all servers, as for `LocalServer`.
        tls_cert: The certificate chain of all servers, a PEM file. With it they accept only TLS, and also use it among
            themselves.
        tls_key: Its private key, a PEM file.
        tls_ca_cert: The PEM file of the CA that signed it.
        start_timeout: Seconds within which all servers must be ready. Default 30.

    Raises:
        LocalServerError: No server program was found, a server did not reply, or the servers did not agree in time.
    """

    def __init__(
        self,
        executable: str | os.PathLike[str] | None = None,
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout: float = 1.0,
        config: Mapping[str, Directive | Sequence[Directive]] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca_cert: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        self._deadline = time.monotonic() + start_timeout
        self._servers: list[LocalServer] = []
        self._ids: dict[str, LocalServer] = {}
        data: dict[str, Any] = {
            # By default a master waits five seconds for more replicas before it sends its data.
            "repl-diskless-sync-delay": 0,
            **(config or {}),
            "cluster-enabled": True,
            "cluster-node-timeout": round(node_timeout * 1000),
        }
        password = data.get("requirepass")
        self._password = password if isinstance(password, str) else None
        tls: dict[str, Any] = {"transport": "tcp"}
        if tls_cert is not None:
            tls = {"transport": "tls", "tls_cert": tls_cert, "tls_key": tls_key, "tls_ca_cert": tls_ca_cert}
            data |= {"tls-replication": True, "tls-cluster": True}
        if self._password:
            data["masterauth"] = self._password  # any server may become a replica
        try:
            for _ in range(masters * (1 + replicas)):
                self._servers.append(LocalServer(executable, config=data, **tls))
            self._join(masters)
        except BaseException:
            self.stop()
            raise

    @property
    def nodes(self) -> list[str]:
        """The addresses of all servers, each `"127.0.0.1:port"`: the option `nodes` of an endpoint."""
        return [f"127.0.0.1:{server.port}" for server in self._servers]

    @property
    def url(self) -> str:
        """All servers as a URL without credentials: `redis+cluster://…`, or `rediss+cluster://…` with TLS."""
        scheme = "rediss" if self._servers and self._servers[0].url.startswith("rediss") else "redis"
        return f"{scheme}+cluster://{','.join(self.nodes)}"

    @property
    def servers(self) -> tuple[LocalServer, ...]:
        """All servers: first those that started as masters, then their replicas."""
        return tuple(self._servers)

    def slot(self, key: str | bytes, without: LocalServer | None = None) -> int:
        """Return the slot of `key`, as computed by a server other than `without`.

        Raises:
            LocalServerError: No server answers.
        """
        said = b"no server of the cluster is running"
        for server in self._servers:
            if server.running and server is not without:
                said = self._ask(server, b"CLUSTER KEYSLOT " + _quoted(key)).strip()
                if said.startswith(b":"):
                    return int(said[1:])
        raise LocalServerError(f"cannot get the slot of a key: {said.decode(errors='replace')}")

    def owner(self, key: str | bytes, without: LocalServer | None = None) -> LocalServer:
        """Return the server that has the slot of `key`, in the view of most running servers other than `without`.

        Raises:
            LocalServerError: No server has it.
        """
        slot = self.slot(key, without)
        asked = [server for server in self._servers if server.running and server is not without]
        named = [owner for server in asked if (owner := self._named(server, slot))]
        if not named:
            raise LocalServerError(f"no server has slot {slot}")
        return max(named, key=named.count)

    def replicas_of(self, master: LocalServer) -> list[LocalServer]:
        """Return the servers that follow `master` now and have its data."""
        return [server for server in self._servers if server.running and self._follows(server, master)]

    def fail_over(self, key: str | bytes, how: str = "", timeout: float = 30.0) -> LocalServer:
        """Make a replica take over from the owner of `key` (`CLUSTER FAILOVER`), and return it once all name it.

        Args:
            key: A key of the master to replace.
            how: `""`, in agreement with the master; `"FORCE"`, without it; or `"TAKEOVER"`, without the other masters.
            timeout: Seconds within which all servers must agree.

        Raises:
            LocalServerError: There was no replica, it refused, or the servers did not agree in time.
        """
        self._deadline = time.monotonic() + timeout
        slot, before = self.slot(key), self.owner(key)
        self._wait("no replica could take over", lambda: bool(self.replicas_of(before)))
        replica = self.replicas_of(before)[0]
        command = f"CLUSTER FAILOVER {how}".strip()
        self._order(replica, command)
        again = time.monotonic() + _FAILOVER_TRY

        def is_done() -> bool:
            nonlocal again
            if time.monotonic() > again and self._named(replica, slot) is not replica:
                # The masters vote for a replica of a master only at intervals, and the replica gives up after five
                # seconds.
                again = time.monotonic() + _FAILOVER_TRY
                self._ask(replica, command)
            return self._all_name(slot, replica)

        self._wait("the servers did not agree on another owner", is_done)
        return replica

    def move_slot(self, key: str | bytes, target: LocalServer, timeout: float = 30.0, pause: float = 0.0) -> None:
        """Move the slot of `key` to the master `target`, key by key (`CLUSTER SETSLOT` and `MIGRATE`).

        Args:
            key: A key of the slot.
            target: The master that gets the slot.
            timeout: Seconds within which all servers must agree.
            pause: Seconds between the move of the last key and that of the slot, during which the old owner replies
                with `ASK`.

        Raises:
            LocalServerError: A server refused, or the servers did not agree in time.
        """
        slot, source = self.slot(key), self.owner(key)
        importing, deadline = f"CLUSTER SETSLOT {slot} IMPORTING {self._id(source)}", time.monotonic() + timeout
        self._order(target, importing)
        self._order(source, f"CLUSTER SETSLOT {slot} MIGRATING {self._id(target)}")
        while (count := int(self._ask(source, f"CLUSTER COUNTKEYSINSLOT {slot}").strip(b":\r\n"))) > 0:
            for name in self._keys(source, slot, count):
                auth = f" AUTH {self._password}" if self._password else ""
                command = f'MIGRATE 127.0.0.1 {target.port} "" 0 10000{auth} KEYS '.encode() + _quoted(name)
                try:
                    self._order(source, command)
                except LocalServerError as refusal:
                    if "MOVED" not in str(refusal) or time.monotonic() > deadline:
                        raise
                    # Late news of an earlier move made the target forget that it takes the slot over.
                    self._order(target, importing)
        time.sleep(pause)
        owner = f"CLUSTER SETSLOT {slot} NODE {self._id(target)}"
        servers = (target, source, *(server for server in self._masters() if server not in (source, target)))
        for server in servers:
            self._order(server, owner)
        # A target that had forgotten that it takes the slot over gets it with its old epoch. Servers that later hear
        # what the source announced with a newer epoch would believe the source.
        self._ask(target, "CLUSTER BUMPEPOCH")
        self._deadline = time.monotonic() + timeout
        again = time.monotonic() + _OWNER_TRY

        def is_done() -> bool:
            nonlocal again
            if time.monotonic() > again:
                again = time.monotonic() + _OWNER_TRY
                self._ask(target, "CLUSTER BUMPEPOCH")
                for server in servers:
                    # Valkey replies only once a replica has the change, and drops the command if the connection ends
                    # before that.
                    with contextlib.suppress(LocalServerError):
                        self._order(server, owner)
            return self._all_name(slot, target) and self._all_know_epoch(target)

        self._wait("the servers did not agree on the owner", is_done)

    def stop(self) -> None:
        """Stop all servers and remove their folders. A second call does nothing."""
        for server in self._servers:
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        if any(server.running for server in getattr(self, "_servers", ())):
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=2)
            self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _join(self, masters: int) -> None:
        """Join the servers into one cluster: the first ones are masters, and share the slots."""
        first, *others = self._servers
        self._ids = {self._id(server): server for server in self._servers}
        for number, server in enumerate(self._servers):
            # Distinct epochs: otherwise the servers have to settle which of them is first.
            self._order(server, f"CLUSTER SET-CONFIG-EPOCH {number + 1}")
            if number < masters:
                end = (number + 1) * _SLOTS // masters
                for begin in range(number * _SLOTS // masters, end, _SLOTS_OF_COMMAND):
                    share = range(begin, min(begin + _SLOTS_OF_COMMAND, end))
                    self._order(server, f"CLUSTER ADDSLOTS {' '.join(map(str, share))}")
        for server in others:
            self._order(first, f"CLUSTER MEET 127.0.0.1 {server.port}")
        self._wait("the servers did not find each other", self._know_each_other)
        for number, server in enumerate(self._servers[masters:]):
            self._order(server, f"CLUSTER REPLICATE {self._id(self._servers[number % masters])}")
        self._wait("the replicas did not follow", lambda: self._is_complete(masters))

    def _know_each_other(self) -> bool:
        known = f"cluster_known_nodes:{len(self._servers)}\r\n".encode()
        said = [self._ask(server, "CLUSTER INFO") for server in self._servers]
        return all(known in info and b"cluster_state:ok" in info for info in said)

    def _is_complete(self, masters: int) -> bool:
        """Return whether all servers know all replicas, and these have their masters' data."""
        replicas = len(self._servers) - masters
        for server in self._servers:
            lines = self._ask(server, "CLUSTER NODES").decode(errors="replace").splitlines()
            if sum(" slave " in line or "myself,slave " in line for line in lines) != replicas:
                return False
        said = b"".join(self._ask(server, "INFO replication") for server in self._servers[:masters])
        return said.count(b"state=online") == replicas

    def _follows(self, server: LocalServer, master: LocalServer) -> bool:
        # By its ID: the nodes may name a port other than its own (`cluster-announce-port`).
        node = next((node for node, known in self._ids.items() if known is master), "")
        of_master = f" myself,slave {node} ".encode()
        said = self._ask(server, "CLUSTER NODES"), self._ask(server, "INFO replication")
        return of_master in said[0] and b"master_link_status:up" in said[1]

    def _masters(self) -> list[LocalServer]:
        return [s for s in self._servers if s.running and b"role:master" in self._ask(s, "INFO replication")]

    def _all_name(self, slot: int, owner: LocalServer) -> bool:
        return all(self._named(server, slot) is owner for server in self._servers if server.running)

    def _all_know_epoch(self, master: LocalServer) -> bool:
        """Return whether all servers know the epoch of `master`: until then they may still believe an old owner."""
        of_master = re.compile(rf"^{self._id(master)} (?:\S+ ){{5}}(\d+) ", re.MULTILINE)
        nodes = [self._ask(s, "CLUSTER NODES").decode(errors="replace") for s in self._servers if s.running]
        return len({found[1] if (found := of_master.search(text)) else "" for text in nodes}) == 1

    def _named(self, server: LocalServer, slot: int) -> LocalServer | None:
        """Return the master that has `slot`, as `server` sees it."""
        for line in self._ask(server, "CLUSTER NODES").decode(errors="replace").splitlines():
            parts = line.split(" ")
            if len(parts) < 8 or "master" not in parts[2] or "fail" in parts[2].split(","):
                continue
            for part in parts[8:]:
                if (found := re.fullmatch(r"(\d+)(?:-(\d+))?", part)) and int(found[1]) <= slot <= int(
                    found[2] or found[1]
                ):
                    return self._ids.get(parts[0])
        return None

    def _keys(self, server: LocalServer, slot: int, count: int) -> list[bytes]:
        """Return the names of the keys in a slot."""
        rest, names = self._ask(server, f"CLUSTER GETKEYSINSLOT {slot} {count}").partition(b"\r\n")[2], []
        while rest.startswith(b"$"):
            length, _, rest = rest[1:].partition(b"\r\n")
            names.append(rest[: int(length)])
            rest = rest[int(length) + 2 :]
        return names

    def _id(self, server: LocalServer) -> str:
        return self._ask(server, "CLUSTER MYID").split(b"\r\n")[1].decode()

    def _order(self, server: LocalServer, command: str | bytes) -> None:
        raw = command if isinstance(command, bytes) else command.encode()
        auth = [f"AUTH {self._password}".encode()] if self._password else []
        said = order(server.unix_socket, *auth, raw, timeout=_TIMEOUT)
        if said not in (b"+OK", b"+NOKEY"):
            name = raw[:60].decode(errors="replace")
            raise LocalServerError(f"{name} was refused: {said.decode(errors='replace').strip()}")

    def _ask(self, server: LocalServer, command: str | bytes) -> bytes:
        if not self._password:
            return ask_all(server.unix_socket, command)
        return ask_all(server.unix_socket, f"AUTH {self._password}", command).removeprefix(b"+OK\r\n")

    def _wait(self, failure: str, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if time.monotonic() > self._deadline:
                raise LocalServerError(f"{failure} in time")
            time.sleep(0.02)


def _quoted(key: str | bytes) -> bytes:
    """Quote a key for an inline command."""
    raw = key.encode() if isinstance(key, str) else key
    return b'"' + b"".join(b"\\x%02x" % byte for byte in raw) + b'"'
