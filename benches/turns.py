"""The types of the benchmarks: a contender takes a turn on a target, which yields figures.

This module imports little of the standard library and nothing else, because every worker process imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing import LocalServer

#: The rows of a turn and the number of rounds, from the arguments of `make bench`.
ROWS = int(os.environ.get("HEADRACE_BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("HEADRACE_BENCH_ROUNDS", "5"))

#: What is measured in a turn, by name: totals, not rates. Each has `seconds`; the units are seconds, bytes and counts.
Figures = dict[str, float]


@dataclass(frozen=True)
class Target:
    """The destination of the rows, and their number.

    `batch` is the number of different payloads; they are sent repeatedly, so that every contender has them in the
    cache. `rows` is a multiple of it.
    """

    rows: int
    host: str = ""
    port: int = 0
    unix_socket: str = ""
    tls_ca_cert: str = ""
    stream_key: str = "bench"
    maxlen: int = 100_000
    payload_bytes: int = 120
    batch: int = 10_000

    def __post_init__(self) -> None:
        if self.rows < self.batch or self.rows % self.batch:
            raise ValueError(f"rows must be a multiple of {self.batch:,}: {self.rows:,}")

    @classmethod
    def at(cls, server: LocalServer, rows: int, *, payload_bytes: int = 120, batch: int = 10_000) -> Target:
        """Return a local server as a target, over TCP if it listens there."""
        if server.host is None:
            return cls(rows, unix_socket=server.unix_socket, payload_bytes=payload_bytes, batch=batch)
        return cls(rows, server.host, server.port or 0, payload_bytes=payload_bytes, batch=batch)


@dataclass(frozen=True)
class Done:
    """The figures that a contender itself reports, in addition to those measured from outside."""

    rows: int
    figures: Mapping[str, float] = field(default_factory=dict)


#: The measured part: connects, sends, waits for the last reply, and returns how many rows it saw confirmed.
Run = Callable[[], "int | Done"]
#: Prepares the rows, off the clock. Further arguments are the contender's `options`.
Prepare = Callable[..., Run]


@dataclass(frozen=True)
class Contender:
    """A client and the way it is used.

    `call` is `module:function`, a `Prepare`: only the worker imports it, and thus only what this contender needs.
    `max_rows` shortens the turns of a slow contender: every figure is per row.
    """

    name: str
    call: str
    options: Mapping[str, object] = field(default_factory=dict)
    max_rows: int | None = None

    def rows(self, rows: int = ROWS) -> int:
        return min(rows, self.max_rows or rows)


@dataclass(frozen=True)
class Turn:
    """One contender's measured turn. Ratios are taken between turns of the same group and number."""

    bench: str
    group: str
    contender: str
    number: int
    rows: int
    figures: Figures
