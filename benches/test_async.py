"""Tasks that each await one message: `AsyncDispatcher.send`, `redis.asyncio` and the floor, on both loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import Bench, Column
from benches.turns import ROWS, Contender, Target

from headrace.testing import LocalServer
from support import Program

#: Messages of a turn, by the number of tasks.
MESSAGES = {1: min(ROWS, 20_000), 100: min(ROWS, 100_000), 1_000: min(ROWS, 200_000)}
SEND = Contender("headrace send", "benches.async_calls:send")
#: Few enough that a turn lasts seconds rather than minutes.
XADD = Contender("redis.asyncio xadd, with hiredis", "benches.async_calls:xadd", max_rows=20_000)
FLOOR = Contender("prepared bytes and a bare protocol", "benches.async_floor:prepared")
PIPELINE = Contender("redis.asyncio, one task with pipelines of 1,000", "benches.async_calls:pipeline")
RUNS = [(tasks, loop) for tasks in MESSAGES for loop in ("asyncio", "uvloop")]

RATE = Column("messages/s", lambda turn: turn.rows / turn.figures["seconds"], ",.0f")
CLIENT_CPU = Column.per_row("client CPU, µs a message", "client_cpu", 1e6, ",.1f")
BENCH = Bench(
    "async",
    "tasks that each await one message at a time: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts",
    columns=(RATE, CLIENT_CPU),
    ratios=((SEND.name, XADD.name), (SEND.name, FLOOR.name), (SEND.name, PIPELINE.name)),
    compared=(RATE, CLIENT_CPU),
)


def name_of(run: tuple[int, str]) -> str:
    tasks, loop = run
    return f"{tasks:,} task{'s' * (tasks > 1)}, {loop}"


@pytest.mark.parametrize(("number", "run", "contender"), interleaved(RUNS, [SEND, XADD, FLOOR, PIPELINE], name_of))
def test_async(
    number: int,
    run: tuple[int, str],
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    tasks, loop = run
    if (tasks == 1_000) != (contender is PIPELINE) and contender is not SEND:
        pytest.skip("a pipeline is compared with many tasks, and a call with few")
    server = server_of(newest_program())
    timed = replace(contender, options={"tasks": tasks, "loop": loop})
    target = Target.at(server, timed.rows(MESSAGES[tasks]), batch=1_000)
    with ServerWatch(server) as watch:
        take_turn(BENCH, timed, target, group=f"{title(newest_program())}, {name_of(run)}", number=number, watch=watch)
