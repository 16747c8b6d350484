"""Rows of a file through `headrace send`, compared with a loop that calls `produce`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.contenders import PRODUCE
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import CLIENT_CPU, RATE, Bench
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

LINES = Contender("headrace send, lines", "benches.command_send:send", {"form": "lines"})
JSONL = Contender("headrace send, jsonl", "benches.command_send:send", {"form": "jsonl"})
BENCH = Bench(
    "command",
    "rows of a file, with the start of the process: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts",
    columns=(RATE, CLIENT_CPU),
    ratios=((LINES.name, PRODUCE.name), (JSONL.name, PRODUCE.name)),
    compared=(RATE, CLIENT_CPU),
)


@pytest.mark.parametrize(
    ("number", "program", "contender"), interleaved([newest_program()], [LINES, JSONL, PRODUCE], title)
)
def test_command(
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
