"""The next micro-batch: where it ends in each stream, and what was lost before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace._headrace import StreamInfo
from headrace.errors import DataLossError, StreamReplacedError
from headrace.spark.source.entry_ids import LOWEST, show
from headrace.spark.source.offset import StreamOffset
from headrace.spark.source.place import Place

__all__ = ["News", "find_news", "is_due", "quotas"]


@dataclass(frozen=True)
class News:
    """Entries of a stream that no micro-batch has included yet.

    Attributes:
        start: The place after which they begin.
        end: The place after the last of them.
        lost: How many entries were trimmed before they were read, since the query began.
        warnings: Problems that do not end the query.
    """

    start: Place
    end: Place
    lost: int
    warnings: tuple[str, ...] = ()


def find_news(key: str, before: StreamOffset | None, info: StreamInfo, *, fails: bool) -> News | None:
    """Return what follows the last micro-batch; None if nothing. `before` is None for a stream that was added.

    Raises:
        DataLossError: Entries were trimmed before they were read, and `fails` is set.
        StreamReplacedError: The stream is not the one that was read before, and `fails` is set.
    """
    if before is None:
        if not info.length:
            return None
        return News(Place(LOWEST, info.removed), Place.end_of(info), 0)
    place, lost, warnings = before.end, before.lost, []
    if replaced := _replaced(place, info):
        text = f"stream {key!r} is not the one that was read up to {show(place.id)}: {replaced}"
        if fails:
            raise StreamReplacedError(text, stream=key.encode())
        # An end never falls below its start.
        warnings.append(f"{text}; its entries up to {show(place.id)} are not read")
        place = Place(place.id, None)
    if info.last <= place.id:
        return News(place, place, lost, tuple(warnings)) if warnings else None
    loss = None if replaced else place.loss(info)
    if loss is not None and loss[0]:
        gone, is_exact = loss
        text = f"{'' if is_exact else 'at most '}{gone} entries of stream {key!r} after {show(place.id)}"
        text += " were trimmed before they were read"
        if fails:
            text += "; fail_on_data_loss=false continues without them"
            raise DataLossError(text, stream=key.encode(), lost=gone, exact=is_exact)
        warnings.append(text)
        lost += gone
    if info.removed is not None:
        if info.first is None or info.first > place.id:
            # Nothing up to the place remains, so everything removed counts as read.
            place = Place(place.id, max(info.removed, place.added or 0))
        elif place.added is None:
            place = Place(place.id, None, info.removed)
    return News(place, Place.end_of(info), lost, tuple(warnings))


def _replaced(place: Place, info: StreamInfo) -> str | None:
    """Why this cannot be the stream that was read up to `place`."""
    if info.last < place.id:
        if info.last == LOWEST:
            return "it was deleted"
        return f"its newest entry is {show(info.last)}: it was deleted and recreated, or its server lost entries"
    if info.added is not None and place.added is not None and info.added < place.added:
        return f"{info.added} entries were ever added, and {place.added} had been: it was deleted and recreated"
    return None


def quotas(news: Mapping[str, int], limit: int) -> dict[str, int]:
    """Share `limit` entries of a micro-batch among streams by how many each has: at least one each, if possible."""
    left, total = limit, sum(news.values())
    shares = {}
    for key, count in sorted(news.items(), key=lambda pair: (pair[1], pair[0])):
        share = min(count, left, max(1, left * count // total if total else 0))
        shares[key] = share
        left -= share
        total -= count
    return {key: share for key, share in shares.items() if share}


def is_due(entries: int, minimum: int, *, now: float, last: float | None, delay: float) -> bool:
    """Whether a micro-batch is due: there are enough entries, or enough time has passed since the last one.

    `last` is None before the first one.
    """
    return entries >= minimum or last is None or now - last >= delay
