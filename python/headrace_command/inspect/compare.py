"""Derives the facts of a stream from two looks at it: its rates. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_command.inspect.facts import Group, Stream
from headrace_command.inspect.look import GroupLook, Look

if TYPE_CHECKING:
    from headrace.admin import StreamInfo

__all__ = ["compare"]


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
