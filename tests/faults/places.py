"""Where an error text is said, and to whom; and the list of those places."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.error_texts import CLASSIFY, Classify
from headrace.testing import LocalServer
from support import Program
from support.modes import MODES
from support.pipelines import KEY

Words = Sequence[str | int | bytes]

XADD: Words = ("XADD", KEY, "*", "payload", "canary")


@dataclass
class Place:
    """A server that says something, and who hears it."""

    server: LocalServer
    #: What the server answers by the text.
    command: Words | bytes = XADD
    #: What is said before it on the same connection.
    before: Sequence[Words] = ()
    #: Options of an endpoint that hears it, and the modes in which it does; none: headrace never asks for it.
    options: Mapping[str, Any] = field(default_factory=dict)
    modes: Sequence[str] = MODES
    #: The ways to classify that are tried: one alone where each trip to the server takes long.
    classify: Sequence[Classify] = CLASSIFY
    #: Whether a connection that was made before hears it too.
    live: bool = True
    entry_id: str | None = None
    #: Where to connect to; None: the Unix socket.
    address: tuple[str, int] | None = None

    def connect(self) -> socket.socket:
        if self.address is not None:
            connection = socket.create_connection(self.address, 10)
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(10)
            try:
                connection.connect(self.server.unix_socket)
            except OSError:
                connection.close()
                raise
        return connection

    def said(self) -> str:
        """The error reply, read off a raw socket."""
        with self.connect() as connection:
            return _last_error(connection, [*self.before, self.command])


def said_to(server: LocalServer, commands: Sequence[Words | bytes]) -> str:
    """What a server answers to the last of these commands; it is as new afterwards."""
    with Place(server).connect() as connection:
        try:
            return _last_error(connection, commands)
        finally:
            with Place(server).connect() as other:
                ask(other, ("REPLICAOF", "NO", "ONE"))
                ask(other, ("FLUSHALL",))


def _last_error(connection: socket.socket, commands: Sequence[Words | bytes]) -> str:
    lines = [ask(connection, command) for command in commands]
    assert lines[-1].startswith(b"-"), lines
    return lines[-1][1:].decode()


def ask(connection: socket.socket, command: Words | bytes) -> bytes:
    """The first line of the reply."""
    if command:
        connection.sendall(command if isinstance(command, bytes) else pack(command))
    received = b""
    while b"\r\n" not in received:
        more = connection.recv(1 << 16)
        if not more:
            raise EOFError(f"the server closed after {received!r}")
        received += more
    return received.partition(b"\r\n")[0]


def pack(words: Words) -> bytes:
    """A command on the wire."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


@dataclass
class Lab:
    """What situations are made with."""

    program: Program
    start_server: Callable[..., LocalServer]
    connect: Callable[..., Any]

    def start(self, **arguments: Any) -> tuple[LocalServer, Any]:
        server = self.start_server(self.program, **arguments)
        return server, self.connect(server)


#: A place; then, as often as you like, the name of the text that it says now, or None: it takes everything again.
Steps = Generator[Place | str | None, None, None]
Situation = Callable[[Lab], Steps]

#: By the names of the texts that are said in it.
SITUATIONS: dict[tuple[str, ...], Situation] = {}


def situation(*names: str) -> Callable[[Situation], Situation]:
    """Say which texts are said in it."""

    def add(make: Situation) -> Situation:
        SITUATIONS[names] = make
        return make

    return add
