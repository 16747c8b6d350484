"""Python data sources to compare with: batches that are ready, and redis-py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

#: The most rows of a batch, as headrace has them by default.
BATCH_ROWS = 10_000
#: The entries of a page of redis-py.
PAGE = 1_000


class ReadyBatches(DataSource):
    """The same batch again and again: the cost of Spark and its workers."""

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
        size = 120 if len(self._names) == 2 else 12
        columns = [pa.array(["x" * size] * min(BATCH_ROWS, left)) for _ in self._names]
        batch = pa.RecordBatch.from_arrays(columns, self._names)
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


class RedisPy(DataSource):
    """redis-py with hiredis: XRANGE by pages of 1,000, a tuple for each entry."""

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
        import redis

        options = self._options
        with redis.Redis(host=options["host"], port=int(options["port"])) as client:
            ((first, _),) = client.xrange(options["stream_key"], count=1)
            rows, parts = int(options["rows"]), int(options["partitions"])
            found = client.xrange(options["stream_key"], first, count=rows)
            borders = [found[rows * part // parts][0] for part in range(parts)]
        ends = [*borders[1:], None]
        last = found[-1][0]
        return [InputPartition((begin, end, last)) for begin, end in zip(borders, ends, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        import redis
        from redis.utils import HIREDIS_AVAILABLE

        assert HIREDIS_AVAILABLE
        names = [name.encode() for name in self._names]
        begin, end, last = partition.value
        stop = last if end is None else b"(" + end
        with redis.Redis(host=self._options["host"], port=int(self._options["port"])) as client:
            start = begin
            while page := client.xrange(self._options["stream_key"], start, stop, count=PAGE):
                for _, fields in page:
                    yield tuple(fields[name].decode() for name in names)
                start = b"(" + page[-1][0]
