"""The bytes of a connection, compared with those that redis-py packs."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.fixture_types import StartServer

#: One server serves all examples of a test: its data does not matter.
many = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

keys = st.binary(min_size=1, max_size=40)
payloads = st.binary(max_size=300)
trims = st.fixed_dictionaries(
    {},
    optional={
        "maxlen": st.integers(0, 2**63 - 1),
        "minid": st.one_of(
            st.integers(0, 2**64 - 1), st.builds("{}-{}".format, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
        ),
        "maxlen_approximate": st.booleans(),
        "nomkstream": st.booleans(),
    },
)


class Tap:
    """A proxy on a Unix socket that records the bytes from the client."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory()
        self.unix_socket = str(Path(self._folder.name) / "tap.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.unix_socket)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._ended = False
        self._sent = bytearray()

    def take(self) -> bytes:
        """What was sent since the last call. Once its reply has come, a command is in it."""
        sent, self._sent = bytes(self._sent), bytearray()
        return sent

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = True
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.unix_socket)
        self._thread.join()
        self._listener.close()
        self._folder.cleanup()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client, socket.socket(socket.AF_UNIX) as upstream:
                if self._ended:
                    return
                upstream.connect(self._server.unix_socket)
                back = threading.Thread(target=_pump, args=(upstream, client))
                back.start()
                while received := client.recv(1 << 16):
                    self._sent += received
                    upstream.sendall(received)
                upstream.shutdown(socket.SHUT_WR)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    while received := source.recv(1 << 16):
        target.sendall(received)


@pytest.fixture
def tap(start_server: StartServer) -> Iterator[Tap]:
    with Tap(start_server()) as tap:
        yield tap


#: It does not connect, and its types are not all there.
_CONNECTION: Any = redis.Connection()  # type: ignore[no-untyped-call]


def pack(*words: Any) -> bytes:
    """One command, as redis-py packs it."""
    return b"".join(_CONNECTION.pack_command(*words))


def handshake() -> bytes:
    return (
        pack("CLIENT", "SETINFO", "LIB-NAME", "headrace")
        + pack("CLIENT", "SETINFO", "LIB-VER", headrace.__version__)
        + pack("CLIENT", "SETNAME", "headrace")
    )


def options_between(trim: dict[str, Any]) -> list[Any]:
    """The arguments between stream key and entry ID."""
    about = ["~"] if trim.get("maxlen_approximate", True) else []
    words: list[Any] = ["NOMKSTREAM"] if trim.get("nomkstream") else []
    if trim.get("minid", 0) not in (0, "0-0"):
        return [*words, "MINID", *about, trim["minid"]]
    if trim.get("maxlen"):
        return [*words, "MAXLEN", *about, trim["maxlen"]]
    return words


@many
@given(key=keys, messages=st.lists(payloads, min_size=1, max_size=5), trim=trims)
def test_messages(tap: Tap, key: bytes, messages: list[bytes], trim: dict[str, Any]) -> None:
    tap.take()
    endpoint = Endpoint(unix_socket=tap.unix_socket, stream_key=key, **trim)
    with Dispatcher(endpoint) as dispatcher:
        for message in messages:
            dispatcher.produce(message)
        assert len(dispatcher.flush().failed_ids) <= len(messages)  # NO_STREAM, TRIMMED: still sent
    sent = tap.take()
    times = re.findall(rb"\$2\r\nts\r\n\$20\r\n(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\r\n", sent)
    between = options_between(trim)
    commands = [
        pack("XADD", key, *between, "*", "payload", message, "ts", ts)
        for message, ts in zip(messages, times, strict=True)
    ]
    assert sent == handshake() + b"".join(commands)


@many
@given(rows=st.lists(st.tuples(keys, payloads), min_size=1, max_size=8), field=st.text(min_size=1, max_size=20))
def test_rows_with_their_own_stream_keys(tap: Tap, rows: list[tuple[bytes, bytes]], field: str) -> None:
    tap.take()
    columns = {"key": pa.array([key for key, _ in rows], pa.binary()), "value": [value for _, value in rows]}
    with Dispatcher(
        Endpoint(unix_socket=tap.unix_socket, stream_key="unused"), payload_field=field, ts_field=None
    ) as dispatcher:
        dispatcher.produce_batch(pa.record_batch(columns), payload="value", stream_key="key")
        assert dispatcher.flush().raise_for_failures().delivered == len(rows)
    assert tap.take() == handshake() + b"".join(pack("XADD", key, "*", field, value) for key, value in rows)


@many
@given(
    rows=st.lists(
        st.fixed_dictionaries({"a": st.one_of(st.none(), payloads), "b": st.one_of(st.none(), st.text(max_size=50))}),
        min_size=1,
        max_size=8,
    )
)
def test_fields(tap: Tap, rows: list[dict[str, Any]]) -> None:
    tap.take()
    schema = pa.schema({"a": pa.binary(), "b": pa.string()})
    with Dispatcher(Endpoint(unix_socket=tap.unix_socket, stream_key="s"), ts_field=None) as dispatcher:
        dispatcher.produce_batch(pa.RecordBatch.from_pylist(rows, schema), fields=["b", "a"])
        failed = dispatcher.flush().failed
    pairs = [[word for name in "ba" if row[name] is not None for word in (name, row[name])] for row in rows]
    assert [one.code for one in failed] == ["EMPTY"] * pairs.count([])
    commands = b"".join(pack("XADD", "s", "*", *words) for words in pairs if words)
    assert tap.take() == (handshake() + commands if commands else b"")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 65_535, 65_536, 65_537, 1_000_000, 5_000_000])
def test_payloads_of_every_size(tap: Tap, size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    with Dispatcher(Endpoint(unix_socket=tap.unix_socket, stream_key="s"), ts_field=None) as dispatcher:
        for message in (b"before", payload, b"after"):
            dispatcher.produce(message)
        assert dispatcher.flush().raise_for_failures().delivered == 3
    commands = (pack("XADD", "s", "*", "payload", message) for message in (b"before", payload, b"after"))
    assert tap.take() == handshake() + b"".join(commands)
