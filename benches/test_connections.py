"""The gain from several connections to one server, which still runs commands one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.contenders import FLOOR
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

_IN_THREADS = "benches.contenders.headrace_:in_threads"

ONE = Contender("headrace, one dispatcher", _IN_THREADS, {"dispatchers": 1})
TWO = Contender("headrace, 2 dispatchers in threads", _IN_THREADS, {"dispatchers": 2})
FOUR = Contender("headrace, 4 dispatchers in threads", _IN_THREADS, {"dispatchers": 4})

BENCH = Bench(
    "connections",
    "several connections into one stream: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, over TCP",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=((TWO.name, ONE.name), (FOUR.name, ONE.name)),
)


@pytest.mark.parametrize(
    ("number", "program", "contender"), interleaved([newest_program()], (FLOOR, ONE, TWO, FOUR), title)
)
def test_connections(
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
