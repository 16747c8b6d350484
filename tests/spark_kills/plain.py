"""A typical hand-written sink: redis-py, a pipeline per record batch, no error handling.

The checker must find its duplicates; a checker that does not would find none anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import redis
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        """Spark 4.0 has no such class, but asks any writer whether it is an Arrow writer."""


@dataclass
class Written(WriterCommitMessage):
    delivered: int


class PlainSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain"

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        return PlainWriter(self.options["host"], int(self.options["port"]), self.options["stream_key"])


class PlainWriter(StreamArrowWriter):
    def __init__(self, host: str, port: int, stream_key: str) -> None:
        self._host, self._port, self._stream_key = host, port, stream_key

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = 0
        with redis.Redis(self._host, self._port) as client:
            for batch in iterator:
                pipeline = client.pipeline(transaction=False)
                for value in batch.column(0).to_pylist():
                    pipeline.xadd(self._stream_key, {"payload": value})
                written += len(pipeline.execute())
        return Written(written)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        pass
