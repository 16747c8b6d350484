"""Shared parts of the contenders: the rows, and a plain socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, repeat
from random import Random

from benches.turns import Target

#: Commands of a pipeline, for clients that have pipelines.
PIPELINE = 1_000
#: Seconds of silence from a server after which the turn fails.
SILENCE = 30.0
#: Shorter payloads hold only a number.
LIFELIKE_BYTES = 100
RECEIVE_BYTES = 64 * 1024


def payloads(target: Target) -> list[bytes]:
    """Return `target.batch` different JSON objects of `target.payload_bytes` bytes, as hard to compress as most."""
    start, end = b'{"n": "%07d', b'"}'
    if target.payload_bytes >= LIFELIKE_BYTES:
        start = b'{"order_id": 1%07d, "status": "shipped", "currency": "EUR", "customer": "'
    random = Random(target.payload_bytes)
    missing = target.payload_bytes - len(start % 0) - len(end)
    fillers = (random.randbytes(missing // 2 + 1).hex()[:missing].encode() for _ in range(target.batch))
    return [start % number + filler + end for number, filler in enumerate(fillers)]


def pipelines(target: Target) -> Iterator[list[bytes]]:
    """Yield the payloads of `target.rows` rows in pipelines, repeating those of one batch."""
    rows = payloads(target)
    parts = [rows[at : at + PIPELINE] for at in range(0, len(rows), PIPELINE)]
    return chain.from_iterable(repeat(parts, target.rows // target.batch))


def now() -> str:
    """The value of `ts`. Contenders without a time of their own call this once per pipeline, which favours them."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def packed(*arguments: str | bytes | int) -> bytes:
    """Return a command in its wire format, for contenders that pack off the clock."""
    parts = [argument if isinstance(argument, bytes) else str(argument).encode() for argument in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def connect(target: Target) -> socket.socket:
    if target.unix_socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SILENCE)
        connection.connect(target.unix_socket)
        return connection
    connection = socket.create_connection((target.host, target.port), timeout=SILENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    if not (received := connection.recv(RECEIVE_BYTES)):
        raise ConnectionError("the server closed the connection")
    return received
