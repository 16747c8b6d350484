"""States in which a call waits until a deadline or Ctrl-C ends it, each with a dispatcher."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace import Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalServer
from support.certs import Certs
from support.fake_server import FakeServer, Peer, Script, entry_id
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import stopped

#: The number of messages waiting for their outcome in each state, except in states with a single large message.
WAITING = 50


@dataclass(frozen=True)
class Surroundings:
    """The environment in which a state is created."""

    folder: Path
    certs: Certs
    start_server: Callable[..., LocalServer]
    """The fixture of that name."""
    connect_timeout: float = NEVER
    command_timeout: float = NEVER

    @property
    def timeouts(self) -> dict[str, Any]:
        return {"connect_timeout": self.connect_timeout, "command_timeout": self.command_timeout}

    def dispatcher_to(self, port: int, *, tls: bool = False, **options: Any) -> Dispatcher:
        encrypted: dict[str, Any] = {"tls": True, "tls_ca_cert": self.certs.ca} if tls else {}
        endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY, **encrypted, **self.timeouts)
        return Dispatcher(endpoint, **options)


@dataclass(frozen=True)
class Stall:
    """A state. `ended_by` is the timeout of the endpoint that ends it, if any."""

    enter: Callable[[Surroundings], AbstractContextManager[Dispatcher]]
    ended_by: Literal["connect_timeout", "command_timeout"] | None
    written: Literal["no", "unknown"]
    """Whether messages that reach their deadline in this state may be written."""


@contextlib.contextmanager
def giving_up(dispatcher: Dispatcher) -> Iterator[Dispatcher]:
    """Leave the dispatcher without waiting for anything."""
    try:
        yield dispatcher
    finally:
        _ = dispatcher.flush(timeout=0).ok  # marks the failures as seen
        dispatcher.close()


def fill(dispatcher: Dispatcher) -> Dispatcher:
    for _ in range(WAITING):
        dispatcher.produce(b"x" * 100)
    dispatcher.poll()  # sends them, if there is a connection
    return dispatcher


@contextlib.contextmanager
def full_backlog(kind: socket.AddressFamily, folder: Path) -> Iterator[Any]:
    """A listening socket that never accepts: connects beyond its backlog wait forever."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(kind))
        listener.bind(("127.0.0.1", 0) if kind == socket.AF_INET else str(Path(tempfile.mkdtemp(dir=folder), "full")))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket(kind))
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


@contextlib.contextmanager
def _tcp_backlog(around: Surroundings) -> Iterator[Dispatcher]:
    with full_backlog(socket.AF_INET, around.folder) as (_, port), giving_up(around.dispatcher_to(port)) as dispatcher:
        yield fill(dispatcher)


@contextlib.contextmanager
def _unix_backlog(around: Surroundings) -> Iterator[Dispatcher]:
    with full_backlog(socket.AF_UNIX, around.folder) as path:
        endpoint = Endpoint(unix_socket=path, stream_key=KEY, **around.timeouts)
        with giving_up(Dispatcher(endpoint)) as dispatcher:
            yield fill(dispatcher)


def _connecting(script: Script, *, tls: bool = False, **options: Any) -> Stall:
    """Run this script on every connection, from its first byte on."""

    @contextlib.contextmanager
    def enter(around: Surroundings) -> Iterator[Dispatcher]:
        with (
            FakeServer(*[script] * 10, handshake=False) as fake,
            giving_up(around.dispatcher_to(fake.port, tls=tls, **options)) as dispatcher,
        ):
            yield fill(dispatcher)

    return Stall(enter, "connect_timeout", "no")


def _answering(**replies: bytes) -> Script:
    """Answer CLIENT and the first command of each of these names, then stay silent."""

    def script(peer: Peer) -> None:
        left = {"CLIENT": [b"+OK\r\n"] * 3} | {name: [reply] for name, reply in replies.items()}
        while commands := peer.commands(1):
            name = commands[0][0].decode().upper()
            if not left.get(name):
                peer.wait_for_end()
                return
            peer.send(left[name].pop())

    return script


def _one_reply(peer: Peer) -> None:
    peer.commands(1)
    peer.send(b"+OK\r\n")
    peer.wait_for_end()


