"""Places between the entries of a stream, and groups that stand at one."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._headrace import StreamInfo
from headrace.spark.source.entry_ids import Id

__all__ = ["GroupState", "Place"]


@dataclass(frozen=True)
class Place:
    """A place between two entries.

    Attributes:
        id: The entry before it.
        added: How many entries had been added to the stream up to it, including removed ones; None if unknown.
        removed: If that is unknown: how many had been removed from the stream when nothing after the place was. None if
            that is not known either.
    """

    id: Id
    added: int | None
    removed: int | None = None

    @classmethod
    def end_of(cls, info: StreamInfo) -> Place:
        """Return the place after the newest entry."""
        return cls(info.last, info.added)

    def entries_after(self, info: StreamInfo) -> int:
        """Return how many entries of a stream are after the place, at most."""
        return info.entries_after(self.id, self.added)

    def loss(self, info: StreamInfo) -> tuple[int, bool] | None:
        """Return how many entries after the place were removed, and whether that is exact; None if that is unknown."""
        return info.loss_after(self.id, self.added, self.removed)


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
        """Who would miss entries or get them twice if the group was moved. Empty if the group is not in use."""
        counts = (("consumer", "consumers", self.consumers), ("pending entry", "pending entries", self.pending))
        return " and ".join(f"{count} {one if count == 1 else several}" for one, several, count in counts if count)
