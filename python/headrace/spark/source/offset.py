"""The offset of a streaming query: a JSON object that Spark stores in the checkpoint.

An end offset describes its whole micro-batch, including where it begins and how it is split, so that a batch that is
planned again has the same partitions and rows, whatever the options, cores and entries are then:

```json
{"v": 1, "streams": {"orders": {
    "id": "1795324724029-361", "n": 1000000, "lost": 0,
    "from": {"id": "1795324700000-0", "n": 999000}, "splits": [["1795324712000-0", null]]
}}}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from headrace.errors import StateError
from headrace.spark.source.entry_ids import Id, parse, show
from headrace.spark.source.place import Place

__all__ = ["Offset", "StreamOffset"]

VERSION: Final = 1


@dataclass(frozen=True)
class StreamOffset:
    """The end of a micro-batch in one stream.

    Attributes:
        end: The place after its last entry.
        lost: How many entries were trimmed before they were read, since the query began.
        start: Where it begins; None if it has no entry of this stream.
        first: Its first entry; None where `start` has a count, from which tasks detect what was trimmed.
        splits: Where each of its partitions except the first begins: an entry, and how many entries had been added
            before it (None if that is not known).
    """

    end: Place
    lost: int = 0
    start: Place | None = None
    splits: tuple[tuple[Id, int | None], ...] = ()
    first: Id | None = None

    def idle(self) -> StreamOffset:
        """Return the same place, for a micro-batch without an entry of this stream."""
        return StreamOffset(self.end, self.lost)


@dataclass(frozen=True)
class Offset:
    """The end of a micro-batch in each stream, by key.

    Attributes:
        streams: The end in each stream.
        is_initial: Whether it is where a query without a checkpoint begins, rather than the end of a micro-batch. After
            a crash in the first micro-batch Spark asks for it again, and it may then differ.
    """

    streams: Mapping[str, StreamOffset] = field(default_factory=dict)
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object for Spark. Equal offsets give equal texts."""
        streams = {key: _written(self.streams[key]) for key in sorted(self.streams)}
        return {"v": VERSION, **({"initial": True} if self.is_initial else {}), "streams": streams}

    @classmethod
    def from_json(cls, whole: Mapping[str, Any]) -> Offset:
        """Read what `to_json` made.

        Raises:
            StateError: The checkpoint comes from another version or another source.
        """
        version = whole.get("v")
        if version != VERSION:
            _refuse(f"its version is {version!r}, but this headrace reads version {VERSION}")
        try:
            streams = {key: _read(value) for key, value in whole["streams"].items()}
            return cls(streams, whole.get("initial") is True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _refuse(f"it lacks a member or has a wrong one: {error!r}")


def _written(stream: StreamOffset) -> dict[str, Any]:
    written = {**_place(stream.end), "lost": stream.lost}
    if stream.start is not None:
        written["from"] = _place(stream.start)
        if stream.first is not None:
            written["from"]["first"] = show(stream.first)
        written["splits"] = [[show(entry), added] for entry, added in stream.splits]
    return written


def _place(place: Place) -> dict[str, Any]:
    removed = {} if place.removed is None else {"removed": place.removed}
    return {"id": show(place.id), "n": place.added, **removed}


def _read(value: Mapping[str, Any]) -> StreamOffset:
    splits = tuple((_id(entry), added) for entry, added in value.get("splits", ()))
    begin = value.get("from", {})
    first = _id(begin["first"]) if "first" in begin else None
    start = _read_place(begin) if begin else None
    return StreamOffset(_read_place(value), int(value["lost"]), start, splits, first)


def _read_place(value: Mapping[str, Any]) -> Place:
    added, removed = value["n"], value.get("removed")
    return Place(_id(value["id"]), None if added is None else int(added), None if removed is None else int(removed))


def _id(text: str) -> Id:
    if (entry_id := parse(text)) is None:
        raise ValueError(text)
    return entry_id


def _refuse(why: str) -> NoReturn:
    raise StateError(f"the offset in the checkpoint is not one of this source: {why}")
