"""The contenders: each sends the same rows to one stream in its own way, and is done when every reply is here.

A contender gets its rows ready, off the clock, and returns the call that is measured: it connects, sends, and returns
how many entries the client itself saw confirmed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Any

import hiredis
import pyarrow as pa
import redis
from redis._parsers import _RESP2Parser
from redis.connection import PythonRespSerializer
from redis.utils import HIREDIS_AVAILABLE

from headrace import Dispatcher, Endpoint

MAXLEN = 100_000
#: Rows of a record batch, and different payloads. Sent again and again, so that every contender has them in the cache.
BATCH = 10_000
PAYLOAD_BYTES = 120
#: Commands of a pipeline, where the client has such a thing.
PIPELINE = 1_000
#: Commands that the floor sends at once, and leaves unanswered at most.
FLOOR_CHUNK, FLOOR_WINDOW = 250, 4_000
RECEIVE_BYTES = 64 * 1024
#: A server that is silent for so many seconds fails the round.
SILENCE = 30.0

Run = Callable[[], int]


@dataclass(frozen=True)
class Target:
    """Where the rows go, and how many of them; a multiple of `BATCH`."""

    host: str
    port: int
    stream_key: str
    rows: int


@dataclass(frozen=True)
class Contender:
    """A client. `max_rows` shortens the rounds of a slow one: every figure is per row."""

    name: str
    prepare: Callable[[Target], Run]
    max_rows: int | None = None


def payloads() -> list[bytes]:
    """`BATCH` JSON objects of `PAYLOAD_BYTES` bytes, all different."""
    start = b'{"order_id": %08d, "status": "shipped", "note": "'
    return [(start % n).ljust(PAYLOAD_BYTES - 2, b"x") + b'"}' for n in range(BATCH)]


def now() -> str:
    """The value of `ts`. The clients that leave it to the caller ask once a pipeline: for a loop in Python a gift."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def endpoint(target: Target) -> Endpoint:
    return Endpoint(host=target.host, port=target.port, stream_key=target.stream_key, maxlen=MAXLEN)


def headrace_produce_batch(target: Target) -> Run:
    batch = pa.record_batch({"id": pa.array(range(BATCH), pa.int64()), "payload": pa.array(payloads(), pa.binary())})

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target)) as dispatcher:
            for _ in range(target.rows // BATCH):
                dispatcher.produce_batch(batch, payload="payload", message_id="id")
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


def headrace_produce(target: Target) -> Run:
    rows = payloads()

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target)) as dispatcher:
            for first in range(0, target.rows, BATCH):
                for message_id, payload in enumerate(rows, first):
                    dispatcher.produce(payload, message_id)
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


class PlainConnection(redis.Connection):
    """redis-py's connection as it is where hiredis is not installed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"parser_class": _RESP2Parser})  # type: ignore[no-untyped-call]

        if not isinstance(self._command_packer, PythonRespSerializer):
            raise TypeError("this redis-py still packs with hiredis: it calls its packer by another name")

    def _construct_command_packer(self, packer: object) -> PythonRespSerializer:  # noqa: ARG002
        return PythonRespSerializer(self._buffer_cutoff, self.encoder.encode)


def redis_py(connection_class: type[redis.Connection], target: Target) -> Run:
    rows = payloads()

    def run() -> int:
        pool = redis.ConnectionPool(connection_class=connection_class, host=target.host, port=target.port)
        stored = 0
        with redis.Redis.from_pool(pool) as client:
            for part in pipelines(rows, target.rows):
                pipeline = client.pipeline(transaction=False)
                ts = now()
                for payload in part:
                    pipeline.xadd(target.stream_key, {"payload": payload, "ts": ts}, maxlen=MAXLEN, approximate=True)
                stored += len(pipeline.execute())
        return stored

    return run


def redis_py_with_hiredis(target: Target) -> Run:
    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    return redis_py(redis.Connection, target)


def redis_py_plain(target: Target) -> Run:
    return redis_py(PlainConnection, target)


def hiredis_by_hand(target: Target) -> Run:
    """The strongest rival in Python: hiredis packs and parses, and one pipeline is always ahead of the replies."""
    rows = payloads()

    def run() -> int:
        reader = hiredis.Reader()
        stored = unanswered = 0

        def read(until: int) -> int:
            """Read replies until so many are left to come; return how many were read."""
            seen = 0
            while unanswered - seen > until:
                reader.feed(receive(connection))
                while (reply := reader.gets()) is not False:
                    if isinstance(reply, hiredis.HiredisError):
                        raise reply
                    seen += 1
            return seen

        with connect(target) as connection:
            for part in pipelines(rows, target.rows):
                ts = now()
                connection.sendall(b"".join([command(target, payload, ts) for payload in part]))
                unanswered += len(part)
                seen = read(until=len(part))
                stored, unanswered = stored + seen, unanswered - seen
            return stored + read(until=0)

    return run


def floor(target: Target) -> Run:
    """What the server and the sockets cost: bytes prepared beforehand go out, replies are counted and not looked at."""
    ts = now()
    commands = [command(target, payload, ts) for payload in payloads()]
    chunks = [b"".join(commands[at : at + FLOOR_CHUNK]) for at in range(0, BATCH, FLOOR_CHUNK)]

    def run() -> int:
        stored = unanswered = 0
        with connect(target) as connection:
            for chunk in chain.from_iterable(repeat(chunks, target.rows // BATCH)):
                while unanswered > FLOOR_WINDOW - FLOOR_CHUNK:
                    seen = receive(connection).count(b"$")
                    stored, unanswered = stored + seen, unanswered - seen
                connection.sendall(chunk)
                unanswered += FLOOR_CHUNK
            # An error reply has no `$`: it is waited for in vain.
            while stored < target.rows:
                stored += receive(connection).count(b"$")
        return stored

    return run


def command(target: Target, payload: bytes, ts: str) -> bytes:
    """The bytes of one XADD, those that every contender sends."""
    arguments: Any = ("XADD", target.stream_key, "MAXLEN", "~", MAXLEN, "*", "payload", payload, "ts", ts)
    packed: bytes = hiredis.pack_command(arguments)  # its stub knows tuples of one argument only
    return packed


def connect(target: Target) -> socket.socket:
    connection = socket.create_connection((target.host, target.port), timeout=SILENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    if not (received := connection.recv(RECEIVE_BYTES)):
        raise ConnectionError("the server closed the connection")
    return received


def pipelines(rows: list[bytes], count: int) -> Iterator[list[bytes]]:
    """`count` payloads in pipelines."""
    parts = [rows[at : at + PIPELINE] for at in range(0, len(rows), PIPELINE)]
    return chain.from_iterable(repeat(parts, count // len(rows)))


FLOOR = Contender("floor: prepared bytes", floor)
PRODUCE_BATCH = Contender("headrace produce_batch", headrace_produce_batch)
PRODUCE = Contender("headrace produce", headrace_produce)
BY_HAND = Contender("hiredis.pack_command by hand", hiredis_by_hand)
REDIS_PY = Contender("redis-py with hiredis", redis_py_with_hiredis, max_rows=100_000)
REDIS_PY_PLAIN = Contender("redis-py without hiredis", redis_py_plain, max_rows=100_000)

CONTENDERS = (FLOOR, PRODUCE_BATCH, PRODUCE, BY_HAND, REDIS_PY, REDIS_PY_PLAIN)
