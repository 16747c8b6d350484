"""Scenarios in which a server returns an error text, and their registry."""

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

Command = Sequence[str | int | bytes]

XADD: Command = ("XADD", KEY, "*", "payload", "canary")


@dataclass
class ErrorSource:
    """A server that returns an error text, and the endpoints that receive it."""

    server: LocalServer
    #: The command that the server answers with the text.
    command: Command | bytes = XADD
    #: Commands before it on the same connection.
    before: Sequence[Command] = ()
    #: Options of an endpoint that receives the text, and the modes that do; none if headrace never sends the command.
    options: Mapping[str, Any] = field(default_factory=dict)
    modes: Sequence[str] = MODES
    #: The values of `classify` to test; a scenario in which each round trip is slow tests one.
    classify: Sequence[Classify] = CLASSIFY
    #: Whether an existing connection receives it too.
    live: bool = True
    entry_id: str | None = None
    #: The address to connect to; None means the Unix socket.
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

    def read_error(self) -> str:
        """The error reply, read from a raw socket."""
        with self.connect() as connection:
            return _last_error(connection, [*self.before, self.command])


def read_error_from(server: LocalServer, commands: Sequence[Command | bytes]) -> str:
    """The server's error reply to the last of these commands; the server is reset afterwards."""
    with ErrorSource(server).connect() as connection:
        try:
            return _last_error(connection, commands)
        finally:
            with ErrorSource(server).connect() as other:
                ask(other, ("REPLICAOF", "NO", "ONE"))
                ask(other, ("FLUSHALL",))


def _last_error(connection: socket.socket, commands: Sequence[Command | bytes]) -> str:
    lines = [ask(connection, command) for command in commands]
    assert lines[-1].startswith(b"-"), lines
    return lines[-1][1:].decode()


def ask(connection: socket.socket, command: Command | bytes) -> bytes:
    """Send a command; returns the first line of the reply."""
    if command:
        connection.sendall(command if isinstance(command, bytes) else pack(command))
    received = b""
    while b"\r\n" not in received:
        more = connection.recv(1 << 16)
        if not more:
            raise EOFError(f"the server closed after {received!r}")
        received += more
    return received.partition(b"\r\n")[0]


def pack(command: Command) -> bytes:
    """The bytes of a command, as an array of bulk strings."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


@dataclass
class ScenarioTools:
    """The fixtures that a scenario uses."""

    program: Program
    start_server: Callable[..., LocalServer]
    connect: Callable[..., Any]

    def start(self, **arguments: Any) -> tuple[LocalServer, Any]:
        server = self.start_server(self.program, **arguments)
        return server, self.connect(server)


#: First an error source; then repeatedly the name of the text that it currently returns, or None once it works again.
Steps = Generator[ErrorSource | str | None, None, None]
Scenario = Callable[[ScenarioTools], Steps]

#: The scenarios by the names of the error texts that they produce.
SCENARIOS: dict[tuple[str, ...], Scenario] = {}


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    """Register a scenario under the names of its error texts."""

    def add(make: Scenario) -> Scenario:
        SCENARIOS[names] = make
        return make

    return add
