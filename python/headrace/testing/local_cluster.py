"""A local cluster: masters, each with replicas, for tests and experiments with redirects and failovers."""

from __future__ import annotations

import binascii
import contextlib
import functools
import os
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.errors import LocalServerError
from headrace.testing.cluster_node import Node, nodes_of
from headrace.testing.cluster_plan import ClusterPlan
from headrace.testing.local_server import (
    NODE_PORTS,
    PORT_TRIES,
    QUICK_REPLICATION,
    Directive,
    LocalServer,
    find_server,
    is_port_in_use,
    name_and_version,
    stalled,
)
from headrace.testing.process import ask_all, order
from headrace.testing.progress import Progress, wait_for

__all__ = ["LocalCluster"]

# Seconds until a replica is ordered to take over once more.
_FAILOVER_TRY = 2.5

# Seconds until the owner of a slot is announced again if the servers do not agree; they hear of it within one second.
_OWNER_TRY = 3.0

# Timeout of a command in seconds; MIGRATE of a large stream takes a few.
_TIMEOUT = 30.0


class LocalCluster:
    """Masters that share all slots evenly, and their replicas, each a `LocalServer` on a port of 127.0.0.1.

    When the constructor returns (after about half a second), all servers agree on the slots, and the replicas follow
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
        start_timeout: Seconds without progress after which the start fails. Default 30.

    Raises:
        LocalServerError: No server program was found, a server did not start, or the servers do not agree; it says what
            is missing. The servers' logs are in the error's notes.
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
        self._servers: list[LocalServer] = []
        self._ids: dict[str, LocalServer] = {}
        data: dict[str, Any] = {
            **QUICK_REPLICATION,
            **(config or {}),
            "cluster-enabled": True,
            "cluster-config-file": "nodes.conf",
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
        program = find_server(executable)
        try:
            self._start(program, masters, masters * replicas, config=data, start_timeout=start_timeout, **tls)
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

    def slot(self, key: str | bytes) -> int:
        """Return the slot of `key`."""
        raw = key.encode() if isinstance(key, str) else key
        tag, end, _ = raw.partition(b"{")[2].partition(b"}")
        # https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model
        return binascii.crc_hqx(tag if tag and end else raw, 0) % 16_384

    def owner(self, key: str | bytes, without: LocalServer | None = None) -> LocalServer:
        """Return the server that has the slot of `key`, in the view of most running servers other than `without`.

        Raises:
            LocalServerError: No server has it.
        """
        slot = self.slot(key)
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
            timeout: Seconds without progress after which it fails.

        Raises:
            LocalServerError: There was no replica, it refused, or the servers do not agree.
        """
        slot, before = self.slot(key), self.owner(key)
        failover = f"the failover of slot {slot}"
        lonely = f"no replica follows {before.url}"
        self._wait(failover, lambda: "" if self.replicas_of(before) else lonely, timeout)
        replica = self.replicas_of(before)[0]
        command = f"CLUSTER FAILOVER {how}".strip()
        self._order(replica, command)
        again = time.monotonic() + _FAILOVER_TRY

        def missing() -> str:
            nonlocal again
            if time.monotonic() > again and self._named(replica, slot) is not replica:
                # The masters vote for a replica of a master only at intervals, and the replica gives up after five
                # seconds.
                again = time.monotonic() + _FAILOVER_TRY
                self._ask(replica, command)
            return self._unaware(slot, replica)

        self._wait(failover, missing, timeout)
        return replica

    def move_slot(self, key: str | bytes, target: LocalServer, timeout: float = 30.0, pause: float = 0.0) -> None:
        """Move the slot of `key` to the master `target`, key by key (`CLUSTER SETSLOT` and `MIGRATE`).

        Args:
            key: A key of the slot.
            target: The master that gets the slot.
            timeout: Seconds without progress after which it fails.
            pause: Seconds between the move of the last key and that of the slot, during which the old owner replies
                with `ASK`.

        Raises:
            LocalServerError: A server refused, or the servers do not agree.
        """
        slot, source = self.slot(key), self.owner(key)
        importing = f"CLUSTER SETSLOT {slot} IMPORTING {self._id(source)}"
        self._order(target, importing)
        self._order(source, f"CLUSTER SETSLOT {slot} MIGRATING {self._id(target)}")
        auth = f" AUTH {self._password}" if self._password else ""
        migrate = f'MIGRATE 127.0.0.1 {target.port} "" 0 10000{auth} KEYS '.encode()
        moving = Progress()
        while names := self._keys(source, slot):
            still = moving.still_for(f"{len(names)} keys", time.monotonic())
            for name in names:
                try:
                    self._order(source, migrate + _quoted(name))
                except LocalServerError as refusal:
                    if "MOVED" not in str(refusal) or still > timeout:
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
        again = time.monotonic() + _OWNER_TRY

        def missing() -> str:
            nonlocal again
            if time.monotonic() > again:
                again = time.monotonic() + _OWNER_TRY
                self._ask(target, "CLUSTER BUMPEPOCH")
                for server in servers:
                    # Valkey replies only once a replica has the change, and drops the command if the connection ends
                    # before that.
                    with contextlib.suppress(LocalServerError):
                        self._order(server, owner)
            return self._unaware(slot, target) or self._epochs(target)

        self._wait(f"the move of slot {slot}", missing, timeout)

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

    def _start(self, program: Path, masters: int, replicas: int, *, start_timeout: float, **arguments: Any) -> None:
        """Start all servers; on other ports if one is taken, since each must know the ports of all."""
        name, version = name_and_version(program)
        shard_ids = name == "valkey" or tuple(map(int, version.split("."))) >= (7, 2)
        for tries_left in reversed(range(PORT_TRIES)):
            ports = secrets.SystemRandom().sample(NODE_PORTS, masters + replicas)
            plan = ClusterPlan(ports, masters, shard_ids=shard_ids)
            try:
                for number, (port, node) in enumerate(zip(ports, plan.ids, strict=True)):
                    if number == masters:
                        self._wait("the masters", functools.partial(self._not_taken_over, plan), start_timeout)
                    file = plan.file(number)
                    server = _Node(program, file, port=port, start_timeout=start_timeout, **arguments)
                    self._servers.append(server)
                    self._ids[node] = server
            except LocalServerError as error:
                self.stop()
                self._servers, self._ids = [], {}
                if tries_left == 0 or not is_port_in_use(error):
                    raise
            else:
                break
        self._wait("the cluster", lambda: self._not_joined(plan), start_timeout)

    def _not_taken_over(self, plan: ClusterPlan) -> str:
        """Make each master take over from its predecessor, and return which have not."""
        if missing := self._not_linked():
            return missing
        for number, master in enumerate(self._servers[: len(plan.predecessors)]):
            slot = plan.share(number).start
            if missing := self._unaware(slot, master):
                if self._named(master, slot) is not master:
                    self._ask(master, "CLUSTER FAILOVER TAKEOVER")
                return missing
        for server in self._servers:
            if known := {node.id for node in self._view(server)} & {*plan.predecessors}:
                for predecessor in known:
                    self._ask(server, f"CLUSTER FORGET {predecessor}")
                return f"{self._label(server)} still knows {len(known)} predecessors of masters"
        return ""

    def _not_joined(self, plan: ClusterPlan) -> str:
        """Return what a new cluster lacks."""
        if missing := self._not_taken_over(plan):
            return missing
        if down := [self._label(s) for s in self._servers if b"cluster_state:ok" not in self._ask(s, "CLUSTER INFO")]:
            return f"{', '.join(down)} does not report cluster_state:ok"
        # On a busy machine a server may have been silent for so long that others took it for failed.
        if wrong := [self._label(s) for s in self._servers if any(node.is_suspected for node in self._view(s))]:
            return f"{', '.join(wrong)} takes another server for failed"
        masters = self._servers[: len(plan.predecessors)]
        replicas = len(self._servers) // len(masters) - 1
        online = {master: self._ask(master, "INFO replication").count(b"state=online") for master in masters}
        lacking = [f"{self._label(m)} has {n} of {replicas} replicas online" for m, n in online.items() if n < replicas]
        return ", ".join(lacking)

    def _not_linked(self) -> str:
        """Return which servers are not connected to all others."""
        count = len(self._servers)
        links = {server: sum(node.connected for node in self._view(server)) for server in self._servers}
        return ", ".join(f"{self._label(s)} has {n} of {count} connections" for s, n in links.items() if n < count)

    def _follows(self, server: LocalServer, master: LocalServer) -> bool:
        is_up = b"master_link_status:up" in self._ask(server, "INFO replication")
        return is_up and any("myself" in node.flags and node.master == self._id(master) for node in self._view(server))

    def _masters(self) -> list[LocalServer]:
        return [s for s in self._servers if s.running and b"role:master" in self._ask(s, "INFO replication")]

    def _unaware(self, slot: int, owner: LocalServer) -> str:
        """Return which running servers do not name the owner of a slot."""
        unaware = [self._label(s) for s in self._servers if s.running and self._named(s, slot) is not owner]
        owns = f"does not name {self._label(owner)} as the owner of slot {slot}"
        return f"{', '.join(unaware)} {owns}" if unaware else ""

    def _epochs(self, master: LocalServer) -> str:
        """Return which epochs of `master` the servers know if they differ: they may still believe an old owner."""
        known = [
            str(next((node.epoch for node in self._view(server) if node.id == self._id(master)), "none"))
            for server in self._servers
            if server.running
        ]
        return f"the servers know epochs {', '.join(known)} of {self._label(master)}" if len(set(known)) > 1 else ""

    def _named(self, server: LocalServer, slot: int) -> LocalServer | None:
        """Return the master that has `slot`, as `server` sees it."""
        return next((self._ids.get(node.id) for node in self._view(server) if node.is_master and node.has(slot)), None)

    def _view(self, server: LocalServer) -> list[Node]:
        """Return the nodes that a server knows; none if it does not reply."""
        return list(nodes_of(self._ask(server, "CLUSTER NODES").decode(errors="replace")))

    def _keys(self, server: LocalServer, slot: int) -> list[bytes]:
        """Return the names of up to a thousand keys in a slot."""
        said = self._ask(server, f"CLUSTER GETKEYSINSLOT {slot} 1000")
        if not said.startswith(b"*"):
            raise LocalServerError(f"{self._label(server)} does not list the keys of slot {slot}: {_text(said)}")
        rest, names = said.partition(b"\r\n")[2], []
        while rest.startswith(b"$"):
            length, _, rest = rest[1:].partition(b"\r\n")
            names.append(rest[: int(length)])
            rest = rest[int(length) + 2 :]
        return names

    def _id(self, server: LocalServer) -> str:
        return next((node for node, known in self._ids.items() if known is server), "")

    def _label(self, server: LocalServer) -> str:
        return f"server {self._servers.index(server) + 1} of {len(self._servers)}"

    def _order(self, server: LocalServer, command: str | bytes) -> None:
        raw = command if isinstance(command, bytes) else command.encode()
        auth = [f"AUTH {self._password}".encode()] if self._password else []
        said = order(server.unix_socket, *auth, raw, timeout=_TIMEOUT)
        if said not in (b"+OK", b"+NOKEY"):
            raise LocalServerError(f"{_text(raw[:60])} was refused: {_text(said)}")

    def _ask(self, server: LocalServer, command: str) -> bytes:
        if not self._password:
            return ask_all(server.unix_socket, command)
        return ask_all(server.unix_socket, f"AUTH {self._password}", command).removeprefix(b"+OK\r\n")

    def _wait(self, what: str, missing: Callable[[], str], patience: float) -> None:
        if text := wait_for(missing, patience):
            raise stalled(what, text, patience, self._servers)


class _Node(LocalServer):
    """A server that finds a `nodes.conf` at its first start."""

    def __init__(self, executable: Path, nodes: str, **arguments: Any) -> None:
        self._nodes = nodes
        super().__init__(executable, **arguments)

    def _start_on_a_port(self) -> None:
        (self._process.folder / "nodes.conf").write_text(self._nodes)
        super()._start_on_a_port()


def _text(said: bytes) -> str:
    return said.decode(errors="replace").strip() or "no reply"


def _quoted(key: str | bytes) -> bytes:
    """Quote a key for an inline command."""
    raw = key.encode() if isinstance(key, str) else key
    return b'"' + b"".join(b"\\x%02x" % byte for byte in raw) + b'"'
