"""`spark.read`: the partitions of a batch, and what a task reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.source.bounds import last_id, start_place
from headrace.spark.source.columns import Columns
from headrace.spark.source.options import ReadSettings
from headrace.spark.source.ranges import Range, StreamRange, split
from headrace.spark.source.survey import Survey
from headrace.spark.source.task import read_range

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader"]


class BatchReader(DataSourceReader):
    """Reads streams up to where they end when the batch is planned.

    Spark pickles it: `partitions` runs beside the driver, `read` in each task.
    """

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._columns = Columns(settings, schema)

    def partitions(self) -> list[InputPartition]:
        """Ask the server where the streams begin and end, and divide them."""
        settings = self._settings
        survey = Survey(settings)
        try:
            keys = survey.keys()
            infos = survey.streams(keys, warns=True)
            wanted = []
            for key, info in infos.items():
                start = start_place(settings.start, key, info, past_end=settings.past_end)
                last = last_id(settings.end, key, info)
                if info.length and start.id < last:
                    counted = info.added if last == info.last else None
                    wanted.append(StreamRange(key, start, last, counted, info.added))
            divided = split(survey, wanted, infos, settings.min_partitions or 1)
        finally:
            survey.close()
        planned: list[InputPartition] = []
        for one, (first, splits) in zip(wanted, divided, strict=True):
            if first is not None:
                planned += one.parts(splits, first)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. If none was planned, Spark passes one that is not a `Range`."""
        if not isinstance(partition, Range):
            return iter(())
        return read_range(self._settings, self._columns, partition)
