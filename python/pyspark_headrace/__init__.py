"""Lets Spark find the data source `redis_streams` of headrace by itself.

Spark imports each package whose name begins with `pyspark_`, and uses its `DefaultSource`. If one of these packages
cannot be imported, Spark finds no data source at all, so headrace itself is imported only when the format is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headrace.spark.datasource import RedisStreams

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Loads `headrace.spark.datasource.RedisStreams` on first use."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "redis_streams"

    def schema(self) -> StructType:
        """See `RedisStreams`."""
        return self._source().schema()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """See `RedisStreams`."""
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, Spark's name
        """See `RedisStreams`."""
        return self._source().streamWriter(schema, overwrite)

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `RedisStreams`."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        """See `RedisStreams`."""
        return self._source().streamReader(schema)

    def _source(self) -> RedisStreams:
        from headrace.spark.datasource import RedisStreams

        return RedisStreams(self.options)
