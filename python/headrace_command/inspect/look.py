"""One look at a stream: the replies of the server as plain values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_command.absent import is_absent
from headrace_command.inspect.facts import Consumer, Id, Pending

if TYPE_CHECKING:
    from headrace._headrace import Commands

__all__ = ["GroupLook", "Look", "look"]

#: The most pending entries of a group that are looked at.
_MOST_PENDING = 1000
#: The most of these, from the first entry of the stream on, that are checked for deletion.
_MOST_LOOKED_UP = 100
#: Undelivered entries are counted up to this number, and this number of bytes.
_MOST_COUNTED = 10_000
_MOST_COUNTED_BYTES = 8 << 20


class GroupLook(NamedTuple):
    """A group."""

    name: bytes
    pending: int
    last_delivered: Id
    entries_read: int | None
    #: What the server reports, if anything.
    lag: int | None
    #: Entries after the position, if they were counted to the end.
    counted: int | None
    consumers: list[Consumer]
    entries: list[Pending]


class Look(NamedTuple):
    """A stream."""

    key: bytes
    #: The time of a monotonic clock of this machine.
    taken: float
    now: float | None
    length: int
    entries_added: int | None
    first: Id | None
    last: Id | None
    last_generated: Id
    max_deleted: Id | None
    memory: int | None
    dead_letters: tuple[bytes, int] | None
    groups: list[GroupLook]
    #: The names of all groups, including those that were not asked for.
    group_names: list[bytes]


def look(commands: Commands, key: bytes, only: bytes | None, dead_key: bytes) -> Look | None:
    """Look at a stream; None if it does not exist.

    Raises:
        CommandError: The server refused a command whose reply is required.
    """
    of_key = [
        (key, [b"TIME"]),
        (key, [b"XINFO", b"STREAM", key]),
        (key, [b"XINFO", b"GROUPS", key]),
        (key, [b"MEMORY", b"USAGE", key]),
        (dead_key, [b"XLEN", dead_key]),
    ]
    time_of_server, stream, groups, memory, dead = commands.call(of_key, writes=False)
    if is_absent(stream):
        return None
    info = _pairs(stream)
    first, last = info.get(b"first-entry"), info.get(b"last-entry")
    found = Look(
        key=key,
        taken=time.monotonic(),
        now=_seconds(time_of_server),
        length=info[b"length"],
        entries_added=info.get(b"entries-added"),
        first=_id(first[0]) if first else None,
        last=_id(last[0]) if last else None,
        last_generated=_id(info[b"last-generated-id"]),
        max_deleted=_id(info[b"max-deleted-entry-id"]) if b"max-deleted-entry-id" in info else None,
        memory=memory if isinstance(memory, int) else None,
        dead_letters=(dead_key, dead) if isinstance(dead, int) and dead else None,
        groups=[],
        group_names=[],
    )
    named = [_pairs(group) for group in _listed(groups)]
    found = found._replace(group_names=[group[b"name"] for group in named])
    return found._replace(groups=_groups(commands, found, [g for g in named if only is None or g[b"name"] == only]))


def _groups(commands: Commands, stream: Look, groups: list[dict[bytes, Any]]) -> list[GroupLook]:
    key = stream.key
    asked = []
    for group in groups:
        asked.append((key, [b"XINFO", b"CONSUMERS", key, group[b"name"]]))
        most = str(_MOST_PENDING).encode()
        asked.append((key, [b"XPENDING", key, group[b"name"], b"-", b"+", most]))
    replies = commands.call(asked, writes=False) if asked else []
    found = []
    for group, consumers, pending in zip(groups, replies[::2], replies[1::2], strict=True):
        if "NOGROUP" in (getattr(consumers, "code", ""), getattr(pending, "code", "")):
            continue  # destroyed in the meantime
        last_delivered = _id(group[b"last-delivered-id"])
        is_uncounted = group.get(b"lag") is None and last_delivered < stream.last_generated
        found.append(
            GroupLook(
                name=group[b"name"],
                pending=group[b"pending"],
                last_delivered=last_delivered,
                entries_read=group.get(b"entries-read"),
                lag=group.get(b"lag"),
                counted=_count_behind(commands, stream, last_delivered) if is_uncounted else None,
                consumers=[_consumer(consumer) for consumer in _listed(consumers)],
                entries=_existing(commands, stream, _listed(pending)),
            )
        )
    return found


def _existing(commands: Commands, stream: Look, rows: list[Any]) -> list[Pending]:
    """The pending entries, with those that were trimmed or deleted marked."""
    entries = []
    for entry_id, consumer, idle, deliveries in rows:
        number = _id(entry_id)
        exists = stream.first is not None and number >= stream.first
        entries.append(Pending(number, consumer, max(0, idle) / 1000, deliveries, exists))
    # Before Redis 7.0 the server does not report whether any entry was deleted.
    doubtful = [
        place
        for place, entry in enumerate(entries)
        if entry.exists and (stream.max_deleted is None or entry.id <= stream.max_deleted)
    ][:_MOST_LOOKED_UP]
    ids = [b"%d-%d" % entries[place].id for place in doubtful]
    asked = [(stream.key, [b"XRANGE", stream.key, entry_id, entry_id]) for entry_id in ids]
    for place, reply in zip(doubtful, commands.call(asked, writes=False) if asked else [], strict=True):
        entries[place] = entries[place]._replace(exists=reply != [])
    return entries


def _count_behind(commands: Commands, stream: Look, position: Id) -> int | None:
    """The number of entries after a position, if they are few enough to read."""
    entry_bytes = max(1, (stream.memory or _MOST_COUNTED_BYTES // 100) // max(1, stream.length))
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
