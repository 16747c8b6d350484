"""What is known about a stream and its groups, as plain values. What may be unknown can be None."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from headrace.admin import MOST_DELIVERIES

__all__ = ["Consumer", "Group", "Id", "Pending", "Stream", "age", "id_text"]

#: An entry ID: milliseconds and sequence number.
Id: TypeAlias = tuple[int, int]


class Pending(NamedTuple):
    """A pending entry."""

    id: Id
    consumer: bytes
    #: Seconds since its last delivery; more if a consumer of headrace gave it back.
    idle: float
    #: The group's counter of its deliveries.
    deliveries: int
    #: Whether it is still in the stream.
    exists: bool

    @property
    def is_given_back(self) -> bool:
        """Whether its consumer gave it back: it is pending, but any consumer of headrace takes it over at once."""
        return self.deliveries == 0

    @property
    def failures(self) -> int:
        """How often consumers of headrace failed on it, if they read the group."""
        return max(0, self.deliveries - MOST_DELIVERIES)


class Consumer(NamedTuple):
    """A consumer."""

    name: bytes
    pending: int
    #: Seconds since it last asked for entries; before Redis 7.2, since it last got one.
    idle: float
    #: Seconds since it last got one, if ever. Not before Redis 7.2.
    inactive: float | None


class Group(NamedTuple):
    """A consumer group."""

    name: bytes
    last_delivered: Id
    entries_read: int | None
    #: Entries not yet delivered to the group, if the exact number is known.
    lag: int | None
    #: Why the lag is not known.
    lag_unknown: str | None
    #: The most that the lag can be.
    lag_most: int
    #: Entries that were trimmed before they were delivered to the group.
    trimmed_unread: int | None
    pending: int
    consumers: list[Consumer]
    #: The pending entries with the lowest IDs.
    entries: list[Pending]
    #: Entries delivered to the group per second.
    read_rate: float | None
    #: By how much the lag grows per second.
    lag_growth: float | None


class Stream(NamedTuple):
    """A stream with its groups."""

    key: bytes
    #: The server's time in seconds, if the user may ask for it.
    now: float | None
    length: int
    #: How many entries were ever added. Not before Redis 7.0.
    entries_added: int | None
    first: Id | None
    last: Id | None
    last_generated: Id
    memory: int | None
    #: Entries added per second, and the seconds between the two looks.
    rate: float | None
    seconds: float | None
    #: The stream of dead letters and its length, if it exists.
    dead_letters: tuple[bytes, int] | None
    groups: list[Group]


def id_text(entry_id: Id) -> str:
    """Return the ID as the server writes it."""
    return f"{entry_id[0]}-{entry_id[1]}"


def age(entry_id: Id | None, now: float | None) -> float | None:
    """Return the age of an entry in seconds, by its ID."""
    return None if entry_id is None or now is None else max(0.0, now - entry_id[0] / 1000)
