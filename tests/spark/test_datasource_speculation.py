"""Speculation: Spark runs a second attempt of a slow task, and uses the one that ends first.

In a process of its own, on a cluster of two executors: `local[n]` does not speculate.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads
from support.processes import wait_until
from support.programs import run_file

pytestmark = pytest.mark.thorough

Connect = Callable[..., redis.Redis]

#: Rows of each of the two partitions: a record batch exceeds the buffers between Spark and the writer.
ROWS = 2_000
RECORD_BATCH = 100
PAYLOAD = 1_000


def test_two_concurrent_attempts_write_each_row_once(any_server: LocalServer, connect: Connect, tmp_path: Path) -> None:
    client = connect(any_server)
    arguments = (any_server.unix_socket, str(tmp_path))
    done = run_file(__file__, *arguments, SPARK_LOCAL_DIRS=str(tmp_path))
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    expected = [str(n) for n in range(2 * ROWS)]
    once, twice = ([tuple(payload.split()) for payload in payloads(client, key)] for key in ("once", "twice"))
    assert sorted(number for number, _ in once) == sorted(expected)
    # Each row names its attempt: some rows of partition 0 are from the first, some from the second.
    of_0 = [(number, attempt) for number, attempt in once if int(number) < ROWS]
    assert [number for number, _ in of_0] == expected[:ROWS]
    assert {attempt for _, attempt in of_0} == {"0", "1"}
    # Without a transaction the guarantee is at least once.
    counts = Counter(number for number, _ in twice)
    assert set(counts) == set(expected)
    assert set(counts.values()) == {1, 2}


def main(unix_socket: str, folder: str) -> None:
    from support.spark_cluster import speculating

    record_batch = ("spark.sql.execution.arrow.maxRecordsPerBatch", str(RECORD_BATCH))
    spark = speculating(folder).config(*record_batch).getOrCreate()
    for key, transaction in (("once", {"txn_app_id": "job", "txn_version": "1"}), ("twice", {})):
        frame = spark.range(0, 2 * ROWS, 1, 2).mapInArrow(paced(unix_socket, key), "payload string")
        options = {"unix_socket": unix_socket, "stream_key": key, **transaction}
        frame.write.format("redis_streams").mode("append").options(**options).save()
    spark.stop()


def paced(unix_socket: str, key: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the source of the rows; the two attempts at partition 0 wait for each other."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task: Any = TaskContext.get()
        attempt = task.attemptNumber()
        given = 0
        with redis.Redis(unix_socket_path=unix_socket) as client:
            if attempt == 1:
                wait_until(lambda: client.exists(f"{key}:half"))
            for batch in batches:
                texts = [f"{number} {attempt}".ljust(PAYLOAD) for number in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_pydict({"payload": texts})
                given += len(texts)
                if task.partitionId() == 0 and attempt == 0 and given == ROWS // 2:
                    # The other partition has ended, and of this one there are as many rows as are sure to get through.
                    wait_until(lambda: client.xlen(key) >= ROWS + ROWS // 4)
                    client.set(f"{key}:half", 1)
                    # The second attempt has come farther than the first.
                    wait_until(lambda: client.xlen(key) >= 2 * ROWS - ROWS // 4)
                    client.set(f"{key}:went-on", 1)
            if attempt == 1:
                wait_until(lambda: client.exists(f"{key}:went-on"))

    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
