"""The end of a capped micro-batch. No command returns the nth entry, so the driver pages up to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.reader import Reader
from headrace.spark.source.entry_ids import HIGHEST, LOWEST, Id, after, parse, show
from headrace.spark.source.options import ReadSettings
from headrace.spark.source.place import Place
from headrace.spark.source.planning import News

__all__ = ["Page", "read_page"]

#: A field that entries do not have: only their IDs are needed.
NO_FIELD = "headrace:none"


@dataclass(frozen=True)
class Page:
    """The first entries after a place.

    Attributes:
        end: The place after the last one.
        lost: How many were trimmed since the stream was surveyed.
        ids: The IDs of all of them.
    """

    end: Place
    lost: int
    ids: Sequence[Id]


def read_page(settings: ReadSettings, key: str, news: News, count: int) -> Page:
    """Read the IDs of the first `count` entries.

    Raises:
        DataLossError: Entries were trimmed in the meantime, and `fail_on_data_loss` is set.
    """
    start = news.start
    counts = {"n": start.added, "removed": start.removed}
    place = {"id": show(start.id), **{name: count for name, count in counts.items() if count is not None}}
    begin = json.dumps({"v": 1, "streams": {key: place}})
    if start.id == LOWEST and start.added is None:
        begin = "earliest"
    ids: list[Id] = []
    with Reader(
        settings.endpoint,
        [key],
        start=begin,
        end=show(news.end.id),
        limit=count,
        fields=[NO_FIELD],
        metadata=["entry_ms", "entry_seq"],
        page_bytes=settings.reader["page_bytes"],
        on_loss="fail" if settings.fail_on_data_loss else "report",
    ) as reader:
        for batch in reader:
            columns = pa.record_batch(batch)
            ids += zip(columns.column(0).to_pylist(), columns.column(1).to_pylist(), strict=True)
        if len(ids) < count:
            return Page(news.end, reader.lost, ids)  # entries were deleted: this is all there is
        reached = json.loads(reader.position)["streams"][key]
        end = Place(parse(reached["id"]) or after(start.id) or HIGHEST, reached.get("n"), reached.get("removed"))
        return Page(end, reader.lost, ids)
