"""A wrapper around a data source inside Spark, in which each trap of a plan springs once.

An option names its folder: `traps.json` has the traps, and a file is created next to it before a trap springs, so that
the next attempt, driver or worker passes. It also keeps the commit messages.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .plain import PlainSource, StreamArrowWriter
from .plan import Trap

#: The option that names the folder. Spark passes option names in lower case.
FOLDER = "trapfolder"
#: Each is available as the sink `trapped_<name>`.
PLAIN, REDIS_STREAMS = "plain", "redis_streams"


def lay_traps(folder: Path, traps: Sequence[Trap]) -> None:
    """Write the traps to the folder, for the wrapper."""
    (folder / "traps.json").write_text(json.dumps([dataclasses.asdict(trap) for trap in traps]))


def sprung(folder: Path) -> list[Trap]:
    """The traps that have sprung."""
    return [trap for number, trap in enumerate(_traps(folder)) if (folder / f"sprung-{number}").exists()]


def committed(folder: Path) -> dict[str, int]:
    """The sums of the counts in the commit messages, by name, including those of replayed micro-batches."""
    sums: dict[str, int] = {}
    for path in folder.glob("commit-*.json"):
        for name, number in json.loads(path.read_text()).items():
            sums[name] = sums.get(name, 0) + number
    return sums


def _traps(folder: Path) -> list[Trap]:
    return [Trap(**trap) for trap in json.loads((folder / "traps.json").read_text())]


class _Springs:
    """Raises or kills where a trap is set; `os.open` with O_EXCL ensures that it does so only once."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def task(self, batch: int, partition: int, after: int | None) -> None:
        self._at(("task", "worker"), batch, partition, after)

    def commit(self, batch: int, after: int | None) -> None:
        self._at(("commit",), batch, 0, after)

    def _at(self, kinds: tuple[str, ...], *place: int | None) -> None:
        for number, trap in enumerate(_traps(self._folder)):
            if trap.kind in kinds and (trap.batch, trap.partition, trap.after) == place and self._is_first(number):
                if trap.kind == "worker":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError(f"a trap: {trap}")

    def _is_first(self, number: int) -> bool:
        try:
            os.close(os.open(self._folder / f"sprung-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class TrappedWriter(StreamArrowWriter):
    """The writer of the data source, with traps before, during and after its work."""

    def __init__(self, inner: DataSourceStreamWriter, folder: str) -> None:
        self._inner = inner
        self._folder = folder
        self._springs = _Springs(folder)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context: Any = TaskContext.get()
        place = int(context.getLocalProperty("streaming.sql.batchId")), context.partitionId()

        def batches() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(iterator, 1):
                yield batch
                # The writer asks for the next record batch, so it has consumed this one.
                self._springs.task(*place, number)

        message = self._inner.write(batches())
        self._springs.task(*place, None)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._springs.commit(batchId, 0)
        numbers: dict[str, int] = {}
        for message in messages:
            for name, number in vars(message).items() if message else ():
                if isinstance(number, int):
                    numbers[name] = numbers.get(name, 0) + number
        (Path(self._folder) / f"commit-{batchId}-{os.urandom(4).hex()}.json").write_text(json.dumps(numbers))
        self._inner.commit(messages, batchId)
        self._springs.commit(batchId, None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._inner.abort(messages, batchId)


class _TrappedSource(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        options = {name: value for name, value in self.options.items() if name != FOLDER}
        inner = self._source(options).streamWriter(schema, overwrite)
        return TrappedWriter(inner, self.options[FOLDER])

    def _source(self, options: dict[str, str]) -> DataSource:
        raise NotImplementedError


class TrappedRedisStreams(_TrappedSource):
    @classmethod
    def name(cls) -> str:
        return f"trapped_{REDIS_STREAMS}"

    def _source(self, options: dict[str, str]) -> DataSource:
        from pyspark_headrace import DefaultSource

        return DefaultSource(options)


class TrappedPlain(_TrappedSource):
    @classmethod
    def name(cls) -> str:
        return f"trapped_{PLAIN}"

    def _source(self, options: dict[str, str]) -> DataSource:
        return PlainSource(options)
