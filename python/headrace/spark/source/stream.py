"""`spark.readStream`: offsets, partitions of micro-batches, and what a task reads. One class for Spark 4.0 to 4.3."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace._headrace import StreamInfo
from headrace.errors import ConfigError, StateError
from headrace.spark.source.bounds import start_place
from headrace.spark.source.columns import Columns
from headrace.spark.source.entry_ids import LOWEST, Id
from headrace.spark.source.mirror import GroupMirror
from headrace.spark.source.offset import Offset, StreamOffset
from headrace.spark.source.options import ReadSettings
from headrace.spark.source.paging import read_page
from headrace.spark.source.place import Place
from headrace.spark.source.planning import News, find_news, is_due, quotas
from headrace.spark.source.ranges import Range, Split, StreamRange, split
from headrace.spark.source.splits import share
from headrace.spark.source.survey import Survey
from headrace.spark.source.task import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The equivalent where Spark passes neither triggers nor limits."""

    HAS_LIMITS = False
else:
    HAS_LIMITS = True

__all__ = ["HAS_LIMITS", "StreamReader"]

logger = logging.getLogger("headrace.spark")

_Json = dict[str, Any]

REMOVED: Final = (
    "the checkpoint has a position in stream '{}', which is no longer read: name it in the options, or start with a "
    "new checkpoint"
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches, whose ends are stored in the checkpoint and not on the server.

    Spark calls all methods except `read` in one process per query, one after the other, and `read` in tasks.
    """

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        if settings.max_entries is not None and settings.available_now is None and not HAS_LIMITS:
            text = (
                "max_entries_per_trigger needs available_now on Spark 4.0 and 4.1, which do not pass the trigger: "
                "'true' with trigger(availableNow=True), which then reads everything in one micro-batch, else 'false'"
            )
            raise ConfigError(text, option="available_now")
        if settings.min_entries is not None and not HAS_LIMITS:
            text = (
                "min_entries_per_trigger needs Spark 4.2 or later: earlier versions do not pass the trigger, and with "
                "trigger(availableNow=True) the query would end with entries left"
            )
            raise ConfigError(text, option="min_entries_per_trigger")
        self._settings = settings
        self._columns = Columns(settings, schema)
        self._forget()

    def _forget(self) -> None:
        """Reset what the process of the query knows and tasks do not."""
        self._survey: Survey | None = None
        self._mirror: GroupMirror | None = None
        self._keys: tuple[str, ...] | None = None
        self._infos: dict[str, StreamInfo] = {}
        self._looked_at = float("-inf")
        #: When this process planned the last micro-batch.
        self._planned_at: float | None = None
        #: Where AvailableNow ends.
        self._target: dict[str, StreamInfo] | None = None
        self._initial: _Json | None = None
        #: The end of the last micro-batch, where Spark does not pass it.
        self._position: _Json | None = None
        #: The ends that this process has planned.
        self._planned: list[_Json] = []
        #: Warnings already logged, which need not recur at each poll.
        self._logged: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_columns": self._columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # --- offsets ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> _Json:  # noqa: N802, Spark's name
        """Where a query without a checkpoint begins. Spark asks twice, and gets the same answer."""
        if self._initial is None:
            settings = self._settings
            streams = {}
            for key, info in self._look().items():
                streams[key] = StreamOffset(start_place(settings.start, key, info, past_end=settings.past_end))
            self._initial = Offset(streams, is_initial=True).to_json()
        return self._initial

    def latestOffset(self, start: _Json | None = None, limit: object = None) -> _Json:  # noqa: N802, Spark's name
        """The end of the next micro-batch; `start` itself if there is nothing new.

        The first micro-batch may be empty: it records in the checkpoint where the query began.

        Spark 4.0 and 4.1 pass no arguments. Unless the query is new, they have already called `partitions` for the last
        micro-batch.
        """
        if start is None:
            start = self._position if self._position is not None else self.initialOffset()
        before = Offset.from_json(start)
        waits = HAS_LIMITS and not isinstance(limit, ReadAllAvailable)
        end = self._next(before, self._limit(limit), waits=waits)
        self._show(before)  # Spark asks for the next end when the last one is finished
        if end is None:
            if not before.is_initial:
                return start
            end = Offset(before.streams)
        self._planned_at = time.monotonic()
        made = end.to_json()
        self._planned = [*self._planned[-7:], made]
        return made

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, Spark's name
        """The cap of a micro-batch, or its minimum. Spark 4.2 and later ask for it, unless the trigger is Once."""
        settings = self._settings
        if settings.max_entries is not None:
            return ReadMaxRows(settings.max_entries)
        return ReadAllAvailable() if settings.min_entries is None else ReadMinRows(settings.min_entries)

    def reportLatestOffset(self) -> _Json | None:  # noqa: N802, Spark's name
        """The newest entries, for the progress of the query; as of the last look, because Spark asks at each poll."""
        if not self._infos:
            return None
        return Offset({key: StreamOffset(Place.end_of(info)) for key, info in self._infos.items()}).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, Spark's name
        """Use the current newest entries as the end of the query."""
        self._target = self._look()

    def _limit(self, limit: object) -> int | None:
        if HAS_LIMITS:
            return limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return None if self._settings.available_now else self._settings.max_entries

    def _look(self) -> dict[str, StreamInfo]:
        """Where the streams end. Spark polls 100 times per second; the server is asked once per `poll_interval`."""
        now = time.monotonic()
        if now - self._looked_at >= self._settings.poll_interval:
            if self._survey is None:
                self._survey = Survey(self._settings)
            if self._keys is None:
                self._keys = self._survey.keys()
                if self._settings.commit_group is not None:
                    self._mirror = GroupMirror(self._survey, self._settings.endpoint, self._settings.commit_group)
                    self._mirror.check(self._keys)
            self._infos = self._survey.streams(self._keys, warns=True)
            self._looked_at = time.monotonic()
        return self._infos

    def _next(self, before: Offset, limit: int | None, *, waits: bool) -> Offset | None:
        infos = self._look() if self._target is None else self._target
        if removed := sorted(set(before.streams) - set(infos)):
            raise StateError(REMOVED.format(removed[0]))
        news: dict[str, News] = {}
        for key, info in infos.items():
            fails = self._settings.fail_on_data_loss
            if (found := find_news(key, before.streams.get(key), info, fails=fails)) is None:
                continue
            for text in found.warnings:
                if text not in self._logged:
                    self._logged.add(text)
                    logger.warning("%s", text)
            if found.end.id > found.start.id:
                news[key] = found
        if not news:
            return None
        counts = {key: one.start.entries_after(infos[key]) for key, one in news.items()}
        if waits and not self._is_due(sum(counts.values())):
            return None
        if limit is not None and sum(counts.values()) > limit:
            ends = self._capped(news, counts, limit)
        else:
            ends = self._whole(news, infos)
        idle = {key: stream.idle() for key, stream in before.streams.items()}
        return Offset({**idle, **ends})

    def _is_due(self, entries: int) -> bool:
        """Whether a micro-batch with these entries begins now. AvailableNow would end instead of waiting."""
        least = self._settings.min_entries
        if least is None or self._target is not None:
            return True
        return is_due(entries, least, now=time.monotonic(), last=self._planned_at, delay=self._settings.max_delay)

    def _whole(self, news: dict[str, News], infos: dict[str, StreamInfo]) -> dict[str, StreamOffset]:
        """Everything that is new, split by time."""
        wanted = [StreamRange(key, one.start, one.end.id) for key, one in news.items()]
        parts = self._settings.min_partitions or 1
        if parts <= len(wanted) and all(one.start.added is not None for one in wanted):
            return {key: StreamOffset(one.end, one.lost, one.start) for key, one in news.items()}
        assert self._survey is not None
        divided = split(self._survey, wanted, infos, parts)
        return {
            key: StreamOffset(one.end, one.lost, one.start, tuple(splits), _first(one.start, first))
            for (key, one), (first, splits) in zip(news.items(), divided, strict=True)
        }

    def _capped(self, news: dict[str, News], counts: dict[str, int], limit: int) -> dict[str, StreamOffset]:
        """The first entries of what is new, split into parts of equal size."""
        taken = quotas(counts, limit)
        parts = share(self._settings.min_partitions or 1, list(taken.values()))
        ends = {}
        for (key, count), number in zip(taken.items(), parts, strict=True):
            one = news[key]
            page = read_page(self._settings, key, one, count)
            splits: list[Split] = []
            for at in sorted({len(page.ids) * part // number for part in range(1, number)} - {0}):
                # If there are fewer entries than requested, some were deleted, and no number is certain.
                added = page.end.added if len(page.ids) == count else None
                splits.append((page.ids[at], None if added is None else added - count + at))
            start = one.start if one.start.added is None else Place(one.start.id, one.start.added + page.lost)
            first = _first(start, page.ids[0] if page.ids else None)
            ends[key] = StreamOffset(page.end, one.lost + page.lost, start, tuple(splits), first)
        return ends

    # --- micro-batches ------------------------------------------------------------------------------------------------

    def partitions(self, start: _Json, end: _Json) -> list[InputPartition]:
        """The partitions of a micro-batch, as its end describes them: the same at each call.

        After a restart, Spark 4.0 and 4.1 ask for those of an empty micro-batch, from the last end to itself.
        """
        self._position = end
        if start == end:
            return []
        is_replay = end not in self._planned
        made: list[InputPartition] = []
        before, after = Offset.from_json(start), Offset.from_json(end)
        if removed := sorted(set(before.streams) - set(after.streams)):
            raise StateError(REMOVED.format(removed[0]))
        for key, stream in sorted(after.streams.items()):
            place, splits, first = stream.start, stream.splits, stream.first
            if not before.is_initial:
                # With AvailableNow, Spark 4.0 and 4.1 may ask for the end before they have passed their position. The
                # end is then computed as for a new query, and its recorded start is not the actual one.
                reached = before.streams[key].end if key in before.streams else place or Place(LOWEST, None)
                if place is None or place.id != reached.id:
                    place, first = reached, None
                    splits = tuple(split for split in splits if split[0] > place.id)
            if place is not None and place.id < stream.end.id:
                one = StreamRange(key, place, stream.end.id, stream.end.added, stream.end.added)
                made += one.parts(splits, first, is_streaming=True, is_replay=is_replay)
        return made

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition."""
        assert isinstance(partition, Range)
        return read_range(self._settings, self._columns, partition)

    def commit(self, end: _Json) -> None:
        """Show how far the query has read, if a group is set for it. The checkpoint holds the position."""
        self._show(Offset.from_json(end))

    def _show(self, finished: Offset) -> None:
        """Move the group to the end of a finished micro-batch. An initial offset may differ after a crash."""
        if self._mirror is not None and not finished.is_initial:
            self._mirror.follow({key: stream.end for key, stream in finished.streams.items()})

    def stop(self) -> None:
        """Close the connection."""
        if self._survey is not None:
            self._survey.close()


def _first(start: Place, entry: Id | None) -> Id | None:
    """The first entry if `start` has no count: a task needs one of them to detect what was trimmed before it began."""
    return entry if start.added is None else None
