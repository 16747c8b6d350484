"""A server that sends what no real server sends: each connection runs a script."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from support.patience import PATIENCE


class Peer:
    """The server's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send bytes. A disconnected client is not an error."""
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(data)

    def trickle(self, every: float, count: int | None = None) -> None:
        """Send a byte at intervals; without a count, until the client disconnects."""
        with contextlib.suppress(ConnectionError):
            for _ in itertools.repeat(None) if count is None else range(count):
                time.sleep(every)
                self._connection.sendall(b"x")

    def commands(self, count: int) -> list[list[bytes]]:
        """Wait for a number of commands; returns fewer if the client disconnects."""
        return list(itertools.islice(iter(self._command, None), count))

    def wait_for_end(self) -> None:
        """Wait until the client disconnects."""
        with contextlib.suppress(ConnectionError):
            while self._connection.recv(1 << 16):
                pass

    def reset(self) -> None:
        """End the connection with an RST."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()

    def _command(self) -> list[bytes] | None:
        try:
            header = self._line()
            assert header.startswith(b"*"), header
            return [self._bulk() for _ in range(int(header[1:]))]
        except (EOFError, ConnectionError):
            return None

    def _bulk(self) -> bytes:
        header = self._line()
        assert header.startswith(b"$"), header
        return self._take(int(header[1:]) + 2)[:-2]

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._receive()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._receive()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive(self) -> None:
        received = self._connection.recv(1 << 16)
        if not received:
            raise EOFError
        self._buffer += received


Script = Callable[[Peer], None]

#: CLIENT SETINFO twice and CLIENT SETNAME.
HANDSHAKE_COMMANDS = 3


def hang_up(peer: Peer) -> None:
    """A script that ends the connection immediately."""


def answer_all(peer: Peer) -> None:
    """A script that answers every command with an entry ID."""
    for number in itertools.count(1):
        if not peer.commands(1):
            return
        peer.send(entry_id(number))


def entry_id(number: int = 1) -> bytes:
    """The reply to XADD."""
    text = b"7-%d" % number
    return b"$%d\r\n%s\r\n" % (len(text), text)


class FakeServer:
    """Listens on a port of 127.0.0.1. The first connection gets the first script, and so on; later ones `answer_all`.

    Each script starts after the handshake, and its connection is closed when it returns. It serves one connection at a
    time. With `tls` it speaks TLS.
    """

    def __init__(self, *scripts: Script, handshake: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._handshake = handshake
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="fake server", daemon=True)
        self._failure: BaseException | None = None
        self.accepted = 0
        """The number of connections so far."""

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):  # wakes `accept`
            self._thread.join(PATIENCE)
        self._listener.close()
        if exc is not None:
            if self._failure is not None:
                exc.add_note(f"the fake server had failed before: {self._failure!r}")
        else:
            assert not self._thread.is_alive(), "a script did not end: is a dispatcher still open?"
            if self._failure is not None:
                raise self._failure

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    if self._closing:
                        return
                    self.accepted += 1
                    connection.settimeout(PATIENCE)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if self._tls is None:
                        self._play(Peer(connection))
                        continue
                    # A client that disconnects without a close_notify is not an error either.
                    with (
                        contextlib.suppress(ssl.SSLError),
                        self._tls.wrap_socket(connection, server_side=True) as encrypted,
                    ):
                        self._play(Peer(encrypted))
        except BaseException as failure:
            self._failure = failure

    def _play(self, peer: Peer) -> None:
        script = self._scripts.pop(0) if self._scripts else answer_all
        if self._handshake and script is not hang_up:
            self._greet(peer)
        script(peer)

    @staticmethod
    def _greet(peer: Peer) -> None:
        """Answer the handshake. A client's first one includes HELLO, which is unknown here, as in old servers."""
        commands = peer.commands(HANDSHAKE_COMMANDS)
        if commands and commands[0][0] == b"HELLO":
            peer.send(b"-ERR unknown command 'HELLO'\r\n")
            commands = [*commands[1:], *peer.commands(1)]
        for _ in commands:
            peer.send(b"+OK\r\n")
