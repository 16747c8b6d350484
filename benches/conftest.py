"""Servers for the benchmarks, and the tables at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from benches.tables import Round, tables

from headrace.server import LocalServer
from support import Program

_rounds = pytest.StashKey[list[Round]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_rounds] = []


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> list[Round]:
    """What was measured so far; the tables are made of it."""
    return pytestconfig.stash[_rounds]


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
    if rounds := config.stash[_rounds]:
        terminalreporter.section("entries into a Redis stream")
        for line in tables(rounds):
            terminalreporter.write_line(line)
        minutes = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        terminalreporter.write_line(f"\nLoad of this machine in the last 1, 5 and 15 minutes: {minutes}.")
