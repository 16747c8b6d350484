"""One server to check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace import CommandError
from headrace.admin import Commands
from headrace_command.check import connect_steps
from headrace_command.check.finding import Finding
from headrace_command.check.rights import Rights
from headrace_command.check.server_state import ServerState

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Node"]

_DRYRUN_SINCE = (7, 0)


class Node:
    """A connection to a server, and what it reveals.

    Args:
        endpoint: The endpoint.
        node: A node of its cluster, by host and port, instead of the one with the stream.
        sentinel: One of its sentinels, by index.
    """

    def __init__(self, endpoint: Endpoint, node: tuple[str, int] | None = None, sentinel: int | None = None) -> None:
        self._endpoint = endpoint
        self._commands = Commands(endpoint, node, sentinel)
        self._user = endpoint.username if sentinel is None else endpoint.sentinel_username

    def connect(self) -> list[Finding]:
        """Connect, and return the result of each step."""
        began = time.monotonic()
        steps, failure = self._commands.connect()
        total = time.monotonic() - began
        is_verified = not self._endpoint.tls_insecure_skip_verify
        now = datetime.now(UTC)
        return list(connect_steps.findings_of(steps, failure, total, now, is_verified=is_verified))

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()

    def ask(self, *words: bytes) -> object:
        """Return the reply to a command, which may be an error reply."""
        return self._commands.call([(None, list(words))], writes=False)[0]

    def state(self, key: bytes | None) -> tuple[ServerState, float | None]:
        """Return what the server reports about itself, and how far its clock is ahead, in seconds.

        Raises:
            ConnectionFailedError: The connection was lost.
        """
        state, skew = ServerState(), None
        with self._timed(state, "HELLO"):
            hello = self.ask(b"HELLO", b"2")
        if isinstance(hello, list):
            state.read_hello(hello)
        with self._timed(state, "INFO"):
            info = self.ask(b"INFO")
        if isinstance(info, bytes):
            state.read_info(info)
        began = time.time()
        with self._timed(state, "TIME"):
            reply = self.ask(b"TIME")
        if isinstance(reply, list):
            seconds, micros = (int(part) for part in reply)
            skew = seconds + micros / 1e6 - (began + time.time()) / 2
        whoami = self.ask(b"ACL", b"WHOAMI")
        state.user = whoami if isinstance(whoami, bytes) else (self._user or "default").encode()
        replies = {"HELLO": hello, "INFO": info, "TIME": reply}
        if key is not None:
            with self._timed(state, "TYPE"):
                replies["TYPE"] = kind = self.ask(b"TYPE", key)
            if isinstance(kind, bytes):
                state.key_type = kind.decode("ascii", "replace")
        for command, said in replies.items():
            if isinstance(said, CommandError):
                state.refusals[command] = _refusal(command, said)
        return state, skew

    def rights(self, state: ServerState, key: bytes) -> tuple[Rights, float]:
        """Return what the user may do, and how long it took to ask."""
        rights, began = Rights(key, state.user), time.monotonic()
        if state.has(_DRYRUN_SINCE) is False:
            rights.note_unknown("servers before Redis 7.0 have no ACL DRYRUN")
            return rights, 0.0
        requests = rights.requests()
        commands: Sequence[tuple[bytes | None, list[bytes]]] = [(None, words) for _, words in requests]
        for (need, _), reply in zip(requests, self._commands.call(commands, writes=False), strict=True):
            rights.note(need, reply)
        return rights, time.monotonic() - began

    @contextmanager
    def _timed(self, state: ServerState, command: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        state.seconds[command] = time.monotonic() - began


def _refusal(command: str, error: CommandError) -> str:
    if error.code == "NOPERM":
        return f"the user may not ask: +{command.lower()}"
    return str(error)
