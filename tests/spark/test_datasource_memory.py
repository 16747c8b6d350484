"""A task's memory stays bounded, however many rows its partition has. In a process of its own, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace.testing import LocalServer

pytestmark = pytest.mark.thorough

ROWS = 2_000_000
LIMIT = 64 * 1024 * 1024

PROGRAM = """
import json, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from headrace.spark import partition
from headrace.spark.datasource import RedisStreams
from support.processes import PeakMemory

class Task:
    partitionId = attemptNumber = lambda self: 0

def batches():
    global memory
    for start in range(0, int(sys.argv[2]), 10_000):
        payloads = [b"%011d-" % row + b"x" * 88 for row in range(start, start + 10_000)]
        yield pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary())})
        if start == 0:
            memory = PeakMemory()

partition.current_task = Task
options = {"unix_socket": sys.argv[1], "stream_key": "events", "maxlen": "10000", **json.loads(sys.argv[3])}
source = RedisStreams(options).writer(StructType().add("payload", "binary"), overwrite=False)
written = source.write(batches())
print(json.dumps({"delivered": written.delivered, "failed": written.failed, "growth": memory.growth}))
"""


@pytest.mark.parametrize(
    "options",
    [{}, {"txn_app_id": "job", "txn_version": "1"}, {"on_failure": "dead_letter", "dead_letter_key": "dead"}],
    ids=["fail", "exactly-once", "dead-letter"],
)
def test_memory_is_bounded_over_millions_of_rows(any_server: LocalServer, options: dict[str, str]) -> None:
    program = [sys.executable, "-c", PROGRAM, any_server.unix_socket, str(ROWS), json.dumps(options)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    growth = reported.pop("growth")
    assert reported == {"delivered": ROWS, "failed": 0}
    assert 0 < growth < LIMIT
