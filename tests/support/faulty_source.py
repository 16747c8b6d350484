"""A data source that reads like `redis_streams`, but each of its tasks fails once in the middle of its rows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.spark.datasource import RedisStreams
from headrace.spark.source import options as source_options
from headrace.spark.source.batch import BatchReader
from headrace.spark.source.stream import StreamReader

from .processes import wait_until

#: Options that `redis_streams` does not have: the fault, and the server that records where it struck.
FAULT, MARKS = "fault", "marks"
#: The number of record batches that a task yields before its fault.
BEFORE = 2


class Fault:
    """What happens to a task.

    `raise`: an exception. `worker`: its Python worker is killed. `executor`: in the task of the first partition, the
    executor is killed too. `slow`: in that task, the first attempt waits until a second one has read everything.
    """

    def __init__(self, kind: str, socket: str) -> None:
        self._kind = kind
        self._socket = socket

    def within(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        is_first = task.partitionId() == 0
        place = f"{self._kind}:{task.stageId()}:{task.partitionId()}"
        with redis.Redis(unix_socket_path=self._socket) as marks:
            for number, batch in enumerate(batches):
                if number == BEFORE and (is_first or self._kind in ("raise", "worker")):
                    self._strike(marks, place)
                yield batch
            marks.set(f"read:{place}", 1)

    def _strike(self, marks: redis.Redis, place: str) -> None:
        if not marks.set(f"fault:{place}", 1, nx=True):
            return
        match self._kind:
            case "raise":
                raise RuntimeError(f"on purpose: {place}")
            case "worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "executor":
                # The parent of the worker is Spark's daemon, whose parent is the executor.
                parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
                os.kill(int(parent), signal.SIGKILL)
                wait_until(lambda: not Path(f"/proc/{parent}").exists())
            case _:
                wait_until(lambda: marks.exists(f"read:{place}"))


class FaultyBatchReader(BatchReader):
    def __init__(self, fault: Fault, settings: source_options.ReadSettings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._fault = fault

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._fault.within(super().read(partition))


class FaultyStreamReader(StreamReader):
    def __init__(self, fault: Fault, settings: source_options.ReadSettings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._fault = fault

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fault": self._fault}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._fault.within(super().read(partition))


class FaultyStreams(RedisStreams):
    @classmethod
    def name(cls) -> str:
        return "faulty_streams"

    def reader(self, schema: StructType) -> BatchReader:
        return FaultyBatchReader(self._fault(), self._read_settings(streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802, Spark's name
        return FaultyStreamReader(self._fault(), self._read_settings(streaming=True), schema)

    def _fault(self) -> Fault:
        return Fault(self.options[FAULT], self.options[MARKS])

    def _read_settings(self, *, streaming: bool | None) -> source_options.ReadSettings:
        own = {name: value for name, value in self.options.items() if name not in (FAULT, MARKS)}
        return source_options.read(own, streaming=streaming)
