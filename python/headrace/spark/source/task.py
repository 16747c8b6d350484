"""What a task does: it reads a range of entry IDs, and finds out whether it is as it was planned."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext

from headrace.errors import DataLossError, StreamReplacedError
from headrace.reader import Reader
from headrace.spark.source.columns import Columns
from headrace.spark.source.entry_ids import HIGHEST, after, parse, show
from headrace.spark.source.extent import Extent
from headrace.spark.source.options import ReadSettings
from headrace.spark.source.ranges import Range
from headrace.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_range"]

logger = logging.getLogger("headrace.spark")


def read_range(settings: ReadSettings, columns: Columns, partition: Range) -> Iterator[pa.RecordBatch]:
    """Read a range with XRANGE: another attempt, or a second action, gets the same rows, unless entries are removed.

    Raises:
        DataLossError: Entries were trimmed since the range was planned.
        StreamReplacedError: The stream is not the one that was planned.
        FieldError: A value does not fit its column.
    """
    is_strict = settings.fail_on_data_loss or _must_be_whole(settings, partition)
    try:
        yield from _read(settings, columns, partition, "fail" if is_strict else "report")
    except (DataLossError, StreamReplacedError) as error:
        if not settings.fail_on_data_loss:
            error.add_note(
                "fail_on_data_loss is false, but this micro-batch or task may have run before with all its rows, and a "
                "sink may know them by their numbers: allow_short_replay=true goes on without those that are gone"
            )
        raise


def _must_be_whole(settings: ReadSettings, partition: Range) -> bool:
    """Whether the rows may have been read before, by another attempt or before a restart."""
    if settings.allow_short_replay or not partition.is_streaming:
        return False
    task = TaskContext.get()
    return partition.is_replay or (task is not None and task.attemptNumber() > 0)


def _read(settings: ReadSettings, columns: Columns, partition: Range, on_loss: str) -> Iterator[pa.RecordBatch]:
    options = {**settings.reader, **columns.arguments, "on_loss": on_loss}
    options |= {"start": _start(partition), "end": show(partition.last)}
    is_begun = partition.first is None
    reached = None
    with Reader(settings.endpoint, [partition.key], **options) as reader:
        for batch in reader:
            if not is_begun:
                _check_first(settings, partition, batch.first_id, on_loss)
                is_begun = True
            reached = parse(batch.last_id)
            yield from columns.convert(batch)
        if not is_begun:
            _check_first(settings, partition, None, on_loss)
        if reached != partition.last:
            _check_end(settings, partition, on_loss)
        if reader.lost:
            how = "" if reader.is_lost_exact else "at most "
            text = "%s%d entries of stream %r between %s and %s were trimmed before this task read them"
            ends = (show(partition.start.id), show(partition.last))
            logger.warning(text, how, reader.lost, partition.key, *ends)


def _start(partition: Range) -> str:
    """Where a `Reader` begins. Without the first entry, a count of entries lets it find out what was trimmed."""
    place = partition.start
    if partition.first is not None or place.added is None:
        return show(partition.first or after(place.id) or HIGHEST)
    streams = {partition.key: {"id": show(place.id), "n": place.added}}
    return json.dumps({"v": 1, "streams": streams})


def _check_first(settings: ReadSettings, partition: Range, read: str | None, on_loss: str) -> None:
    """Compare the first entry with the planned one: it may have been trimmed before this task began."""
    planned = partition.first
    if planned is None or (read is not None and parse(read) == planned):
        return
    extent = _look(settings, partition.key)
    if extent.last < planned or (extent.first is not None and extent.first <= planned):
        return  # another stream, see below; or an older entry is there, so that XDEL removed this one, which is no loss
    known = partition.start.added
    lost = max(1, (extent.removed or 0) - (known or 0))
    is_exact = known is not None and (extent.max_deleted is None or extent.max_deleted < planned)
    text = (
        f"{'' if is_exact else 'at most '}{lost} entries of stream {partition.key!r} were trimmed between planning and "
        f"reading: the partition began with {show(planned)}, and goes on with {read or 'nothing'}"
    )
    if on_loss == "fail":
        raise DataLossError(text, stream=partition.key.encode(), lost=lost, exact=is_exact)
    logger.warning("%s", text)


def _check_end(settings: ReadSettings, partition: Range, on_loss: str) -> None:
    """Look whether the stream still goes as far as the range, which does not show it without its last entry."""
    extent = _look(settings, partition.key)
    if extent.last >= partition.last:
        return
    text = (
        f"stream {partition.key!r} went up to {show(partition.last)} when it was planned, and its newest entry is "
        f"{show(extent.last)} now: it was deleted or recreated, or its server lost its latest entries"
    )
    if on_loss == "fail":
        raise StreamReplacedError(text, stream=partition.key.encode())
    logger.warning("%s", text)


def _look(settings: ReadSettings, key: str) -> Extent:
    survey = Survey(settings)
    try:
        return survey.extents([key])[key]
    finally:
        survey.close()
