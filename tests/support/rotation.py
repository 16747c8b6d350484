"""Helpers for tests of changing passwords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


class Vault:
    """A password provider that returns a password or raises, and counts its calls."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        """The last one stays."""
        self.asked = 0

    def read(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def to(server: LocalServer, **options: Any) -> Endpoint:
    return Endpoint(unix_socket=server.unix_socket, stream_key="s", username="app", **options)


def set_password(admin: Any, password: str) -> None:
    """Rotate the password as servers do: live connections are not affected."""
    admin.execute_command("ACL", "SETUSER", "app", "reset", "on", f">{password}", "~s", "+xadd", "+client")


def send(dispatcher: Dispatcher) -> list[tuple[str, str, str]]:
    """Send a message; returns its failure, or nothing if it was delivered."""
    dispatcher.produce(b"x")
    return [(one.kind, one.code, one.written) for one in dispatcher.flush().failed]
