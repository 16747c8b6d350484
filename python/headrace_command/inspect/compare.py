"""Derives the facts of a stream from two looks at it: rates, lags, losses. No I/O, no clock."""

from __future__ import annotations

from headrace_command.inspect.facts import Group, Stream
from headrace_command.inspect.look import GroupLook, Look

__all__ = ["compare"]


def compare(before: Look | None, now: Look) -> Stream:
    """Return what is known about a stream. Without an earlier look there are no rates."""
    seconds = None if before is None else now.taken - before.taken
    rate = None
    if before is not None and seconds and now.last_generated >= before.last_generated:
        added = _added(before, now)
        rate = None if added is None else added / seconds
    earlier = {} if before is None else {group.name: group for group in before.groups}
    return Stream(
        key=now.key,
        now=now.now,
        length=now.length,
        entries_added=now.entries_added,
        first=now.first,
        last=now.last,
        last_generated=now.last_generated,
        memory=now.memory,
        rate=rate,
        seconds=seconds,
        dead_letters=now.dead_letters,
        groups=[_group(now, group, before, earlier.get(group.name), rate, seconds) for group in now.groups],
    )


def _added(before: Look, now: Look) -> int | None:
    if now.entries_added is not None and before.entries_added is not None:
        return max(0, now.entries_added - before.entries_added)
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
    lag, reason = _lag(stream, group)
    growth = read_rate = None
    if before is not None and earlier is not None and seconds and lag is not None:
        lag_before, _ = _lag(before, earlier)
        if lag_before is not None:
            growth = (lag - lag_before) / seconds
            read_rate = None if rate is None else max(0.0, rate - growth)
    return Group(
        name=group.name,
        last_delivered=group.last_delivered,
        entries_read=group.entries_read,
        lag=lag,
        lag_unknown=reason,
        lag_most=lag if lag is not None else stream.length,
        trimmed_unread=_trimmed_unread(stream, group),
        pending=group.pending,
        consumers=group.consumers,
        entries=group.entries,
        read_rate=read_rate,
        lag_growth=growth,
    )


def _lag(stream: Look, group: GroupLook) -> tuple[int | None, str | None]:
    """The number of entries not yet delivered to the group, or why that is unknown."""
    if stream.last is None or group.last_delivered >= stream.last:
        return 0, None
    if stream.first is not None and group.last_delivered < stream.first:
        return stream.length, None
    if group.lag is not None:
        # Redis 7.0 continues from an old count after it has skipped trimmed entries.
        return min(max(group.lag, 0), stream.length), None
    if stream.entries_added is None:
        reason = "the server does not count; Redis 7.0 and later, and Valkey, do"
    elif stream.max_deleted is not None and stream.max_deleted > group.last_delivered:
        reason = "an entry after the position of the group was deleted (XDEL)"
    else:
        reason = "the group was set to an entry in the middle of the stream"
    if group.counted is not None and stream.entries_added is None:
        return group.counted, None  # normal for these servers, and not worth a note
    return None, reason if group.counted is None else f"{reason}; {group.counted:,} were counted"


def _trimmed_unread(stream: Look, group: GroupLook) -> int | None:
    if stream.entries_added is None or group.entries_read is None:
        return None
    if stream.first is not None and group.last_delivered >= stream.first:
        return 0
    if group.last_delivered >= stream.last_generated:
        return 0
    return max(0, stream.entries_added - stream.length - group.entries_read)
