"""Python data sources for comparison: ready batches, and redis-py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

#: The most rows of a batch, as in headrace by default.
BATCH_ROWS = 10_000
#: The entries of a page of redis-py.
PAGE = 1_000


class ReadyBatches(DataSource):
    """The same batch repeatedly: the cost of Spark and its workers."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def reader(self, schema: Any) -> DataSourceReader:
        return _ReadyReader(schema, int(self.options["rows"]), int(self.options["partitions"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, schema: Any, rows: int, partitions: int) -> None:
        self._names = schema.names
        self._rows, self._partitions = rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // self._partitions)] * self._partitions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        left = partition.value
        sizes = [120 if name == "payload" else 20 if name == "ts" else 12 for name in self._names]
        columns = [pa.array(["x" * size] * min(BATCH_ROWS, left)) for size in sizes]
        batch = pa.RecordBatch.from_arrays(columns, self._names)
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


class RedisPy(DataSource):
    """redis-py with hiredis: XRANGE in pages of 1,000, one tuple per entry.

    The option `borders` has the first ID of each partition, and the ID after the last entry.
    """

    @classmethod
    def name(cls) -> str:
        return "redis_py"

    def reader(self, schema: Any) -> DataSourceReader:
        return _RedisPyReader(schema, dict(self.options))


class _RedisPyReader(DataSourceReader):
    def __init__(self, schema: Any, options: dict[str, str]) -> None:
        self._names = schema.names
        self._options = options

    def partitions(self) -> list[InputPartition]:
        borders = self._options["borders"].split(",")
        return [InputPartition(pair) for pair in pairwise(borders)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        import redis
        from redis.utils import HIREDIS_AVAILABLE

        assert HIREDIS_AVAILABLE
        names = [name.encode() for name in self._names]
        start, end = partition.value
        with redis.Redis(host=self._options["host"], port=int(self._options["port"])) as client:
            while page := client.xrange(self._options["stream_key"], start, f"({end}", count=PAGE):
                for _, fields in page:
                    yield tuple(fields[name].decode() for name in names)
                start = b"(" + page[-1][0]
