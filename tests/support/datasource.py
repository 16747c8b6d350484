"""Helpers for tests of the data source."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import redis
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sf

from headrace.testing import LocalServer
from support.fake_server import Peer

Options = dict[str, Any]


def to(server: LocalServer, **options: object) -> Options:
    """The options for the stream `events` of a server."""
    return {"unix_socket": server.unix_socket, "stream_key": "events", **options}


def writer(frame: DataFrame, options: Options) -> DataFrameWriter:
    return frame.write.format("redis_streams").mode("append").options(**options)


def save(frame: DataFrame, server: LocalServer, **options: object) -> None:
    writer(frame, to(server, **options)).save()


def messages(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Rows with a `message_id` that counts from 0, and the payload `p<message_id>`."""
    payload = sf.concat(sf.lit("p"), "id").alias("payload")
    return spark.range(0, rows, 1, partitions).select(sf.col("id").alias("message_id"), payload)


def stored(client: redis.Redis, key: str = "events") -> dict[str, dict[str, bytes]]:
    """The entries of a stream, by entry ID and field."""
    entries: Any = client.xrange(key)
    return {entry_id.decode(): {name.decode(): value for name, value in fields.items()} for entry_id, fields in entries}


def payloads(client: redis.Redis, key: str = "events") -> list[str]:
    return [fields["payload"].decode() for fields in stored(client, key).values()]


def connections(client: redis.Redis) -> int:
    """The number of connections that the server has accepted."""
    info: Any = client.info("stats")
    return int(info["total_connections_received"])


def assert_workers_keep_connections(client: redis.Redis, write: Callable[[], object]) -> None:
    """Call `write`, a job of two tasks that each open a connection or have one, 15 times.

    Spark passes tasks to its idle workers in turn: the first 20 tasks reach all of them, also those that the jobs of
    other tests have left (a job that reads and writes leaves two for each task).
    """
    before = connections(client)
    for _ in range(10):
        write()
    opened = connections(client)
    assert opened > before
    for _ in range(5):
        write()
    assert connections(client) == opened


class InterceptingServer:
    """A port of 127.0.0.1 that answers some XADDs itself, and passes all other commands to a real server.

    Args:
        server: The real server.
        answer: Returns the reply to the arguments of an XADD, or None to let the real server reply.
    """

    def __init__(self, server: LocalServer, answer: Callable[[list[bytes]], bytes | None]) -> None:
        self._server = server
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, name="intercepting server", daemon=True).start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="intercepted client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A worker's connection stays open as long as the worker runs.
        connection.settimeout(None)
        peer = Peer(connection)
        real = redis.Redis(unix_socket_path=self._server.unix_socket)
        # The real server may be gone before a task that is still running when its test ends.
        with connection, real, contextlib.suppress(redis.ConnectionError):
            while commands := peer.commands(1):
                peer.send(self._reply(real, commands[0]))

    def _reply(self, real: redis.Redis, command: list[bytes]) -> bytes:
        if command[0].upper() != b"XADD":
            return b"+OK\r\n"
        if answer := self._answer(command):
            return answer
        try:
            entry_id: Any = real.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            return b"-%s\r\n" % str(error).encode()
        return b"$%d\r\n%s\r\n" % (len(entry_id), entry_id)
