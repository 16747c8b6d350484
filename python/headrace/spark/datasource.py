"""The Spark data source `redis_streams`: `df.write.format("redis_streams")` and `df.writeStream.format(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.errors import ConfigError
from headrace.spark import interpreter
from headrace.spark.layout import resolve
from headrace.spark.options import Settings, hide_secrets, read
from headrace.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NAME", "RedisStreams", "register"]

#: The name of the format.
NAME: Final = "redis_streams"

WRITES_ONLY: Final = (
    f"{NAME} writes only: read the stream with a client such as redis-py (XRANGE, XREADGROUP), and hand its entries to "
    "createDataFrame; docs/spark.md shows how"
)


class RedisStreams(DataSource):
    """Writes the rows of a DataFrame to a stream; docs/spark.md is its manual.

    ```python
    df.write.format("redis_streams").mode("append").options(host="redis", stream_key="order-events").save()
    ```

    Spark makes it, with the options as text and their names in lower case; where pyspark_headrace is installed, which
    comes with headrace, it finds it without `register`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> str:
        """The columns of a SQL view that says none: the payload alone."""
        layout = self._settings(streaming=False).layout
        if layout.payload not in (None, "payload") or layout.fields or layout.json or layout.arrow_ipc:
            text = "name the view's columns, for its options do: CREATE TEMPORARY VIEW orders (id BIGINT, …) USING …"
            raise ConfigError(text, option="schema")
        return "payload STRING"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Check the options and the columns, before any task starts."""
        if overwrite:
            text = "mode('overwrite') is not there: a stream is added to; write mode('append')"
            raise ConfigError(text, option="mode")
        settings = self._settings(streaming=False)
        return BatchWriter(settings, resolve(settings, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, Spark's name
        """Check the options and the columns, before any task starts."""
        if overwrite:
            text = "outputMode('complete') is not there: a stream is added to; take 'append', or foreachBatch"
            raise ConfigError(text, option="outputMode")
        settings = self._settings(streaming=True)
        return StreamWriter(settings, resolve(settings, schema))

    # Spark asks for a reader when an action or a query runs. In load() it asks for the schema alone, as for a SQL view
    # that names no columns: the two calls are the same, so schema() cannot refuse one of them.

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002
        """Refuse to read, and say how to read instead."""
        raise ConfigError(WRITES_ONLY, option="format")

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802, Spark's name
        """Refuse to read, and say how to read instead. Spark then asks for no simpleStreamReader."""
        raise ConfigError(WRITES_ONLY, option="format")

    def _settings(self, *, streaming: bool) -> Settings:
        hide_secrets(self.options)
        return read(dict(self.options.items()), streaming=streaming)


def register(spark: SparkSession) -> None:
    """Make the format `redis_streams` known to a session, and the session active in the calling thread.

    Spark looks for a Python data source in the *active session* of a thread. The thread that made the session has one;
    each other thread that writes calls this: `ThreadPoolExecutor(initializer=register, initargs=(spark,))`. (Spark
    Connect does not need it.)

    In the first thread it is needed where Spark does not find the format by itself. Spark does where
    `pyspark_headrace`, which comes with headrace, is on the path of the Python that Spark runs; but not if any other
    package with a name that begins with `pyspark_` cannot be imported there.

    Args:
        spark: The session, of Spark or of Spark Connect.

    Raises:
        ConfigError: The Python that Spark starts beside the driver (`PYSPARK_PYTHON`) cannot run headrace.
    """
    if isinstance(spark, SparkSession):  # one of Spark Connect is of another class
        _activate(spark)
    try:
        spark.dataSource.register(RedisStreams)
    except AnalysisException as error:
        # Spark 4.0 found it by itself, and says so in this way. It runs it in the Python in which it found it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    else:
        interpreter.check(planner=True)


def _activate(spark: SparkSession) -> None:
    """Make the session the active one of this thread, in the JVM's thread that pyspark keeps for it."""
    jvm: Any = spark._jvm
    getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)