def _trickling(first: bytes) -> Script:
    """Send one byte every 50 ms forever: always some progress, but never an end."""

    def script(peer: Peer) -> None:
        peer.send(first)
        peer.trickle(0.05)

    return script


@contextlib.contextmanager
def _half_a_request(around: Surroundings) -> Iterator[Dispatcher]:
    """Stall because the peer reads nothing: its window closes in the middle of a message."""
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.commands(1)
        peer.send(entry_id())
        over.wait(PATIENCE)

    with FakeServer(script) as fake:
        try:
            with giving_up(around.dispatcher_to(fake.port)) as dispatcher:
                dispatcher.produce(b"first")
                dispatcher.flush().raise_for_failures()
                dispatcher.produce(b"x" * (16 << 20))
                yield dispatcher
        finally:
            over.set()


def _no_replies(exactly_once: str = "off", needs: tuple[str, ...] = (), transport: str = "unix") -> Stall:
    """Stall after everything was sent to a real server that is suspended."""

    @contextlib.contextmanager
    def enter(around: Surroundings) -> Iterator[Dispatcher]:
        tls: dict[str, Any] = {}
        encrypted: dict[str, Any] = {}
        if transport == "tls":
            tls = {"tls_cert": around.certs.server.cert, "tls_key": around.certs.server.key}
            encrypted = {"tls_ca_cert": around.certs.ca}
        server = around.start_server(needs=needs, transport=transport, **tls)
        endpoint = endpoint_to(server, **encrypted, **around.timeouts)
        policy = RetryPolicy(max_attempts=1) if exactly_once != "off" else None
        with giving_up(Dispatcher(endpoint, exactly_once=exactly_once, retry=policy)) as dispatcher:  # type: ignore[arg-type]
            dispatcher.produce(b"first")
            dispatcher.flush().raise_for_failures()
            with stopped(server):
                yield fill(dispatcher)

    return Stall(enter, "command_timeout", "unknown")


@contextlib.contextmanager
def _wait(around: Surroundings) -> Iterator[Dispatcher]:
    """Stall because the server waits for replicas that it does not have."""
    server = around.start_server()
    endpoint = endpoint_to(server, **around.timeouts)
    with giving_up(Dispatcher(endpoint, wait_replicas=1, wait_timeout=NEVER)) as dispatcher:
        yield fill(dispatcher)


@contextlib.contextmanager
def _backoff(around: Surroundings) -> Iterator[Dispatcher]:
    policy = RetryPolicy(initial_backoff=600, max_backoff=600, jitter=0, deadline=6_000)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound but not listening: it refuses connections
        with giving_up(around.dispatcher_to(bound.getsockname()[1], retry=policy)) as dispatcher:
            yield fill(dispatcher)


def _silent(peer: Peer) -> None:
    peer.wait_for_end()


#: The header of a TLS record of 16 KiB whose bytes arrive one by one.
_RECORD = b"\x16\x03\x03\x40\x00"

STALLS: dict[str, Stall] = {
    "full backlog, TCP": Stall(_tcp_backlog, "connect_timeout", "no"),
    "full backlog, Unix": Stall(_unix_backlog, "connect_timeout", "no"),
    "silent server": _connecting(_silent),
    "silent amid the handshake": _connecting(_one_reply),
    "a byte each 50 ms in the handshake": _connecting(_trickling(b"+")),
    "TLS to a plain port": _connecting(_silent, tls=True),
    "a byte each 50 ms in the TLS handshake": _connecting(_trickling(_RECORD), tls=True),
    "silent when asked for the script": _connecting(_answering(), exactly_once="script", retry=RetryPolicy(deadline=0)),
    "silent when asked for IDMP": _connecting(_answering(), exactly_once="idmp", retry=RetryPolicy(deadline=0)),
    "silent when asked for WAIT": _connecting(_answering(), wait_replicas=1),
    "no replies": _no_replies(),
    "no replies, TLS": _no_replies(needs=("tls",), transport="tls"),
    "no replies, script": _no_replies("script"),
    "no replies, idmp": _no_replies("idmp", needs=("idmp",)),
    "half a request": Stall(_half_a_request, "command_timeout", "unknown"),
    "WAIT outstanding": Stall(_wait, None, "unknown"),
    "retry's pause": Stall(_backoff, None, "no"),
}
