"""The same rows through every contender into every server, round by round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.contenders import (
    BY_HAND,
    BY_HAND_AHEAD,
    CONTENDERS,
    FLOOR,
    PRODUCE,
    PRODUCE_BATCH,
    PRODUCE_IDS,
    REDIS_PY,
    TRIM_EVERY_100,
)
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, programs, title
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

BENCH = Bench(
    "throughput",
    "entries into a Redis stream: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, over TCP on this machine",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=(
        *((ours.name, FLOOR.name) for ours in (PRODUCE_BATCH, TRIM_EVERY_100, PRODUCE_IDS, PRODUCE)),
        *((ours.name, REDIS_PY.name) for ours in (PRODUCE_BATCH, TRIM_EVERY_100, PRODUCE_IDS, PRODUCE)),
        *((ours.name, other.name) for ours in (PRODUCE_BATCH, PRODUCE_IDS) for other in (BY_HAND, BY_HAND_AHEAD)),
    ),
)


@pytest.mark.parametrize(("number", "program", "contender"), interleaved(programs(), CONTENDERS, title))
def test_throughput(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(program)
    with ServerWatch(server) as watch:
        target = Target.at(server, contender.rows())
        take_turn(BENCH, contender, target, group=title(program), number=number, watch=watch)
