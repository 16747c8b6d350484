"""Runs the command `headrace` in a process, with a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from command.forked import Forker, can_be_forked
from headrace.testing import LocalServer

#: The command that was installed with the package.
HEADRACE = str(Path(sys.executable).parent / "headrace")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: bytes
    err: str


Command = Callable[..., Ended]
CommandOn = Callable[[LocalServer], Command]


@pytest.fixture(scope="session")
def forker(request: pytest.FixtureRequest) -> Iterator[Forker | None]:
    """What starts the command in the usual size of the tests. With `--all` it is the program that was installed."""
    if request.config.getoption("--all"):
        yield None
        return
    with closing(Forker()) as forker:
        yield forker


@pytest.fixture
def command_on(forker: Forker | None) -> CommandOn:
    """Runs the command with `HEADRACE_URL` set to a given server."""

    def on(server: LocalServer) -> Command:
        def run(*arguments: str | bytes, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Ended:
            own = {"HEADRACE_URL": server.url, **(environment or {})}
            start = forker.run if forker and can_be_forked(own) else _run_program
            code, out, err = start([HEADRACE, *arguments], stdin, {**os.environ, **own})
            return Ended(code, out, err.decode())

        return run

    return on


@pytest.fixture
def command(command_on: CommandOn, server: LocalServer) -> Command:
    """Runs the command with `HEADRACE_URL` set to the server of the test, on each server program."""
    return command_on(server)


@pytest.fixture
def any_command(command_on: CommandOn, any_server: LocalServer) -> Command:
    """The same on the newest server."""
    return command_on(any_server)


def _run_program(
    arguments: Sequence[str | bytes], stdin: bytes, environment: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    done = subprocess.run(arguments, input=stdin, capture_output=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr
