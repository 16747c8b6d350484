"""Threads that await each message: `dispatch` of one dispatcher, and `xadd` of one client of redis-py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import Bench, Column
from benches.turns import Contender, Target

from headrace.testing import LocalServer

THREADS = 32
#: Calls of all threads; the first 1,000 are not measured.
CALLS = 32_000
DISPATCH = Contender(
    "headrace dispatch, one dispatcher", "benches.single_calls:dispatch", {"threads": THREADS}, max_rows=CALLS
)
XADD = Contender(
    "redis-py xadd, one client: a connection for each thread",
    "benches.single_calls:xadd",
    {"threads": THREADS},
    max_rows=CALLS,
)
POOL = Contender(
    "redis-py xadd, one client: a pool of 8 connections",
    "benches.single_calls:xadd",
    {"threads": THREADS, "connections": 8},
    max_rows=CALLS,
)

CALL_RATE = Column("calls/s", lambda turn: turn.rows / turn.figures["seconds"], ",.0f")
P50 = Column.figure("p50, ms", "p50", 1e3)
P99 = Column.figure("p99, ms", "p99", 1e3)
CLIENT_CPU = Column.per_row("client CPU, µs a call", "client_cpu", 1e6, ",.1f")
SERVER_CPU = Column.per_row("server CPU, µs a call", "server_cpu", 1e6, ",.1f")
BENCH = Bench(
    "threads",
    f"{THREADS} threads that await each message: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, over TCP",
    columns=(CALL_RATE, P50, P99, CLIENT_CPU, SERVER_CPU),
    ratios=((DISPATCH.name, XADD.name), (DISPATCH.name, POOL.name)),
    compared=(CALL_RATE, P50, P99, CLIENT_CPU),
)


@pytest.mark.parametrize(
    ("number", "group", "contender"), interleaved([title(newest_program())], (DISPATCH, XADD, POOL))
)
def test_threads(
    number: int, group: str, contender: Contender, server_of: Callable[..., LocalServer], take_turn: TakeTurn
) -> None:
    server = server_of(newest_program())
    target = Target.at(server, contender.rows(), batch=1_000)
    with ServerWatch(server) as watch:
        take_turn(BENCH, contender, target, group=group, number=number, watch=watch)
