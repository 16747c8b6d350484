"""One look at a stream: what the server says about it, as plain values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace_command.inspect.facts import Consumer, GroupLook, Id, Look, Pending

if TYPE_CHECKING:
    from headrace.admin import Commands, GroupInfo, Survey

__all__ = ["look"]

#: The most pending entries of a group that are looked at.
_MOST_PENDING = 1000
#: The most of these, from the first entry of the stream on, that are checked for deletion.
_MOST_LOOKED_UP = 100
#: The highest part of an ID.
_MOST_SEQ = 2**64 - 1
#: Undelivered entries are counted up to this number, and this number of bytes.
_MOST_COUNTED = 10_000
_MOST_COUNTED_BYTES = 8 << 20


def look(commands: Commands, survey: Survey, key: bytes, only: bytes | None, dead_key: bytes) -> Look | None:
    """Look at a stream; None if it does not exist.

    Raises:
        CommandError: The server refused a command whose reply is required.
    """
    ((info, groups),) = survey.groups([key])
    if info.is_missing:
        return None
    taken = time.monotonic()
    of_key = [(key, [b"TIME"]), (key, [b"MEMORY", b"USAGE", key]), (dead_key, [b"XLEN", dead_key])]
    time_of_server, memory, dead = commands.call(of_key, writes=False)
    found = Look(
        key=key,
        taken=taken,
        now=_seconds(time_of_server),
        info=info,
        memory=memory if isinstance(memory, int) else None,
        dead_letters=(dead_key, dead) if isinstance(dead, int) and dead else None,
        groups=[],
        group_names=[group.name for group in groups],
    )
    wanted = [one for one in groups if only is None or one.name == only]
    return found._replace(groups=_groups(commands, survey, found, wanted))


def _groups(commands: Commands, survey: Survey, stream: Look, groups: list[GroupInfo]) -> list[GroupLook]:
    key = stream.key
    asked = []
    for group in groups:
        asked.append((key, [b"XINFO", b"CONSUMERS", key, group.name]))
        most = str(_MOST_PENDING).encode()
        asked.append((key, [b"XPENDING", key, group.name, b"-", b"+", most]))
    replies = commands.call(asked, writes=False) if asked else []
    shared = survey.leases(key, stream.info, groups) if groups else []
    found = []
    for group, consumers, pending, seen in zip(groups, replies[::2], replies[1::2], shared, strict=True):
        if "NOGROUP" in (getattr(consumers, "code", ""), getattr(pending, "code", "")):
            continue  # destroyed in the meantime
        lease, members = (None, []) if seen is None else seen
        lag = group.lag if lease is None else lease.lag
        position = group.last_delivered if lease is None else lease.position or group.last_delivered
        found.append(
            GroupLook(
                info=group,
                counted=_count_behind(commands, stream, position) if lag is None else None,
                consumers=[_consumer(consumer) for consumer in _listed(consumers)],
                entries=_existing(commands, stream, _listed(pending)),
                lease=lease,
                first_waiting=None if lease is None or lag == 0 else _first_after(survey, key, position),
                members=members,
                sees_leases=seen is not None,
            )
        )
    return found


def _existing(commands: Commands, stream: Look, rows: list[Any]) -> list[Pending]:
    """The pending entries, with those that were trimmed or deleted marked."""
    entries = []
    for entry_id, consumer, idle, deliveries in rows:
        number = _id(entry_id)
        exists = stream.info.first is not None and number >= stream.info.first
        entries.append(Pending(number, consumer, max(0, idle) / 1000, deliveries, exists))
    # Before Redis 7.0 the server does not report whether any entry was deleted.
    counts, deleted = stream.info.added is not None, stream.info.max_deleted or (0, 0)
    doubtful = [place for place, entry in enumerate(entries) if entry.exists and (not counts or entry.id <= deleted)][
        :_MOST_LOOKED_UP
    ]
    ids = [b"%d-%d" % entries[place].id for place in doubtful]
    asked = [(stream.key, [b"XRANGE", stream.key, entry_id, entry_id]) for entry_id in ids]
    for place, reply in zip(doubtful, commands.call(asked, writes=False) if asked else [], strict=True):
        entries[place] = entries[place]._replace(exists=reply != [])
    return entries


def _count_behind(commands: Commands, stream: Look, position: Id) -> int | None:
    """The number of entries after a position, if they are few enough to read."""
    entry_bytes = max(1, (stream.memory or _MOST_COUNTED_BYTES // 100) // max(1, stream.info.length))
    most = min(_MOST_COUNTED, _MOST_COUNTED_BYTES // entry_bytes)
    page = min(1000, most)
    counted = 0
    while page and counted < most:
        start = b"%d-%d" % (position[0], position[1] + 1)
        words = [b"XRANGE", stream.key, start, b"+", b"COUNT", str(page).encode()]
        (reply,) = commands.call([(stream.key, words)], writes=False)
        if not isinstance(reply, list):
            return None
        counted += len(reply)
        if len(reply) < page:
            return counted
        last: Any = reply[-1]
        position = _id(last[0])
    return None


def _first_after(survey: Survey, key: bytes, position: Id) -> Id | None:
    """The first entry after a position, if the user may read entries."""
    from headrace import CommandError

    ms, seq = position
    start = (ms, seq + 1) if seq < _MOST_SEQ else (ms + 1, 0)
    try:
        (first,) = survey.first_ids([(key, start, (_MOST_SEQ, _MOST_SEQ))])
    except CommandError:
        return None
    return first


def _consumer(reply: Any) -> Consumer:
    info = _pairs(reply)
    inactive = info.get(b"inactive")
    return Consumer(
        info[b"name"],
        info[b"pending"],
        max(0, info[b"idle"]) / 1000,
        None if inactive is None or inactive < 0 else inactive / 1000,
    )


def _listed(reply: Any) -> list[Any]:
    if isinstance(reply, Exception):
        raise reply
    return list(reply)


def _pairs(reply: Any) -> dict[bytes, Any]:
    parts = _listed(reply)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _id(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def _seconds(reply: Any) -> float | None:
    return int(reply[0]) + int(reply[1]) / 1e6 if isinstance(reply, list) else None
