"""What is known about a stream and its groups: what each look sees, and what follows from two. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.admin import MOST_DELIVERIES, GroupInfo, LeaseInfo, StreamInfo

__all__ = [
    "ALONE",
    "Consumer",
    "Group",
    "GroupLook",
    "Id",
    "Lease",
    "Look",
    "Member",
    "Pending",
    "Sharing",
    "Stream",
    "age",
    "compare",
    "id_text",
    "sharing",
]

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


class Lease(NamedTuple):
    """The lease that a group of shard consumers has of a stream. Without the right to TIME its times are None."""

    #: The member that owns the stream, also if its time is over.
    owner: bytes | None
    epoch: int
    #: Seconds since it was taken.
    age: float | None
    #: Seconds until it ends unless it is renewed; negative: since it did.
    rest: float | None
    #: The last entry that was committed, and the seconds since then.
    position: Id | None
    committed: float | None
    #: The member that alone may take it.
    pinned: bytes | None
    #: The first entry after the position, and the seconds for which it has waited, by its ID.
    first_waiting: Id | None
    waits: float | None
    #: How often it has failed, and why it, or one of those that follow, did the last time.
    failures: int | None
    reason: bytes | None
    #: Whether it had no owner before either: it is not just on its way to another one.
    is_left: bool

    @property
    def is_held(self) -> bool:
        """Whether a member owns the stream, as far as is known."""
        return self.owner is not None and (self.rest is None or self.rest > 0)

    @property
    def has_failed(self) -> bool:
        """Whether the stream is returned again from an entry that failed, or in halves to find it."""
        return self.failures is not None or self.reason is not None

    @property
    def idle(self) -> float | None:
        """Seconds in which the owner could have committed an entry, and has not."""
        known = [seconds for seconds in (self.age, self.committed, self.waits) if seconds is not None]
        return min(known) if self.age is not None and self.waits is not None else None


class Member(NamedTuple):
    """A member of a group of shard consumers."""

    name: bytes
    #: Seconds until it does not count any more unless it is heard of again; negative: since then.
    rest: float | None

    @property
    def is_there(self) -> bool:
        """Whether it counts, as far as is known."""
        return self.rest is None or self.rest > 0


class Sharing(NamedTuple):
    """What the streams that were looked at together tell about the groups whose members share them."""

    #: The members of each group, where their list was found.
    members: Mapping[bytes, Sequence[Member]]
    #: How many streams each member of each group owns.
    owned: Mapping[tuple[bytes, bytes], int]
    #: The number of shards; None: the streams may not be all that the members share.
    shards: int | None

    def has(self, group: bytes, member: bytes) -> bool | None:
        """Whether a member is there; None if that is not known."""
        members = self.members.get(group)
        return None if members is None else any(one.name == member and one.is_there for one in members)


#: Nothing is known.
ALONE: Final = Sharing({}, {}, None)


class GroupLook(NamedTuple):
    """A group, as one look sees it."""

    info: GroupInfo
    #: Entries after the position, if the lag is not known and they were counted to the end.
    counted: int | None
    consumers: list[Consumer]
    entries: list[Pending]
    lease: LeaseInfo | None
    #: The first entry after the position of the lease.
    first_waiting: Id | None
    #: Names, and until when they count, where the list of members is beside this stream.
    members: list[tuple[bytes, int]]
    #: Whether the user may read leases.
    sees_leases: bool


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
    #: Of shard consumers.
    lease: Lease | None = None
    members: Sequence[Member] = ()
    #: Whether the user may read leases.
    sees_leases: bool = True


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
    info, lease = group.info, group.lease
    lag, reason = _lag(stream, group)
    growth = read_rate = None
    if before is not None and earlier is not None and seconds and lag is not None:
        lag_before, _ = _lag(before, earlier)
        if lag_before is not None:
            growth = (lag - lag_before) / seconds
            read_rate = None if rate is None else max(0.0, rate - growth)
    return Group(
        name=info.name,
        last_delivered=info.last_delivered if lease is None else lease.position or info.last_delivered,
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
        lease=None if lease is None else _lease(stream, group, lease, earlier),
        members=[Member(name, _until(stream, until)) for name, until in group.members],
        sees_leases=group.sees_leases,
    )


def _lease(stream: Look, group: GroupLook, lease: LeaseInfo, earlier: GroupLook | None) -> Lease:
    taken, until = _until(stream, lease.epoch or None), _until(stream, lease.until)
    committed = _until(stream, lease.committed_at)
    before = None if earlier is None else earlier.lease
    return Lease(
        owner=lease.owner,
        epoch=lease.epoch,
        age=None if taken is None else max(0.0, -taken),
        rest=until,
        position=lease.position,
        committed=None if committed is None else max(0.0, -committed),
        pinned=lease.pinned,
        first_waiting=group.first_waiting,
        waits=age(group.first_waiting, stream.now),
        failures=lease.failures,
        reason=lease.reason,
        is_left=lease.owner is None and (before is None or (before.owner is None and before.epoch == lease.epoch)),
    )


def _until(stream: Look, ms: int | None) -> float | None:
    """The seconds until a time of the server."""
    return None if ms is None or stream.now is None else ms / 1000 - stream.now


def sharing(streams: Iterable[Stream], shards: int | None) -> Sharing:
    """Return what streams that were looked at together tell about the groups whose members share them."""
    members: dict[bytes, Sequence[Member]] = {}
    owned: dict[tuple[bytes, bytes], int] = {}
    for group in (group for stream in streams for group in stream.groups):
        if group.members:
            members[group.name] = group.members
        if group.lease is not None and group.lease.owner is not None and group.lease.is_held:
            key = group.name, group.lease.owner
            owned[key] = owned.get(key, 0) + 1
    return Sharing(members, owned, shards)


def _lag(stream: Look, group: GroupLook) -> tuple[int | None, str | None]:
    """The number of entries not yet delivered to the group, or why that is unknown."""
    of = group.info if group.lease is None else group.lease
    lag, reason = of.lag, of.lag_unknown_reason
    if lag is not None or group.counted is None:
        return lag, reason
    if stream.info.added is None:
        return group.counted, None  # normal for these servers, and not worth a note
    return None, f"{reason}; {group.counted:,} were counted"
