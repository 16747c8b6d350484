"""A server that tests share one after another, emptied between them: to start one takes a tenth of the tests' time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from headrace.testing import LocalServer
from headrace.testing.process import ask_all
from pytest_headrace.shared_server import SharedServer

# What the fixtures for users leave as it is.
_LOGS = ("SLOWLOG RESET", "ACL LOG RESET", "LATENCY RESET")


class EmptiedServer(SharedServer):
    """A server of a program. Each test finds it at another path: what an earlier one left running cannot reach it."""

    def __init__(self, program: Path) -> None:
        super().__init__(str(program))
        self._numbers = itertools.count()

    def emptied(self) -> LocalServer:
        """Return the server, without data, at a new path."""
        server = super().emptied()
        process: Any = server._process
        old = Path(process.socket_path)
        new = old.with_name(f"{next(self._numbers)}.sock")
        old.rename(new)
        process.socket_path = str(new)
        ask_all(process.socket_path, *_LOGS)
        return server

    def _new(self) -> LocalServer:
        return LocalServer(self._program)
