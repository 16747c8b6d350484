"""The servers of the benchmarks: a clean start, CPU time, and the number of entries added."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

import pytest
import redis
from benches.turns import Figures

from headrace.testing import LocalServer
from support import Program, find_programs


class Watch(Protocol):
    """Observes the server during a turn."""

    def fresh(self) -> None:
        """Reset the server; called before the turn."""

    def totals(self) -> Figures:
        """Return what grows during a turn: at least `server_cpu`, the CPU seconds of the server, user and system."""

    def entries_added(self, stream_key: str) -> int:
        """Return the number of entries added to a stream, counted by the server."""


class ServerWatch:
    """`Watch` for a Redis or Valkey server on this machine."""

    def __init__(self, server: LocalServer) -> None:
        self._client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)

    def fresh(self) -> None:
        # A new stream; the old one is freed now, not while the next turn is measured.
        self._client.flushall(asynchronous=False)
        self._client.config_resetstat()

    def cpu(self) -> float:
        cpu: dict[str, Any] = self._client.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    def totals(self) -> Figures:
        """`server_cpu`, and `received`: the bytes that the server has read from its clients."""
        stats: dict[str, Any] = self._client.info("stats")
        return {"server_cpu": self.cpu(), "received": float(stats["total_net_input_bytes"])}

    def entries_added(self, stream_key: str) -> int:
        stream: dict[str, Any] = self._client.xinfo_stream(stream_key)
        if "entries-added" in stream:  # since Redis 7.0
            return int(stream["entries-added"])
        xadd: dict[str, Any] = self._client.info("commandstats")["cmdstat_xadd"]
        return int(xadd["calls"] - xadd["rejected_calls"] - xadd["failed_calls"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()


def programs() -> list[Program]:
    """Return the newest Redis, Redis 7.0 and the newest Valkey, of those that are available."""
    found = find_programs()
    if not found:
        raise pytest.UsageError("no server was found: tests/get_servers.sh .servers fetches some")
    of_redis = [program for program in found if program.is_redis]
    of_valkey = [program for program in found if not program.is_redis]
    widespread = [program for program in of_redis if program.label == "redis-7.0"]
    return list(dict.fromkeys([*of_redis[-1:], *widespread, *of_valkey[-1:]]))


def newest_program() -> Program:
    """Return the one for benchmarks that need only one server: the newest Redis, else whatever is available."""
    return programs()[0]


def title(program: Program) -> str:
    """Return its name in tables: `Redis 8.6.3`."""
    return f"{program.name.capitalize()} {program.version}"
