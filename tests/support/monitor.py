"""The commands that a server actually received: MONITOR, read from a raw socket."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.testing import LocalServer
from support.patience import PATIENCE

# `+1776168000.123456 [0 127.0.0.1:50123] "XADD" "key" …`; `[0 lua]` and `[0 unix:/path]` for the client as well.
_LINE = re.compile(rb'\+(\d+\.\d+) \[(\d+) ([^\]]*)\] (".*")')
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


@dataclass(frozen=True)
class Command:
    """One command as the server saw it."""

    time: float
    db: int
    client: str
    arguments: list[bytes]

    @property
    def name(self) -> str:
        return self.arguments[0].decode().upper()


class Monitor:
    """Records every command that a server runs, from `with` to the end of the block.

        with Monitor(server) as seen:
            …
        assert seen.commands("XADD") == [[b"XADD", b"key", b"*", b"payload", b"…"]]

    Servers show AUTH as `AUTH (redacted)`. Inside the block `commands` is up to date at each call: it includes every
    command answered before the call. After the server was killed, it has the commands before that.
    """

    def __init__(self, server: LocalServer, *, username: str | None = None, password: str | None = None) -> None:
        self._server = server
        self._auth = [b"AUTH", *(text.encode() for text in (username, password) if text is not None)]
        self._buffer = b""
        self._seen: list[Command] = []
        self._socket: socket.socket
        self._other: socket.socket

    def commands(self, *names: str) -> list[list[bytes]]:
        """The arguments of each command so far, in order; with names, only of commands with these names."""
        return [command.arguments for command in self.seen(*names)]

    def seen(self, *names: str) -> list[Command]:
        """Like `commands`, with time, database and client."""
        if self._socket.fileno() != -1:
            self._catch_up()
        wanted = {name.upper() for name in names}
        return [command for command in self._seen if not wanted or command.name in wanted]

    def __enter__(self) -> Self:
        self._other = self._connect()  # before MONITOR, which shows the AUTH of this connection as well
        self._socket = self._connect()
        self._socket.sendall(_pack([b"MONITOR"]))
        assert self._line() == b"+OK"
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc is None:
                self._catch_up()
        finally:
            self._socket.close()
            self._other.close()

    def _catch_up(self) -> None:
        """Read up to a command of our own, sent after every command whose reply the test has seen."""
        token = secrets.token_hex(8).encode()
        try:
            with contextlib.suppress(BrokenPipeError):  # what a killed server showed before can still be read
                self._other.sendall(_pack([b"ECHO", token]))
            while (command := _parse(self._line())).arguments != [b"ECHO", token]:
                self._seen.append(command)
            self._other.recv(64)
        except (EOFError, OSError):
            if self._server.running:
                raise

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(self._server.unix_socket)
        if len(self._auth) > 1:
            connection.sendall(_pack(self._auth))
            reply = connection.recv(256)
            assert reply == b"+OK\r\n", reply
        return connection

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            received = self._socket.recv(1 << 16)
            if not received:
                raise EOFError("the server closed the connection that monitors it")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line


def _pack(arguments: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in arguments)


def _parse(line: bytes) -> Command:
    found = _LINE.fullmatch(line)
    assert found, f"no line of MONITOR: {line!r}"
    arguments = [_ESCAPE.sub(_unescape, text) for text in _ARGUMENT.findall(found[4])]
    return Command(float(found[1]), int(found[2]), found[3].decode(), arguments)


def _unescape(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    return bytes.fromhex(escape[1:].decode()) if len(escape) == 3 else _NAMED.get(escape, escape)
