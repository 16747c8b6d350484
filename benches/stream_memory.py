"""The memory that a batch for many streams takes, in the sender and the server, with and without exactly once.

    PYTHONPATH=tests python -m benches.stream_memory

Each figure comes from a separate process, which makes its record batches while they are sent. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import redis
from benches.servers import newest_program

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.processes import PeakMemory

STREAMS = 65_536
ROWS_OF_BATCH = 8_192
Mode = Literal["off", "script"]
MODES: tuple[Mode, ...] = get_args(Mode)


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, ROWS_OF_BATCH):
        numbers = range(first, min(first + ROWS_OF_BATCH, rows))
        keys = [f"s{number % STREAMS:05d}" for number in numbers]
        yield pa.record_batch({"payload": pa.array([b"x" * 120] * len(keys), pa.binary()), "key": keys})


def send(unix_socket: str, mode: Mode, rows: int) -> None:
    schema = next(batches(1)).schema
    with Dispatcher(Endpoint(unix_socket=unix_socket, stream_key="first"), exactly_once=mode) as dispatcher:
        dispatcher.produce(b"x")
        dispatcher.flush().raise_for_failures()
        if mode == "script":
            dispatcher.begin("batch")
        memory = PeakMemory()
        dispatcher.produce_batch(pa.RecordBatchReader.from_batches(schema, batches(rows)), stream_key="key")
        dispatcher.flush().raise_for_failures()
        print(json.dumps(memory.growth))


def main() -> None:
    for mode in MODES:
        for rows in (STREAMS, 4 * STREAMS):
            with LocalServer(newest_program().path) as server:
                process, held = memory_of(server, mode, rows)
            print(f"{mode}, {rows:,} rows: process {process / 1e6:.1f} MB, server {held / 1e6:.1f} MB", flush=True)


def memory_of(server: LocalServer, mode: str, rows: int) -> tuple[int, int]:
    """Return the peak growth of a sending process after its first row, and the growth of the server."""
    client = redis.Redis(unix_socket_path=server.unix_socket)
    before = used(client)
    command = [sys.executable, "-m", "benches.stream_memory", server.unix_socket, mode, str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), used(client) - before


def used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        send(sys.argv[1], cast(Mode, sys.argv[2]), int(sys.argv[3]))
    else:
        main()
