"""The cost of `exactly_once="script"`: the same rows with and without it, at the server and over a slow line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from benches.delay import DelayProxy
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, programs, title
from benches.tables import CLIENT_CPU, ROW_RATE, Bench, Column
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

_HERE = "benches.contenders.headrace_"
ROWS_OF_A_TURN = 500_000
#: Megabits per second of the slow line.
LINE_MEGABITS = 1_000

OFF, SCRIPT = 'exactly_once="off"', 'exactly_once="script"'
MODES = {OFF: "off", SCRIPT: "script"}


@dataclass(frozen=True)
class Rows:
    """What is sent, and how often the stream is trimmed."""

    name: str
    call: str
    trim_every: int
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def contender(self, mode: str) -> Contender:
        given = {
            "endpoint_options": {"trim_every": self.trim_every},
            "dispatcher_options": {"exactly_once": MODES[mode]},
        }
        return Contender(mode, f"{_HERE}:{self.call}", {**given, **self.options}, max_rows=ROWS_OF_A_TURN)

    def __str__(self) -> str:
        return f"{self.name}, trim_every={self.trim_every}"


KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("payload of 120 bytes", "produce_batch", {}),
    ("JSON of six fields", "produce_typed", {"batch_options": {"json": True}}),
    ("six fields", "produce_typed", {}),
    ("six fields, 10 % null", "produce_typed", {"null_share": 0.1}),
)
ROWS = [Rows(name, call, every, options) for name, call, options in KINDS for every in (1, 100)]

SERVER_CPU = Column.per_row("server CPU, µs per row", "server_cpu", 1e6)
SENT = Column.per_row("bytes sent per row", "received", form=",.0f")
BENCH = Bench(
    "exactly_once",
    "exactly once: XADD MAXLEN ~ 100,000, over TCP on this machine",
    columns=(ROW_RATE, CLIENT_CPU, SERVER_CPU, SENT),
    ratios=((SCRIPT, OFF),),
    compared=(ROW_RATE, CLIENT_CPU, SERVER_CPU, SENT),
    flat="server and rows",
)


def cases() -> list[tuple[Program, Rows]]:
    return [(program, rows) for program in programs() for rows in ROWS]


def case_name(case: tuple[Program, Rows]) -> str:
    program, rows = case
    return f"{title(program)}, {rows}"


@pytest.mark.parametrize(
    ("number", "case", "contender"), interleaved(cases(), [Contender(mode, "") for mode in MODES], case_name)
)
def test_exactly_once(
    number: int,
    case: tuple[Program, Rows],
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    program, rows = case
    server, contender = server_of(program), rows.contender(contender.name)
    with ServerWatch(server) as watch:
        target = Target.at(server, contender.rows())
        take_turn(BENCH, contender, target, group=case_name(case), number=number, watch=watch)


TEN_ROWS = "rows_per_entry=10"
LINE_BENCH = Bench(
    "slow_line",
    f"a line of {LINE_MEGABITS:,} megabits a second: XADD MAXLEN ~ 100,000 with rows of 120 bytes",
    columns=(ROW_RATE, CLIENT_CPU, SERVER_CPU, SENT),
    ratios=((SCRIPT, OFF), (TEN_ROWS, OFF)),
    compared=(ROW_RATE, SENT),
)
LINE_CONTENDERS = (
    *(ROWS[0].contender(mode) for mode in MODES),
    Contender(
        TEN_ROWS,
        f"{_HERE}:produce_batch",
        {"batch_options": {"payload": "payload", "rows_per_entry": 10}},
        max_rows=ROWS_OF_A_TURN,
    ),
)


@pytest.fixture(scope="module")
def slow_line(server_of: Callable[[Program], LocalServer]) -> Iterator[DelayProxy]:
    with DelayProxy(server_of(newest_program()), 0.0, megabits=LINE_MEGABITS) as line:
        yield line


@pytest.mark.parametrize(("number", "program", "contender"), interleaved([newest_program()], LINE_CONTENDERS, title))
def test_slow_line(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    slow_line: DelayProxy,
    take_turn: TakeTurn,
) -> None:
    with ServerWatch(server_of(program)) as watch:
        target = Target(contender.rows(), "127.0.0.1", slow_line.port)
        entries = target.rows // 10 if contender.name == TEN_ROWS else None
        take_turn(LINE_BENCH, contender, target, group=title(program), number=number, watch=watch, entries=entries)
