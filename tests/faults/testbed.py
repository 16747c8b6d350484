"""A server behind the fault proxy, and the operations that disturb it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from headrace.testing import LocalServer
from support.certs import Certs, make_certs
from support.pipelines import stored
from support.processes import wait_until
from support.servers import Program

from .checker import Stored
from .proxy import Proxy

#: The user of the senders: changes to it do not affect the testbed's own connections.
USER, PASSWORD = "writer", "testbed-password"
_RIGHTS = f"on >{PASSWORD} ~* &* +@all"

#: A payload of this many bytes is too large for the server (the lowest limit that it accepts).
TOO_LARGE = 1 << 20

#: Acknowledged writes are on disk: a killed server loses none.
_CONFIG: dict[str, Any] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "auto-aof-rewrite-percentage": 0,
    "repl-diskless-sync-delay": 0,
    "lua-time-limit": 20,
    "proto-max-bulk-len": TOO_LARGE,
    "user": f"{USER} {_RIGHTS}",
}


#: The number of control connections: this many threads use one at the same time, including the proxy's.
CONNECTIONS = 4


class FaultTestbed:
    """One server, its proxy, and an undisturbed control connection."""

    def __init__(self, program: Program, *, durable: bool = True, tls: bool = False) -> None:
        self.program = program
        self._stack = contextlib.ExitStack()
        self._config = _CONFIG if durable else {**_CONFIG, "appendonly": "no"}
        self._certs: Certs | None = None
        if tls:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            self._certs = make_certs(Path(folder))
        self.server = self._start(tls)
        assert self.server.port is not None
        self.proxy = self._stack.enter_context(Proxy(self.server.port))
        self.control = self._client(self.server)
        self._replica: LocalServer | None = None

    @property
    def tls_ca_cert(self) -> str | None:
        """The CA file for senders; None without TLS."""
        return None if self._certs is None else str(self._certs.ca)

    def stored(self, keys: list[str]) -> Stored:
        """The entry ID and the payload of each entry, by stream key."""
        return {key: stored(self.control, key) for key in keys}

    def settle(self) -> None:
        """Wait until the server has run every command of closed senders, including late ones.

        The server reads what a connection received before it sees the connection's end, and only then drops the client.
        """
        wait_until(lambda: not self.proxy.in_use)
        wait_until(lambda: not self._network_clients())

    def empty(self) -> None:
        """Remove all data and scripts from the server."""
        self.control.flushall()
        self.control.script_flush()

    def command(self, *arguments: str | int) -> Any:
        """Run a command for which redis-py has no method."""
        return self.control.execute_command(*arguments)  # type: ignore[no-untyped-call]

    def answers(self) -> bool:
        """Whether the server runs commands now."""
        try:
            return bool(self.control.ping())
        except redis.ResponseError:
            return False

    def config(self, **settings: Any) -> None:
        """Call CONFIG SET, with underscores in the names."""
        for name, value in settings.items():
            self.control.config_set(name.replace("_", "-"), value)

    def allow(self, *rules: str) -> None:
        """Change the permissions of the senders' user."""
        self.command("ACL", "SETUSER", USER, *rules)

    def allow_all(self) -> None:
        """Restore the senders' user."""
        self.allow("reset", *_RIGHTS.split())

    def client_ids(self) -> list[int]:
        """The client IDs of the senders' connections."""
        return [int(line["id"]) for line in self.control.client_list() if line.get("user") == USER]

    def connect(self) -> None:
        """Open all control connections now, since the server may later accept none."""
        pool = self.control.connection_pool
        connections = [pool.get_connection() for _ in range(CONNECTIONS)]
        for connection in connections:
            pool.release(connection)

    def kill_clients(self) -> None:
        """End the senders' connections. A server that another fault has just ended has none."""
        with contextlib.suppress(redis.ConnectionError):
            for number in self.client_ids():
                with contextlib.suppress(redis.ResponseError):  # already gone
                    self.command("CLIENT", "KILL", "ID", number)

    def suspend(self) -> None:
        """SIGSTOP: the kernel still accepts connections and bytes."""
        os.kill(self.server.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def replicate(self) -> None:
        """Give the server a replica and wait until it is in sync."""
        if self._replica is None:
            self._config = {**self._config, "appendonly": "no"}
            self._replica = self._start(self._certs is not None)
        self._replica_control = self._client(self._replica)
        self._replica_control.replicaof("127.0.0.1", self.server.port)
        wait_until(lambda: self.control.info("replication").get("slave0", {}).get("state") == "online")

    def detach_replica(self) -> None:
        """Let the replica keep what the server has now, as an independent master."""
        # The server reports the replica as online while it may still be loading.
        wait_until(lambda: self._replica_control.info("replication").get("master_link_status") == "up")
        offset = self.control.info("replication")["master_repl_offset"]
        wait_until(lambda: self._replica_control.info("replication")["slave_repl_offset"] >= offset)
        self._replica_control.replicaof("NO", "ONE")
        wait_until(lambda: self.control.info("replication")["connected_slaves"] == 0)

    def take_over(self) -> None:
        """Load the data of the detached replica, as in a failover to it, but under the old address."""
        assert self._replica is not None
        self.control.replicaof("127.0.0.1", self._replica.port)
        wait_until(lambda: self.control.info("replication")["master_link_status"] == "up")
        self.control.replicaof("NO", "ONE")
        # Its append-only file is rewritten: a SIGKILL before the end would lose everything.
        wait_until(lambda: not self._rewrites())

    def _rewrites(self) -> bool:
        state = self.control.info("persistence")
        return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

    def fail_over(self) -> None:
        """Promote the replica by FAILOVER; the server becomes its replica."""
        assert self._replica is not None
        self.command("FAILOVER", "TO", "127.0.0.1", str(self._replica.port))

    def fail_back(self) -> None:
        """Make the server the master again, with the replica's data, and detach the replica."""
        wait_until(lambda: self.control.info("replication").get("master_failover_state") == "no-failover")
        info = self.control.info("replication")
        if info["role"] == "slave":
            wait_until(lambda: self.control.info("replication")["master_link_status"] == "up")
        self.control.replicaof("NO", "ONE")
        self._replica_control.replicaof("NO", "ONE")

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _network_clients(self) -> list[str]:
        """The names of clients connected by TCP, like the senders; the testbed itself uses the Unix socket."""
        clients = self.control.client_list(_type="normal")
        return [client["name"] for client in clients if "U" not in client["flags"]]

    def _start(self, tls: bool) -> LocalServer:
        options: dict[str, Any] = {"transport": "tcp", "config": self._config}
        if tls and self._certs is not None:
            options |= {"transport": "tls", "tls_cert": self._certs.server.cert, "tls_key": self._certs.server.key}
            options |= {"tls_ca_cert": self._certs.ca, "config": {**self._config, "tls-replication": "yes"}}
        return self._stack.enter_context(LocalServer(self.program.path, **options))

    def _client(self, server: LocalServer) -> redis.Redis:
        pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
            connection_class=redis.UnixDomainSocketConnection,
            path=server.unix_socket,
            protocol=2,
            max_connections=CONNECTIONS,
        )
        client = redis.Redis.from_pool(pool)
        self._stack.callback(client.close)
        return client
