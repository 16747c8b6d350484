"""A server that is emptied between tests."""

from __future__ import annotations

import os
from typing import Any, Final

from headrace.testing import LocalServer, LocalServerError
from headrace.testing.process import ask_all, order

__all__ = ["SharedServer"]

# Seconds until a server that does not reply counts as suspended or paused.
_TIMEOUT: Final = 5.0

# CLIENT first: connections left by an earlier test must not write after FLUSHALL. Redis 6.2 has no functions.
_EMPTY: Final = (
    b"CLIENT KILL TYPE normal",
    b"CLIENT KILL TYPE pubsub",
    b"CLIENT UNPAUSE",
    b"FLUSHALL",
    b"SCRIPT FLUSH",
    b"FUNCTION FLUSH",
    b"CONFIG RESETSTAT",
)
_UNKNOWN: Final = b"-ERR unknown command"

# What a test can change without leaving a key. REPLICAOF is part of the configuration too.
_SETTINGS: Final = ("CONFIG GET *", "ACL LIST")


class SharedServer:
    """A local server that starts with the first test and is emptied before each of them.

    Emptying a server takes 1 millisecond, starting one takes 30. A server whose settings changed, or that does not
    reply, is started again at its address.
    """

    def __init__(self, program: str, **arguments: Any) -> None:
        self._program = program
        self._arguments = arguments
        self._server: LocalServer | None = None
        self._settings = b""

    def emptied(self) -> LocalServer:
        """Return the server, without data.

        Raises:
            LocalServerError: No server was found, or it did not start.
        """
        if self._server is None:
            self._server = self._new()
        elif not self._empty(self._server):
            self._server = self._renewed(self._server)
        else:
            return self._server
        self._settings = _settings(self._server)
        return self._server

    def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.stop()

    def _new(self) -> LocalServer:
        # The variable belongs to the person who runs the tests, the setting to the project.
        program = None if os.environ.get("HEADRACE_SERVER") else self._program or None
        return LocalServer(program, **self._arguments)

    def _empty(self, server: LocalServer) -> bool:
        """Remove what tests left, and return whether the server is then as it was when it started."""
        if not server.running:
            return False
        return all(_done(server, command) for command in _EMPTY) and _settings(server) == self._settings

    def _renewed(self, server: LocalServer) -> LocalServer:
        server.kill()  # one that is paused or busy does not shut down
        try:
            server.restart()
        except LocalServerError:  # a test stopped it, which removes its folder; or its folder has a broken file
            server.stop()
            return self._new()
        # A test may have saved its data in the folder.
        _done(server, b"FLUSHALL")
        return server


def _done(server: LocalServer, command: bytes) -> bool:
    """Run a command, and return whether the server ran it or does not know it."""
    reply = order(server.unix_socket, command, timeout=_TIMEOUT)
    return bool(reply) and (not reply.startswith(b"-") or reply.startswith(_UNKNOWN))


def _settings(server: LocalServer) -> bytes:
    return ask_all(server.unix_socket, *_SETTINGS, timeout=_TIMEOUT)
