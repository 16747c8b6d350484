"""TLS servers, endpoints for them, and a proxy that changes the first messages."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from headrace import Endpoint
from headrace.testing import LocalServer
from support.certs import Certs, KeyPair
from support.patience import PATIENCE
from support.servers import Program

#: Seconds. Refusals take a few milliseconds; on a busy machine they may take more, but never this.
CONNECT_TIMEOUT = 10.0
#: Kind, code and `written` of a message whose server is not trusted, or does not trust us.
REFUSED = ("permanent", "TLS", "no")

#: Changes the bytes of a TLS record.
Change = Callable[[bytes], bytes]


class _StartServer(Protocol):
    def __call__(self, program: Program | None = None, *, needs: str = "", **arguments: Any) -> LocalServer: ...


class Start:
    """Start a server that speaks TLS with one of the certificates."""

    def __init__(self, start_server: _StartServer, certs: Certs) -> None:
        self._start = start_server
        self.certs = certs

    def __call__(
        self, pair: KeyPair | None = None, program: Program | None = None, *, version: str = "", mutual: bool = False
    ) -> LocalServer:
        pair = pair or self.certs.server
        return self._start(
            program,
            needs="tls",
            transport="tls",
            tls_cert=pair.cert,
            tls_key=pair.key,
            tls_ca_cert=self.certs.ca,
            tls_client_auth=mutual,
            config={"tls-protocols": f'"{version}"'} if version else {},
        )


def to(server: LocalServer, **options: Any) -> Endpoint:
    """An endpoint for a server, with TLS by default."""
    defaults = {"host": server.host, "port": server.port, "stream_key": "s", "connect_timeout": CONNECT_TIMEOUT}
    return Endpoint(**{**defaults, "tls": True, **options})


class Tampering:
    """Listens on `port` of 127.0.0.1 and forwards to a server, with the first record of either direction changed."""

    def __init__(self, server: LocalServer, *, hello: Change = bytes, answer: Change = bytes) -> None:
        self._server, self._changes = server, (hello, answer)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.changed = 0
        """How many records were changed: a test that changed nothing has tested nothing."""
        self._thread = threading.Thread(target=self._serve, name="tampering", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(PATIENCE)
        self._listener.close()
        assert not self._thread.is_alive(), "a connection did not end: is a dispatcher still open?"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # from `accept`, at the end
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError, EOFError):
                    self._play(client)

    def _play(self, client: socket.socket) -> None:
        change_hello, change_answer = self._changes
        with socket.create_connection((self._server.host, self._server.port)) as server:
            server.sendall(self._changed(change_hello, _record(client)))
            client.sendall(self._changed(change_answer, _record(server)))
            other = {client: server, server: client}
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    if not (data := ready.recv(1 << 16)):
                        return
                    other[ready].sendall(data)

    def _changed(self, change: Change, record: bytes) -> bytes:
        changed = change(record)
        self.changed += changed != record
        return changed


#: In ClientHello: supported_versions, with the versions 1.3 and 1.2 (RFC 8446, 4.2.1).
_OFFERED = bytes.fromhex("002b 0005 04 0304 0303")
#: The end of ServerHello's random number if 1.3 would have been possible (RFC 8446, 4.1.3).
_MARK = b"DOWNGRD\x01"


def without_tls_13(hello: bytes) -> bytes:
    """ClientHello with an unknown extension in place of supported_versions."""
    assert _OFFERED in hello
    return hello.replace(_OFFERED, b"\xfa\xfa" + _OFFERED[2:])


def without_mark(answer: bytes) -> bytes:
    """ServerHello without the downgrade mark of a server that supports TLS 1.3."""
    assert _MARK in answer
    return answer.replace(_MARK, b"12345678")


def _record(connection: socket.socket) -> bytes:
    """Receive one TLS record: five bytes of type, version and length, and the content (RFC 8446, 5.1)."""
    header = _exactly(connection, 5)
    return header + _exactly(connection, int.from_bytes(header[3:]))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (received := connection.recv(count - len(data))):
            raise EOFError
        data += received
    return data
