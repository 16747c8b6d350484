"""Attempts of tasks that read: each fails once, loses its Python worker or its executor, or runs twice at a time.

In a process of its own, on a cluster of two executors: `local[n]` does neither repeat tasks nor speculate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads
from support.programs import run_file
from support.source import add

pytestmark = pytest.mark.thorough

Connect = Callable[..., redis.Redis]

ENTRIES = 2_000
PARTITIONS = 4
BATCH_ROWS = 100


def test_each_entry_is_read_once_however_often_tasks_run(
    any_server: LocalServer, connect: Connect, tmp_path: Path
) -> None:
    client = connect(any_server)
    add(client, "events", range(ENTRIES))
    arguments = (any_server.unix_socket, str(tmp_path))
    done = run_file(__file__, *arguments, SPARK_LOCAL_DIRS=str(tmp_path))
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    read = json.loads((tmp_path / "rows").read_text())
    expected = list(range(ENTRIES))
    assert {name: numbers == expected for name, numbers in read.items()} == dict.fromkeys(
        ("raise", "worker", "slow", "first action", "second action"), True
    )
    # The writer's tokens are of partitions and row numbers: they hold if the rows of each attempt are the same.
    assert sorted(map(int, payloads(client, "copy"))) == expected
    # Each task failed once, in each of the two actions too; the executor once; and one task ran twice at a time.
    marks = [key.decode().split(":")[1] for key in client.scan_iter("fault:*")]
    assert {kind: marks.count(kind) for kind in marks} == {
        "raise": 3 * PARTITIONS,
        "worker": PARTITIONS,
        "executor": 1,
        "slow": 1,
    }


def main(unix_socket: str, folder: str) -> None:
    from support.faulty_source import FaultyStreams
    from support.spark_cluster import speculating

    spark = speculating(folder).getOrCreate()
    spark.dataSource.register(FaultyStreams)
    read: dict[str, list[int]] = {}

    def source(reader: Any, fault: str) -> Any:
        options: dict[str, Any] = {"unix_socket": unix_socket, "stream_key": "events", "starting": "earliest"}
        options |= {"min_partitions": PARTITIONS, "batch_rows": BATCH_ROWS, "fault": fault, "marks": unix_socket}
        return reader.format("faulty_streams").schema("n long").options(**options).load()

    def numbers(frame: Any) -> list[int]:
        return sorted(row.n for row in frame.collect())

    def two_actions(frame: Any, _: int) -> None:
        read["first action"], read["second action"] = numbers(frame), numbers(frame)

    for fault in ("raise", "worker", "slow"):
        read[fault] = numbers(source(spark.read, fault))
    copy = source(spark.readStream, "executor").selectExpr("string(n) AS payload").writeStream
    queries = (
        source(spark.readStream, "raise").writeStream.foreachBatch(two_actions),
        copy.format("redis_streams").options(unix_socket=unix_socket, stream_key="copy"),
    )
    for number, query in enumerate(queries):
        query = query.option("checkpointLocation", f"{folder}/checkpoint-{number}").trigger(availableNow=True)
        query.start().awaitTermination()
    spark.stop()
    (Path(folder) / "rows").write_text(json.dumps(read))


if __name__ == "__main__":
    main(*sys.argv[1:])
