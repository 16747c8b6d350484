"""The fixtures of the benchmarks, and the tables and figures at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from benches import document, figures
from benches.driver import Record, TakeTurn, turn_taker
from benches.machine import described
from benches.progress import Progress
from benches.tables import MEANINGFUL_ROWS, Bench, tables
from benches.turns import ROWS, Turn
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer
from support import Program

_machine = pytest.StashKey[dict[str, str]]()
_taken = pytest.StashKey[dict[str, tuple[Bench, list[Turn]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="put the figures of the benchmarks that were run into this JSON file")
    parser.addoption("--document", type=Path, help="put their tables into this document")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_machine] = described()
    config.stash[_taken] = {}
    config.pluginmanager.register(Progress(config))
    # It would come in addition to the failure that prevented a turn.
    config.addinivalue_line("filterwarnings", "ignore:Benchmark fixture was not used at all")


@pytest.fixture
def record(pytestconfig: pytest.Config) -> Record:
    """Record a turn for the tables, the pictures and the JSON."""

    def record(bench: Bench, turn: Turn) -> None:
        pytestconfig.stash[_taken].setdefault(bench.name, (bench, []))[1].append(turn)

    return record


@pytest.fixture
def take_turn(benchmark: BenchmarkFixture, record: Record) -> TakeTurn:
    """Take a turn of a contender, in a separate process; see `benches.driver.TakeTurn`."""
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    return turn_taker(benchmark, record)


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[Program], LocalServer]]:
    """The server of a program: started at the first call, idle while another one is measured, stopped at the end."""
    with ExitStack() as stack:
        servers: dict[Program, LocalServer] = {}

        def server_of(program: Program) -> LocalServer:
            if program not in servers:
                servers[program] = stack.enter_context(LocalServer(program.path, transport="tcp"))
            return servers[program]

        yield server_of


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    taken = config.stash[_taken]
    if not taken:
        return
    machine = config.stash[_machine]
    for bench, turns in taken.values():
        lines = list(tables(bench, turns))
        terminalreporter.section(bench.title)
        for line in lines:
            terminalreporter.write_line(line)
        if path := config.getoption("figures"):
            figures.put(path, bench.name, figures.of_turns(machine, turns))
    terminalreporter.section("machine")
    terminalreporter.write_line(document.taken_on(machine))
    if ROWS < MEANINGFUL_ROWS:
        terminalreporter.write_line(
            f"Turns of fewer than {MEANINGFUL_ROWS:,} rows show that it runs, not how fast it is."
        )
    if path := config.getoption("document"):
        for bench, turns in taken.values():
            document.fill(path, bench.name, [document.taken_on(machine), *tables(bench, turns)])
