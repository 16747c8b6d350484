"""The ranges of entry IDs that tasks read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from headrace._headrace import StreamInfo
from headrace.spark.source.entry_ids import HIGHEST, Id, after, before
from headrace.spark.source.place import Place
from headrace.spark.source.splits import borders, cut, share
from headrace.spark.source.survey import Survey

__all__ = ["Range", "Split", "StreamRange", "split"]

#: Where a part of a range other than the first begins: an entry, and how many entries had been added before it.
Split = tuple[Id, int | None]


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads of one stream.

    Attributes:
        key: The stream.
        start: The place after which it begins.
        last: The ID up to which it extends, inclusive.
        first: The first entry, as it was planned; None if that is not known.
        counted: How many entries had been added up to `last`; None if that is not known.
        total: How many had been added to the stream when it was planned; None before Redis 7.0.
        is_streaming: Whether it is a part of a micro-batch.
        is_replay: Whether an earlier process planned the micro-batch, so that it may have run before.
    """

    key: str
    start: Place
    last: Id
    first: Id | None = None
    counted: int | None = None
    total: int | None = None
    is_streaming: bool = False
    is_replay: bool = False


@dataclass(frozen=True)
class StreamRange:
    """What a read covers of one stream: everything after a place, up to an ID.

    Attributes:
        key: The stream.
        start: The place after which it begins.
        last: The ID up to which it extends, inclusive.
        counted: How many entries had been added up to `last`; None if that is not known.
        total: How many had been added to the stream when it was planned; None before Redis 7.0.
    """

    key: str
    start: Place
    last: Id
    counted: int | None = None
    total: int | None = None

    def parts(self, splits: Sequence[Split], first: Id | None = None, **flags: bool) -> list[Range]:
        """Return the range in parts; `first` is its first entry, if that is known."""
        begins = [(self.start, first)]
        begins += [(Place(before(entry) or (0, 0), added), entry) for entry, added in splits]
        ends = [place for place, _ in begins[1:]] + [Place(self.last, self.counted)]
        return [
            Range(self.key, place, end.id, known, end.added, self.total, **flags)
            for (place, known), end in zip(begins, ends, strict=True)
        ]


def split(
    survey: Survey, wanted: Sequence[StreamRange], infos: dict[str, StreamInfo], parts: int
) -> list[tuple[Id | None, list[Split]]]:
    """Return for each range its first entry (None if it has none) and where its parts begin. One round trip."""
    weights = [one.start.entries_after(infos[one.key]) for one in wanted]
    asked: list[tuple[str, Id, Id]] = []
    counts = []
    for one, number in zip(wanted, share(parts, weights), strict=True):
        first = max(after(one.start.id) or HIGHEST, infos[one.key].first or one.last)
        inner = cut(first, one.last, number) if first <= one.last else []
        begins = [after(one.start.id) or HIGHEST, *inner]
        ends = [*(before(border) or (0, 0) for border in inner), one.last]
        asked += [(one.key, begin, end) for begin, end in zip(begins, ends, strict=True)]
        counts.append(len(begins))
    found = iter(survey.first_ids(asked) if asked else [])
    made: list[tuple[Id | None, list[Split]]] = []
    for count in counts:
        entry, inner = borders([next(found) for _ in range(count)])
        made.append((entry, [(border, None) for border in inner]))
    return made
