"""The start of Python processes that import headrace, compared with a process that imports nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter

import pytest
from benches.driver import Record
from benches.tables import Bench, Column
from benches.turns import ROUNDS, Turn
from pytest_benchmark.fixture import BenchmarkFixture

STATEMENTS = (
    "pass",
    "import headrace",
    "from headrace import Dispatcher, Endpoint",
    "from headrace import *",
    "import redis",
)
BARE, *IMPORTS = STATEMENTS

#: Processes of each kind in a round, which take turns: the speed of a machine changes within a second.
PROCESSES = 20

MILLISECONDS = Column("ms", lambda turn: turn.figures["seconds"] / turn.rows * 1e3, ",.1f")
CPU = Column("CPU, ms", lambda turn: turn.figures["client_cpu"] / turn.rows * 1e3, ",.1f")
BENCH = Bench(
    "import",
    f"the start of a process of Python, {PROCESSES} a round",
    columns=(MILLISECONDS, CPU),
    ratios=tuple((statement, BARE) for statement in IMPORTS),
    compared=(MILLISECONDS, CPU),
)


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_import(number: int, record: Record, benchmark: BenchmarkFixture) -> None:
    figures = {statement: {"seconds": 0.0, "client_cpu": 0.0} for statement in STATEMENTS}

    def start_all() -> None:
        for statement in STATEMENTS:
            seconds, cpu = started(statement)
            figures[statement]["seconds"] += seconds
            figures[statement]["client_cpu"] += cpu

    start_all()  # fills the file caches
    for figure in figures.values():
        figure.update(seconds=0.0, client_cpu=0.0)
    benchmark.pedantic(start_all, rounds=PROCESSES)  # type: ignore[no-untyped-call]
    for statement, figure in figures.items():
        record(BENCH, Turn(BENCH.name, "Python", statement, number, PROCESSES, figure))


def started(statement: str) -> tuple[float, float]:
    """Run a statement in a separate process, and return its duration and its CPU time, in seconds."""
    command = [sys.executable, "-c", statement]
    begin = perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, statement
    return seconds, usage.ru_utime + usage.ru_stime
