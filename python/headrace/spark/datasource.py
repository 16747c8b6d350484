"""The Spark data source `redis_streams`: `df.write`, `df.writeStream`, `spark.read`, `spark.readStream` and SQL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource

from headrace.errors import ConfigError
from headrace.spark import interpreter
from headrace.spark.commit import PartitionCommit, check_limits
from headrace.spark.layout import ColumnLayout, resolve
from headrace.spark.partition import PartitionWriter, current_task
from headrace.spark.settings import WriteSettings, hide_secrets, read
from headrace.spark.source import options as source_options
from headrace.spark.source.batch import BatchReader
from headrace.spark.source.columns import read_schema
from headrace.spark.source.stream import StreamReader
from headrace.spark.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """The equivalent on Spark 4.0, which passes record batches to any writer that is a DataSourceArrowWriter."""


__all__ = ["NAME", "BatchWriter", "RedisStreams", "StreamWriter", "register"]

logger = logging.getLogger("headrace.spark")

#: The name of the format.
NAME: Final = "redis_streams"

#: The local properties in which Spark passes the query and its micro-batch to tasks, unchanged since Spark 2.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class RedisStreams(DataSource):
    """Writes the rows of a DataFrame to a stream, and reads streams. docs/spark.md is the manual.

    ```python
    df.write.format("redis_streams").mode("append").options(host="redis", stream_key="order-events").save()
    spark.read.format("redis_streams").options(host="redis", stream_key="order-events").load()
    ```

    Spark creates it, with the options as text and their names in lower case. It finds the format without `register`
    where `pyspark_headrace`, which comes with headrace, is installed.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a read or a SQL view that names none."""
        return read_schema(self._read_settings(streaming=None))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Check options and columns before any task starts."""
        if overwrite:
            text = "mode('overwrite') is not supported: streams are append-only; use mode('append')"
            raise ConfigError(text, option="mode")
        settings = self._settings(streaming=False)
        return BatchWriter(settings, resolve(settings, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, Spark's name
        """Check options and columns before any task starts."""
        if overwrite:
            text = "outputMode('complete') is not supported: streams are append-only; use 'append', or foreachBatch"
            raise ConfigError(text, option="outputMode")
        settings = self._settings(streaming=True)
        return StreamWriter(settings, resolve(settings, schema))

    def reader(self, schema: StructType) -> BatchReader:
        """Check options and columns before anything is read."""
        return BatchReader(self._read_settings(streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802, Spark's name
        """Check options and columns before anything is read. With this method, Spark requests no simpleStreamReader."""
        return StreamReader(self._read_settings(streaming=True), schema)

    def _read_settings(self, *, streaming: bool | None) -> source_options.ReadSettings:
        hide_secrets(self.options)
        return source_options.read(dict(self.options.items()), streaming=streaming)

    def _settings(self, *, streaming: bool) -> WriteSettings:
        hide_secrets(self.options)
        return read(dict(self.options.items()), streaming=streaming)


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes a DataFrame. Spark pickles it and runs `write` in each task, `commit` or `abort` in the driver."""

    def __init__(self, settings: WriteSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        return PartitionWriter(self._settings, self._layout, self._settings.transaction).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the outcomes, and check the limits on failed rows over all partitions."""
        _commit(self._settings, messages, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the rows that were written nevertheless."""
        _abort(self._settings, messages, "")


class StreamWriter(StreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, settings: WriteSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition of a micro-batch."""
        task = current_task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        batch_id = None if batch is None else int(batch)
        transaction = None
        if self._settings.exactly_once:
            if query is None or batch_id is None:
                text = "exactly_once needs the IDs of query and micro-batch, which Spark did not pass; 'off' does not"
                raise ConfigError(text, option="exactly_once")
            transaction = Transaction(query, batch_id)
        return PartitionWriter(self._settings, self._layout, transaction, batch_id=batch_id).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Log the outcomes, and check the limits on failed rows over all partitions."""
        _commit(self._settings, messages, f"micro-batch {batchId}: ")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Log the rows that were written nevertheless."""
        _abort(self._settings, messages, f"micro-batch {batchId}: ")


def _commit(settings: WriteSettings, messages: list[WriterCommitMessage | None], prefix: str) -> None:
    total = PartitionCommit.sum(messages)
    check_limits(total, settings.failure, settings.endpoint, whole=True)
    if not total.failed:
        logger.info("%s%s to %s", prefix, total, settings.endpoint)
        return
    first = "".join(f"\n  {failure}" for failure in total.first_failures)
    logger.warning("%s%s to %s%s", prefix, total, settings.endpoint, first)


def _abort(settings: WriteSettings, messages: list[WriterCommitMessage | None], prefix: str) -> None:
    total = PartitionCommit.sum(messages)
    unfinished = sum(message is None for message in messages)
    logger.error(
        "%sthe write to %s was aborted: %d of %d partitions did not finish; the others: %s",
        *(prefix, settings.endpoint, unfinished, len(messages), total),
    )


def register(spark: SparkSession) -> None:
    """Register the format `redis_streams` with a session, and make the session active in the calling thread.

    Spark looks up a Python data source in the *active session* of a thread. The thread that created the session has
    one; every other thread that writes must call this function, as with
    `ThreadPoolExecutor(initializer=register, initargs=(spark,))`. (Spark Connect does not need it.)

    The first thread needs it only where Spark does not find the format by itself. Spark finds it where
    `pyspark_headrace`, which comes with headrace, is on the path of the Python that Spark runs, unless another package
    whose name begins with `pyspark_` cannot be imported there.

    Args:
        spark: The session, of Spark or of Spark Connect.

    Raises:
        ConfigError: The Python that Spark starts beside the driver (`PYSPARK_PYTHON`) cannot run headrace.
    """
    if isinstance(spark, SparkSession):  # Spark Connect has a class of its own
        _activate(spark)
    try:
        spark.dataSource.register(RedisStreams)
    except AnalysisException as error:
        # Spark 4.0 found the format by itself, and runs it in the Python in which it found it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    else:
        interpreter.check(planner=True)


def _activate(spark: SparkSession) -> None:
    """Make the session active in the JVM thread that pyspark pairs with this one."""
    jvm: Any = spark._jvm
    getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)
