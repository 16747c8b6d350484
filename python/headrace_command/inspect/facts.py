"""What is known about a stream and its groups: what each look sees, and what follows from two. No I/O, no clock."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from headrace.admin import MOST_DELIVERIES, GroupInfo, StreamInfo

__all__ = ["Consumer", "Group", "GroupLook", "Id", "Look", "Pending", "Stream", "age", "compare", "id_text"]

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


class GroupLook(NamedTuple):
    """A group, as one look sees it."""

    info: GroupInfo
    #: Entries after the position, if the lag is not known and they were counted to the end.
    counted: int | None
    consumers: list[Consumer]
    entries: list[Pending]


class Look(NamedTuple):
    """A stream, as one look sees it."""

    key: bytes
    #: The time of a monotonic clock of this machine.
    taken: float
    now: float | None
    info: StreamInfo
    memory: int | None
    dead_letters: tuple[bytes, int] | None
    groups: list[GroupLook]
    #: The names of all groups, including those that were not asked for.
    group_names: list[bytes]


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


def compare(before: Look | None, now: Look) -> Stream:
    """Return what is known about a stream. Without an earlier look there are no rates."""
    seconds = None if before is None else now.taken - before.taken
    rate = None
    if before is not None and seconds and now.info.last >= before.info.last:
        added = _added(before.info, now.info)
        rate = None if added is None else added / seconds
    earlier = {} if before is None else {group.info.name: group for group in before.groups}
    return Stream(
        key=now.key,
        now=now.now,
        length=now.info.length,
        entries_added=now.info.added,
        first=now.info.first,
        last=now.info.newest,
        last_generated=now.info.last,
        memory=now.memory,
        rate=rate,
        seconds=seconds,
        dead_letters=now.dead_letters,
        groups=[_group(now, group, before, earlier.get(group.info.name), rate, seconds) for group in now.groups],
    )


def _added(before: StreamInfo, now: StreamInfo) -> int | None:
    if now.added is not None and before.added is not None:
        return max(0, now.added - before.added)
    # It is unknown how many were trimmed in the meantime, unless none was.
    return now.length - before.length if now.first == before.first and now.length >= before.length else None


def _group(
    stream: Look,
    group: GroupLook,
    before: Look | None,
    earlier: GroupLook | None,
    rate: float | None,
    seconds: float | None,
) -> Group:
    info = group.info
    lag, reason = _lag(stream, group)
    growth = read_rate = None
    if before is not None and earlier is not None and seconds and lag is not None:
        lag_before, _ = _lag(before, earlier)
        if lag_before is not None:
            growth = (lag - lag_before) / seconds
            read_rate = None if rate is None else max(0.0, rate - growth)
    return Group(
        name=info.name,
        last_delivered=info.last_delivered,
        entries_read=info.entries_read,
        lag=lag,
        lag_unknown=reason,
        lag_most=lag if lag is not None else stream.info.length,
        trimmed_unread=info.trimmed_unread,
        pending=info.pending,
        consumers=group.consumers,
        entries=group.entries,
        read_rate=read_rate,
        lag_growth=growth,
    )


def _lag(stream: Look, group: GroupLook) -> tuple[int | None, str | None]:
    """The number of entries not yet delivered to the group, or why that is unknown."""
    lag, reason = group.info.lag, group.info.lag_unknown_reason
    if lag is not None or group.counted is None:
        return lag, reason
    if stream.info.added is None:
        return group.counted, None  # normal for these servers, and not worth a note
    return None, f"{reason}; {group.counted:,} were counted"
