"""Helpers for tests of the data source's reading half."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql.types import StructType

from headrace.spark.source.batch import BatchReader
from headrace.spark.source.options import ReadSettings, read
from headrace.spark.source.stream import HAS_LIMITS, StreamReader
from headrace.testing import LocalServer

SCHEMA = StructType().add("n", "long")


def add(client: redis.Redis, key: str, numbers: Iterable[int], ids: Callable[[int], str] | None = None) -> None:
    """Add an entry with the field `n` for each number; by default each has its own millisecond."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.xadd(key, {"n": number}, id=ids(number) if ids else f"{1_795_324_724_029 + number}-0")
    pipeline.execute()


def settings(server: LocalServer, streaming: bool = False, **options: Any) -> ReadSettings:
    """The options of a read of the stream `s`, or of those that `stream_keys` names."""
    given = {"unix_socket": server.unix_socket, **({} if "stream_keys" in options else {"stream_key": "s"}), **options}
    return read({name: str(value) for name, value in given.items()}, streaming=streaming)


def batch_of(server: LocalServer, **options: Any) -> BatchReader:
    """A batch that reads the field `n`. Its methods are called as Spark calls them."""
    return BatchReader(settings(server, **options), SCHEMA)


def rows(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """The numbers that a task read."""
    return [n for batch in batches for n in batch.column(0).to_pylist()]


def ids(number: int) -> str:
    """The ID of the entry with a number."""
    return f"{number + 1}-0"


def query_on(server: LocalServer, **options: Any) -> StreamReader:
    """A streaming query from the oldest entry on, like `batch_of`."""
    given = {"starting": "earliest", "poll_interval": 0.001, **options}
    if not HAS_LIMITS and "max_entries_per_trigger" in given:
        given["available_now"] = False
    return StreamReader(settings(server, streaming=True, **given), SCHEMA)


def next_end(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Do what Spark does for a micro-batch; returns its end, converted to the text of the checkpoint and back."""
    reader._looked_at = float("-inf")  # poll_interval has passed
    if not HAS_LIMITS:
        return json.loads(json.dumps(reader.latestOffset()))  # type: ignore[no-any-return]
    return json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))  # type: ignore[no-any-return]
