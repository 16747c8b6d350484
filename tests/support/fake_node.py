"""A cluster node that sends what no real node sends, on any number of connections at the same time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from support.fake_server import Peer
from support.patience import PATIENCE

#: Returns the reply to a command; None means no reply.
Answer = Callable[[list[bytes]], bytes | None]


class FakeNode:
    """Listens on a port of 127.0.0.1, and answers each command on each connection separately."""

    def __init__(self, answer: Answer = lambda _: b"+OK\r\n") -> None:
        self.answer = answer
        self.commands: list[list[bytes]] = []
        """All that it was sent."""
        self.accepted = 0
        """The number of connections so far."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="fake node", daemon=True)]
        self._failures: list[BaseException] = []

    def count(self, name: bytes) -> int:
        """The number of commands with this name that it has received."""
        return sum(command[0].upper() == name for command in self.commands)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()  # wakes `accept`
        self._threads[0].join(PATIENCE)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if exc is None and self._failures:
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing:
                connection.close()
                return
            self.accepted += 1
            connection.settimeout(PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        peer = Peer(connection)
        try:
            with connection:
                while commands := peer.commands(1):
                    self.commands.append(commands[0])
                    reply = self.answer(commands[0])
                    if reply is not None:
                        peer.send(reply)
        except BaseException as failure:
            self._failures.append(failure)


def slot_row(first: int, last: int, port: int, host: bytes = b"127.0.0.1", replicas: Sequence[int] = ()) -> bytes:
    """A row of the reply to CLUSTER SLOTS: a range with its master, and the ports of its replicas on 127.0.0.1."""
    nodes = [_node(host, port), *(_node(b"127.0.0.1", replica) for replica in replicas)]
    return b"*%d\r\n:%d\r\n:%d\r\n%s" % (2 + len(nodes), first, last, b"".join(nodes))


def _node(host: bytes, port: int) -> bytes:
    return b"*3\r\n$%d\r\n%s\r\n:%d\r\n$1\r\nx\r\n" % (len(host), host, port)


def slots_reply(*rows: bytes) -> bytes:
    """The reply to CLUSTER SLOTS."""
    return b"*%d\r\n%s" % (len(rows), b"".join(rows))
