"""A server that only counts: the program `counting_server` of rust/headrace-bench."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from benches.programs import bench_program
from benches.turns import Figures, Target


class CountingServer:
    """A server that answers each XADD with an increasing entry ID and stores nothing; it is also its own `Watch`.

    Args:
        nodes: The number of cluster nodes in its process; 0: a server without a cluster.
    """

    def __init__(self, nodes: int = 0) -> None:
        command = [str(bench_program("counting_server")), *([str(nodes)] if nodes else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        addresses = [self._process.stdout.readline().strip() for _ in range(max(nodes, 1))]
        self.host, _, port = addresses[0].partition(":")
        self.port = int(port)

    def target(self, rows: int) -> Target:
        return Target(rows, self.host, self.port)

    def fresh(self) -> None:
        """Count from 0."""
        assert self._ask(b"FLUSHALL") == b"+OK\r\n"

    def cpu(self) -> float:
        """CPU seconds of all its threads, from the clock ticks of proc_pid_stat(5). Linux only; elsewhere 0."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def totals(self) -> Figures:
        return {"server_cpu": self.cpu()}

    def entries_added(self, stream_key: str) -> int:
        """The number of XADD commands, for any stream key."""
        return int(self._ask(b"XLEN", stream_key.encode())[1:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()  # it ends when its standard input is closed

    def _ask(self, *command: bytes) -> bytes:
        packed = b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
        with socket.create_connection((self.host, self.port), timeout=10) as connection:
            connection.sendall(packed)
            return connection.recv(256)
