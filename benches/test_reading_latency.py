"""The time from XADD to the row in Python on an idle stream: the reader and redis-py's XREAD BLOCK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, programs, title
from benches.tables import Bench, Column
from benches.turns import ROWS, Contender, Target

from headrace.testing import LocalServer
from support import Program

#: Entries; the first 1,000 are not measured.
ENTRIES = min(3_000, ROWS // 10)
PROGRAMS = [program for program in programs() if program.is_redis]
READER = Contender("headrace Reader, linger=0", "benches.readers.latency:headrace", max_rows=ENTRIES)
XREAD = Contender("redis-py xread(block=…), with hiredis", "benches.readers.latency:redis_py", max_rows=ENTRIES)

P50 = Column.figure("p50, µs", "p50", 1e6, ",.1f")
P99 = Column.figure("p99, µs", "p99", 1e6, ",.1f")
CLIENT_CPU = Column.per_row("client CPU, µs per entry", "client_cpu", 1e6, ",.1f")
BENCH = Bench(
    "reading_latency",
    "one entry at a time on an idle stream: from XADD in another process to the value in Python",
    columns=(P50, P99, CLIENT_CPU),
    ratios=((READER.name, XREAD.name),),
    compared=(P50, P99, CLIENT_CPU),
)


@pytest.mark.parametrize(("number", "program", "contender"), interleaved(PROGRAMS, [READER, XREAD], title))
def test_reading_latency(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(program)
    with ServerWatch(server) as watch:
        target = replace(Target.at(server, contender.rows(), batch=1_000), stream_key="idle")
        take_turn(BENCH, contender, target, group=title(program), number=number, watch=watch, warm_up=False)
