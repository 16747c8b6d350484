"""Runs the command `headrace` as a process, with a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

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


@pytest.fixture
def command(server: LocalServer) -> Command:
    """Runs the command with `HEADRACE_URL` set to the server of the test, on each server program."""
    return command_on(server)


@pytest.fixture
def any_command(any_server: LocalServer) -> Command:
    """The same on the newest server."""
    return command_on(any_server)


def command_on(server: LocalServer) -> Command:
    """Runs the command with `HEADRACE_URL` set to this server."""

    def run(*arguments: str | bytes, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Ended:
        variables = {**os.environ, "HEADRACE_URL": server.url, **(environment or {})}
        done = subprocess.run([HEADRACE, *arguments], input=stdin, capture_output=True, env=variables, check=False)
        return Ended(done.returncode, done.stdout, done.stderr.decode())

    return run
