"""The types of fixtures that are functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from headrace.testing import LocalServer
from support.servers import Program

#: Chooses one of two numbers: that of the usual size of the tests, or of the larger one.
BySize = Callable[[int, int], int]

#: Starts a server and its replica.
Replicate = Callable[..., tuple[LocalServer, LocalServer]]


class StartServer(Protocol):
    """Starts a server that is stopped at the end of the test."""

    def __call__(
        self, program: Program | None = None, *, needs: str | Iterable[str] = (), **arguments: Any
    ) -> LocalServer: ...
