"""What a server reports about a stream: its ends, how much was removed, and how far a group has read."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark.source.entry_ids import LOWEST, Id

__all__ = ["Extent", "GroupState", "Place"]


@dataclass(frozen=True)
class Place:
    """A place between two entries.

    Attributes:
        id: The entry before it.
        added: How many entries had been added to the stream up to it, including removed ones; None if unknown.
    """

    id: Id
    added: int | None


@dataclass(frozen=True)
class Extent:
    """The reply to XINFO STREAM. The default is a stream that does not exist.

    Attributes:
        length: How many entries it has.
        first: The oldest entry.
        last: The highest ID that any of its entries had.
        added: How many entries were ever added; None before Redis 7.0.
        max_deleted: The highest ID that XDEL removed.
    """

    length: int = 0
    first: Id | None = None
    last: Id = LOWEST
    added: int | None = 0
    max_deleted: Id | None = None

    @property
    def removed(self) -> int | None:
        """How many entries were removed, by trimming or XDEL."""
        return None if self.added is None else max(0, self.added - self.length)

    @property
    def end(self) -> Place:
        """The place after the newest entry."""
        return Place(self.last, self.added)

    def entries_behind(self, place: Place) -> int:
        """Return how many entries there are after a place, at most."""
        if self.added is None or place.added is None:
            return self.length
        return min(self.length, max(0, self.added - place.added))


@dataclass(frozen=True)
class GroupState:
    """A consumer group, as XINFO GROUPS shows it.

    Attributes:
        consumers: How many consumers it has.
        pending: Entries that were delivered to them and not acknowledged.
        place: How far it has read.
    """

    consumers: int
    pending: int
    place: Place

    @property
    def use(self) -> str:
        """Who would miss entries or get them twice if the group was moved. Empty if it is not in use."""
        counts = (("consumer", "consumers", self.consumers), ("pending entry", "pending entries", self.pending))
        return " and ".join(f"{count} {one if count == 1 else several}" for one, several, count in counts if count)
