"""A network with a round trip and a bandwidth, on this machine: the program `delay_proxy` of rust/headrace-bench."""

from __future__ import annotations

import socket
import subprocess
import time
from types import TracebackType
from typing import Self

from benches.programs import bench_program
from benches.turns import ROUNDS

from headrace.testing import LocalServer

#: PINGs that measure the actual round trip.
PINGS = 20
#: Seconds by which the fastest PING may exceed the requested round trip: the server and two processes must wake up.
TOLERANCE = 0.0005


class DelayProxy:
    """A proxy that delays each direction by half of `round_trip` (seconds); PINGs check the result.

    A run of one round shows that the benchmarks work, even on a machine that is too busy to wake up in time; the round
    trip may then be longer.

    `megabits`: the bandwidth of each direction of a connection, in 10⁶ bits per second. Default: unlimited.
    """

    def __init__(self, server: LocalServer, round_trip: float, megabits: float | None = None) -> None:
        self.round_trip = round_trip
        program = str(bench_program("delay_proxy"))
        options = ["--target", f"{server.host}:{server.port}", "--round-trip-ms", str(round_trip * 1000)]
        if megabits is not None:
            options += ["--megabits", str(megabits)]
        self._process = subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert self._process.stdout is not None
            self.port = int(self._process.stdout.readline())
            quickest = min(pings(self.port))
            is_late = ROUNDS > 1 and quickest >= round_trip + TOLERANCE
            if quickest < round_trip or is_late:
                raise RuntimeError(f"the round trip is {quickest * 1000:.3f} ms instead of {round_trip * 1000:g} ms")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close its standard input, which ends it."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def pings(port: int) -> list[float]:
    """Return the seconds that each PING took."""
    took = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            start = time.perf_counter()
            connection.sendall(b"PING\r\n")
            assert connection.recv(64) == b"+PONG\r\n"
            took.append(time.perf_counter() - start)
    return took
