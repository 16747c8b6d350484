"""What a task does: it reads a range of entry IDs, and checks whether it is as it was planned."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext

from headrace._headrace import StreamInfo
from headrace.errors import DataLossError, FieldError, StreamReplacedError
from headrace.reader import Reader
from headrace.spark.source.columns import Columns
from headrace.spark.source.entry_ids import HIGHEST, Id, after, parse, show
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
        yield from _read(settings, columns, partition, fails=is_strict)
    except (DataLossError, StreamReplacedError) as error:
        if not settings.fail_on_data_loss:
            error.add_note(
                "fail_on_data_loss is false, but this micro-batch or task may have run before with all its rows, and a "
                "sink may know them by their numbers: allow_short_replay=true continues without those that are gone"
            )
        raise
    except FieldError as error:
        error.add_note("on_bad_field='null' reads a null instead, and 'keep' also keeps the fields of such an entry")
        raise


def _must_be_whole(settings: ReadSettings, partition: Range) -> bool:
    """Whether the rows may have been read before, by another attempt or before a restart."""
    if settings.allow_short_replay or not partition.is_streaming:
        return False
    task = TaskContext.get()
    return partition.is_replay or (task is not None and task.attemptNumber() > 0)


class _Reader(Reader):
    """A reader that does not warn about doubts: the task fails or logs them."""

    has_doubt = False

    def _doubt(self, _: str) -> None:
        self.has_doubt = True

    def _notice(self, _: str) -> None:
        """The driver logs a stream that does not exist."""


def _read(settings: ReadSettings, columns: Columns, partition: Range, *, fails: bool) -> Iterator[pa.RecordBatch]:
    options = {**settings.reader, **columns.arguments, "on_loss": "fail" if fails else "report"}
    options |= {"start": _start(partition), "end": show(partition.last)}
    is_begun = partition.first is None
    reached = None
    with _Reader(settings.endpoint, [partition.key], **options) as reader:
        try:
            for batch in reader:
                if not is_begun:
                    _check_first(settings, partition, batch.first_id, fails=fails)
                    is_begun = True
                if reader.has_doubt and fails:
                    break
                reached = parse(batch.last_id)
                yield from columns.convert(batch)
        except DataLossError as error:
            raise _loss(settings, partition, error.lost, reached, exact=error.exact) from None
        if reader.has_doubt:
            _report(_loss(settings, partition, None, reached, exact=False), fails=fails)
        if not is_begun:
            _check_first(settings, partition, None, fails=fails)
        if reached != partition.last:
            _check_end(settings, partition, fails=fails)
        if reader.lost:
            lost = _loss(settings, partition, reader.lost, reached, exact=reader.is_lost_exact)
            _report(lost, fails=False)


def _start(partition: Range) -> str:
    """Where a `Reader` begins. Without the first entry, a count of entries lets it detect what was trimmed."""
    place = partition.start
    if partition.first is not None or place.added is None:
        return show(partition.first or after(place.id) or HIGHEST)
    streams = {partition.key: {"id": show(place.id), "n": place.added}}
    return json.dumps({"v": 1, "streams": streams})


def _check_first(settings: ReadSettings, partition: Range, read: str | None, *, fails: bool) -> None:
    """Compare the first entry with the planned one: it may have been trimmed before this task started."""
    planned = partition.first
    if planned is None or (read is not None and parse(read) == planned):
        return
    info = _look(settings, partition.key)
    if info.last < planned or (info.first is not None and info.first <= planned):
        return  # another stream, see below; or an older entry exists, so XDEL removed this one, which is no loss
    lost, is_exact = partition.start.loss(info) or (None, False)
    if lost is not None:
        lost, is_exact = max(1, lost), is_exact and lost > 0
    reached = None if read is None else planned
    _report(_loss(settings, partition, lost, reached, exact=is_exact, when="between planning and reading"), fails=fails)


def _loss(
    settings: ReadSettings,
    partition: Range,
    lost: int | None,
    reached: Id | None,
    *,
    exact: bool,
    when: str = "before this task read them",
) -> DataLossError:
    """The error for entries that were trimmed; `lost` is None where the server keeps no count.

    The server also counts what was trimmed after the range; only the size of the range, if known, tells the two apart.
    """
    size = None
    if partition.counted is not None and partition.start.added is not None:
        size = partition.counted - partition.start.added
    if lost is not None and size is not None and lost > size:
        lost, exact = size, exact and reached is None
    elif exact and size is None:
        oldest = _look(settings, partition.key).first
        exact = oldest is not None and oldest <= partition.last
    of = f"entries of stream {partition.key!r}"
    count = f"{of} may have been" if lost is None else f"{'' if exact else 'at most '}{lost} {of} were"
    text = f"{count} trimmed {when}, after {show(partition.start.id)} and up to {show(partition.last)}"
    if settings.fail_on_data_loss:
        text += "; fail_on_data_loss=false continues without them"
    return DataLossError(text, stream=partition.key.encode(), lost=lost or 0, exact=exact)


def _report(error: DataLossError | StreamReplacedError, *, fails: bool) -> None:
    if fails:
        raise error
    logger.warning("%s", error)


def _check_end(settings: ReadSettings, partition: Range, *, fails: bool) -> None:
    """Check that the stream is the one that was planned, which a range without its last entry does not show."""
    info = _look(settings, partition.key)
    why = None
    if info.last < partition.last:
        why = f"its newest entry is {show(info.last)}"
    elif info.added is not None and info.added < (partition.total or 0):
        why = f"{info.added} entries were ever added to it, and {partition.total} had been"
    elif info.removed is not None and (info.first is None or info.first > partition.last):
        # All entries up to the end of the range were removed, if it is the same stream.
        least = partition.counted if partition.counted is not None else (partition.start.added or 0) + 1
        if info.removed < least:
            why = f"it has none of its entries, and {info.removed} were ever removed"
    if why is not None:
        text = (
            f"stream {partition.key!r} is not the one that was planned up to {show(partition.last)}: {why}: it was "
            "deleted or recreated, or its server lost its latest entries"
        )
        _report(StreamReplacedError(text, stream=partition.key.encode()), fails=fails)


def _look(settings: ReadSettings, key: str) -> StreamInfo:
    survey = Survey(settings)
    try:
        return survey.streams([key])[key]
    finally:
        survey.close()
