"""Determines why a consumer is stuck from what is known about the stream. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.admin import MOST_DELIVERIES
from headrace_command.inspect.facts import ALONE, Consumer, Group, Lease, Pending, Sharing, Stream, id_text
from headrace_command.text import count, duration, printable, rate

__all__ = ["Finding", "Remedy", "diagnose", "failure"]

#: Consumers are taken to fail on an entry that was delivered this often.
_MANY_DELIVERIES = 5
#: The share of the time until a consumer counts as stuck after which it counts as slow.
_SLOW = 0.1
#: The share of the added entries by which the lag must grow: less is chance.
_GROWTH = 0.1
#: The most IDs in a command.
_MOST_IDS = 100
#: The most entries that are claimed by ID.
_CLAIMED_BY_ID = 10
#: The most entries that one XAUTOCLAIM takes.
_CLAIMED_AT_ONCE = 10_000
#: The seconds for which a lease that ended may wait for a member that takes it.
_TAKEN_WITHIN = 1.0
#: The name suggested for a consumer that takes over entries, if no existing one can.
_RESCUE = b"rescue"


class Remedy(NamedTuple):
    """A remedy: advice, and the command for it.

    Attributes:
        text: What to do.
        program: `redis-cli` or `headrace`; None where no command helps.
        words: The words of the command, without the program and its connection.
        more: A redis-cli command that follows if the first one succeeds.
    """

    text: str
    program: str | None = None
    words: tuple[bytes, ...] = ()
    more: tuple[bytes, ...] = ()


class Finding(NamedTuple):
    """A problem, or a fact worth a note.

    Attributes:
        code: Its name for programs.
        is_alarm: Whether something is wrong.
        group: The consumer group that it concerns, if any.
        text: A sentence.
        remedy: What to do about it.
    """

    code: str
    is_alarm: bool
    group: bytes | None
    text: str
    remedy: Remedy | None = None


def diagnose(stream: Stream, stuck_after: float, sharing: Sharing = ALONE) -> list[Finding]:
    """Return what is wrong with the groups of a stream, the worst first, followed by what is only worth a note.

    Args:
        stream: What is known about the stream.
        stuck_after: Seconds after which a pending entry, or a consumer that asks for or commits nothing, is stuck.
        sharing: What all streams that were looked at tell about groups of shard consumers.
    """
    found = [finding for group in stream.groups for finding in _of_group(stream, group, stuck_after)]
    for group in stream.groups:
        found += _of_lease(stream, group, stuck_after, sharing)
        found += _of_members(group, sharing)
    if stream.entries_added == 0:
        text = f"nothing was ever added to {_name(stream.key)}: a consumer of a misspelt key creates its stream"
        found.append(Finding("NEVER_WRITTEN", False, None, text))
    if stream.dead_letters is not None and stream.dead_letters[1]:
        found.append(_dead_letters(*stream.dead_letters))
    found.sort(key=lambda finding: not finding.is_alarm)
    return found


def _of_group(stream: Stream, group: Group, stuck_after: float) -> Iterator[Finding]:
    yield from _ahead(stream, group)
    yield from _trimmed_unread(group)
    yield from _trimmed_pending(stream, group)
    yield from _poison(stream, group)
    live = [consumer for consumer in group.consumers if consumer.idle < stuck_after]
    held = [entry for entry in group.entries if entry.exists]
    for consumer in sorted(group.consumers, key=lambda consumer: -consumer.pending):
        own = [entry for entry in held if entry.consumer == consumer.name]
        stuck = [entry for entry in own if entry.idle >= stuck_after]
        if consumer not in live:
            # Entries that it holds beyond those looked at are assumed to be like them.
            if stuck or (consumer.pending and len(group.entries) < group.pending):
                yield _dead(stream, group, consumer, stuck, live, stuck_after)
        elif once := [entry for entry in stuck if entry.deliveries == 1]:
            yield _only_new(stream, group, consumer, once, stuck_after)
        elif own and consumer.idle >= stuck_after * _SLOW and group.lag:
            yield _slow(stream, group, consumer)
    if group.lease is None:
        yield from _without_consumer(stream, group, live, held)
    yield from _too_fast(stream, group, is_read=bool(live) or (group.lease is not None and group.lease.is_held))
    yield from _lag_unknown(stream, group)


def _ahead(stream: Stream, group: Group) -> Iterator[Finding]:
    if group.last_delivered <= stream.last_generated:
        return
    text = (
        f"group {_name(group.name)} is at {id_text(group.last_delivered)}, ahead of the newest entry "
        f"{id_text(stream.last_generated)} of the stream: it gets nothing until IDs pass that. The stream was "
        "recreated, restored, or lost its end in a failover"
    )
    if group.lease is not None:
        remedy = Remedy("delete its lease and the group: its members begin again at their `start`")
    else:
        advice = f"set the position back: 0 delivers {_all(stream.length)} of the stream, '$' instead only new ones"
        remedy = Remedy(advice, "redis-cli", (b"XGROUP", b"SETID", stream.key, group.name, b"0"))
    yield Finding("GROUP_AHEAD", True, group.name, text, remedy)


def _trimmed_unread(group: Group) -> Iterator[Finding]:
    if group.trimmed_unread:
        were = "was" if group.trimmed_unread == 1 else "were"
        text = (
            f"{_entries(group.trimmed_unread)} {were} trimmed before group {_name(group.name)} read them: they are "
            "lost to it"
        )
        if group.last_delivered == (0, 0) and group.entries_read is None:
            text += ", also those trimmed before it was created: the server does not say when that was"
        advice = "keep more entries (maxlen of the producer), or read faster"
        yield Finding("TRIMMED_UNREAD", True, group.name, text, Remedy(advice))


def _trimmed_pending(stream: Stream, group: Group) -> Iterator[Finding]:
    gone = [entry for entry in group.entries if not entry.exists]
    if not gone:
        return
    text = (
        f"{len(gone):,} of {count(group.pending, 'pending entry', 'pending entries')} of group {_name(group.name)} "
        f"{'was' if len(gone) == 1 else 'were'} trimmed or deleted: no consumer can read "
        f"{'it' if len(gone) == 1 else 'them'} any more"
    )
    first = gone[:_MOST_IDS]
    which = f"the first {len(first)} of them" if len(gone) > len(first) else "it" if len(gone) == 1 else "them"
    words = (b"XACK", stream.key, group.name, *_ids(first))
    yield Finding(
        "TRIMMED_PENDING", True, group.name, text, Remedy(f"remove {which} from the group", "redis-cli", words)
    )


def _poison(stream: Stream, group: Group) -> Iterator[Finding]:
    often = [entry for entry in group.entries if entry.exists and entry.deliveries >= _MANY_DELIVERIES]
    failed = [entry for entry in often if 0 < entry.failures < _MANY_DELIVERIES]
    poison = [entry for entry in often if not 0 < entry.failures < _MANY_DELIVERIES]
    if failed:
        worst = max(failed, key=lambda entry: entry.deliveries)
        text = (
            f"entry {id_text(worst.id)} failed {_times(worst.failures)} in group {_name(group.name)}, and is delivered "
            f"again{_more(failed)}: its counter is {worst.deliveries:,}, and consumers of headrace count failures "
            f"above {MOST_DELIVERIES}"
        )
        yield Finding("FAILED_ENTRY", False, group.name, text)
    if not poison:
        return
    worst = max(poison, key=lambda entry: entry.deliveries)
    counted = f"was delivered {worst.deliveries:,} times"
    if worst.failures:
        counted = f"failed {_times(worst.failures)} (or was delivered {worst.deliveries:,} times by other clients)"
    text = (
        f"entry {id_text(worst.id)} {counted} in group {_name(group.name)} and was never acknowledged: consumers fail "
        f"on it{_more(poison)}"
    )
    entry_id = id_text(worst.id).encode()
    look = (b"read", stream.key, b"--from", entry_id, b"--to", entry_id)
    advice = "look at it, and remove it from the group; it stays in the stream"
    more = (b"XACK", stream.key, group.name, entry_id)
    yield Finding("POISON_ENTRY", True, group.name, text, Remedy(advice, "headrace", look, more))


def _dead(
    stream: Stream, group: Group, consumer: Consumer, stuck: list[Pending], live: list[Consumer], after: float
) -> Finding:
    text = (
        f"consumer {_name(consumer.name)} of group {_name(group.name)} holds {_entries(consumer.pending)} and has "
        f"asked for nothing for {duration(consumer.idle)}: it is probably dead"
    )
    if live:
        target = min(live, key=lambda other: other.idle).name
        advice = f"hand them to {_name(target)}, which gets them when it reads its own pending entries"
    else:
        target = _RESCUE
        advice = (
            "no consumer of the group is alive: start it again under its name, or hand them to one named "
            f"{_name(target)} that begins with its own pending entries"
        )
    remedy = Remedy(advice, "redis-cli", _claim(stream, group, target, stuck, consumer.pending, after))
    return Finding("DEAD_CONSUMER", True, group.name, text, remedy)


def _only_new(stream: Stream, group: Group, consumer: Consumer, once: list[Pending], after: float) -> Finding:
    oldest = max(entry.idle for entry in once)
    are = "is" if len(once) == 1 else "are"
    text = (
        f"consumer {_name(consumer.name)} of group {_name(group.name)} is alive, but {_entries(len(once))} that it got "
        f"up to {duration(oldest)} ago {are} pending: it reads only new entries (>), never its own pending ones, or "
        "does not acknowledge"
    )
    advice = (
        f"let it begin with its own pending entries (ID 0) and acknowledge; these go to a consumer named "
        f"{_name(_RESCUE)} that does"
    )
    remedy = Remedy(advice, "redis-cli", _claim(stream, group, _RESCUE, once, consumer.pending, after))
    return Finding("READS_ONLY_NEW", True, group.name, text, remedy)


def _slow(stream: Stream, group: Group, consumer: Consumer) -> Finding:
    waiting = group.lag or 0
    text = (
        f"consumer {_name(consumer.name)} of group {_name(group.name)} has been at work on "
        f"{_entries(consumer.pending)} for {duration(consumer.idle)}, while "
        f"{_entries(waiting)} {_verb(waiting)}: it is slow"
    )
    return Finding("SLOW_CONSUMER", True, group.name, text, _more_consumers(stream, group))


def _without_consumer(stream: Stream, group: Group, live: list[Consumer], held: list[Pending]) -> Iterator[Finding]:
    waiting = group.lag if group.lag is not None else group.lag_most
    if live or held or not waiting or group.last_delivered > stream.last_generated:
        return
    most = "" if group.lag is not None else "up to "
    if not group.consumers:
        text = f"group {_name(group.name)} has no consumer, while {most}{_entries(waiting)} {_verb(waiting)}"
        if not group.sees_leases:
            text += "; whether a ShardConsumer reads for it is unknown: the user may not read its lease (HGETALL)"
        advice = "start one; if the group is not needed any more, destroy it"
        words = (b"XGROUP", b"DESTROY", stream.key, group.name)
        yield Finding("NO_CONSUMER", True, group.name, text, Remedy(advice, "redis-cli", words))
        return
    idle = min(consumer.idle for consumer in group.consumers)
    text = (
        f"no consumer of group {_name(group.name)} has asked for entries for {duration(idle)}, while {most}"
        f"{_entries(waiting)} {_verb(waiting)}: {'it is' if len(group.consumers) == 1 else 'they are'} probably dead"
    )
    advice = "start a consumer of the group again, and watch its lag"
    yield Finding("NO_LIVE_CONSUMER", True, group.name, text, _more_consumers(stream, group)._replace(text=advice))


def _too_fast(stream: Stream, group: Group, *, is_read: bool) -> Iterator[Finding]:
    known = stream.rate is not None and group.read_rate is not None and group.lag_growth is not None
    if not known or not is_read or group.lag is None:
        return
    added, read, growth = stream.rate or 0.0, group.read_rate or 0.0, group.lag_growth or 0.0
    # Any group has at times a lag of less than one second's entries.
    if added and growth > added * _GROWTH and group.lag >= added:
        text = (
            f"entries arrive at {rate(added)} and group {_name(group.name)} reads {rate(read)}: its lag of "
            f"{_entries(group.lag)} grows by {rate(growth)}"
        )
        yield Finding("PRODUCER_FASTER", True, group.name, text, _more_consumers(stream, group))
    elif group.lag > read > 0 and growth < 0:
        text = (
            f"group {_name(group.name)} is catching up: {_entries(group.lag)} {_verb(group.lag)}, about "
            f"{duration(group.lag / -growth)} at this rate"
        )
        yield Finding("CATCHING_UP", False, group.name, text)


def _lag_unknown(stream: Stream, group: Group) -> Iterator[Finding]:
    if group.lag is not None or group.lag_unknown is None or group.last_delivered > stream.last_generated:
        return
    text = f"the lag of group {_name(group.name)} is unknown, at most {_entries(group.lag_most)}: {group.lag_unknown}"
    words = (b"read", stream.key, b"--from", b"(" + id_text(group.last_delivered).encode(), b"-o", b"jsonl")
    advice = "the server knows it again once the group has read further; to count the entries that wait, add | wc -l"
    yield Finding("LAG_UNKNOWN", False, group.name, text, Remedy(advice, "headrace", words))


def _of_lease(stream: Stream, group: Group, stuck_after: float, sharing: Sharing) -> Iterator[Finding]:
    lease = group.lease
    if lease is None:
        return
    waiting = group.lag if group.lag is not None else group.lag_most
    what = f"{_name(stream.key)} of group {_name(group.name)}"
    while_waiting = f", while {'' if group.lag is not None else 'up to '}{_entries(waiting)} {_verb(waiting)}"
    if lease.has_failed:
        is_alarm = (lease.failures or 0) >= _MANY_DELIVERIES or (lease.idle or 0) >= stuck_after
        look = None
        if lease.first_waiting is not None:
            entry_id = id_text(lease.first_waiting).encode()
            look = Remedy("look at it", "headrace", (b"read", stream.key, b"--from", entry_id, b"-n", b"1"))
        yield Finding("FAILING_ENTRY", is_alarm, group.name, f"{what} waits: {failure(lease)}", look)
    if lease.owner is None and lease.is_left and waiting:
        yield Finding("NO_OWNER", True, group.name, f"{what} has no owner{while_waiting}", _start(lease))
    if lease.owner is not None and lease.rest is not None and lease.rest <= -_TAKEN_WITHIN:
        text = (
            f"the lease of {what} ended {duration(-lease.rest)} ago, and no member has taken it"
            f"{while_waiting if waiting else ''}: its owner {_name(lease.owner)} is probably dead"
        )
        yield Finding("LEASE_ENDED", bool(waiting), group.name, text, _start(lease))
    is_stuck = lease.is_held and waiting and not lease.has_failed and (lease.idle or 0) >= stuck_after
    if lease.owner is not None and is_stuck:
        text = (
            f"member {_name(lease.owner)} owns {what}, and has committed nothing for {duration(lease.idle or 0)}"
            f"{while_waiting}: it hangs, is slow, or does not commit"
        )
        advice = "look at what it does, or end it: another member takes the stream then"
        yield Finding("COMMITS_NOTHING", True, group.name, text, Remedy(advice))
    if lease.pinned is not None and sharing.has(group.name, lease.pinned) is False:
        text = f"{what} is pinned to member {_name(lease.pinned)}, which is not there: no other member takes it"
        advice = "start this member, or let any member take the stream: headrace shards assign --free"
        yield Finding("PIN_ABSENT", True, group.name, text, Remedy(advice))
    elif lease.pinned is not None and lease.is_held and lease.owner is not None and lease.owner != lease.pinned:
        text = (
            f"{what} is pinned to member {_name(lease.pinned)}, and {_name(lease.owner)} owns it: it gives the stream "
            "up when it next renews its lease, and has committed what it was given"
        )
        yield Finding("PIN_PENDING", False, group.name, text)


def _start(lease: Lease) -> Remedy:
    if lease.pinned is not None:
        return Remedy(f"start the member {_name(lease.pinned)}, to which it is pinned")
    return Remedy("start a member of the group")


def _of_members(group: Group, sharing: Sharing) -> Iterator[Finding]:
    there = [member.name for member in group.members if member.is_there]
    idle = [name for name in there if not sharing.owned.get((group.name, name))]
    if sharing.shards is not None and len(there) > sharing.shards and idle:
        own = f"{count(len(idle), 'member')} own{'s' if len(idle) == 1 else ''} none"
        text = f"group {_name(group.name)} has {len(there):,} members for {count(sharing.shards, 'shard')}: {own}"
        yield Finding("MORE_MEMBERS", False, group.name, text)


def failure(lease: Lease) -> str:
    """Say which entry of a stream has failed, how often, and why."""
    entry = "its first entry" if lease.first_waiting is None else f"entry {id_text(lease.first_waiting)}"
    reason = "" if lease.reason is None else f": {printable(lease.reason)}"
    if lease.failures is None:
        return f"{entry}, or one of those that follow, failed{reason}"
    return f"{entry} failed {_times(lease.failures)}{reason}"


def _dead_letters(key: bytes, length: int) -> Finding:
    text = f"{count(length, 'dead letter')} {'is' if length == 1 else 'are'} in {_name(key)}"
    return Finding("DEAD_LETTERS", False, None, text, Remedy("look at them", "headrace", (b"read", key)))


def _more_consumers(stream: Stream, group: Group) -> Remedy:
    words = (b"inspect", stream.key, b"--group", group.name, b"--watch")
    return Remedy("start more consumers of the group, and watch its lag", "headrace", words)


def _claim(
    stream: Stream, group: Group, target: bytes, entries: list[Pending], pending: int, after: float
) -> tuple[bytes, ...]:
    """The command that hands over entries that were idle long enough, without counting it as a delivery."""
    idle = str(int(after * 1000)).encode()
    if entries and pending <= _CLAIMED_BY_ID:
        return (b"XCLAIM", stream.key, group.name, target, idle, *_ids(entries), b"JUSTID")
    number = str(min(max(pending, group.pending), _CLAIMED_AT_ONCE)).encode()
    return (b"XAUTOCLAIM", stream.key, group.name, target, idle, b"0-0", b"COUNT", number, b"JUSTID")


def _ids(entries: list[Pending]) -> list[bytes]:
    return [id_text(entry.id).encode() for entry in entries]


def _name(name: bytes) -> str:
    return f"'{printable(name)}'"


def _more(entries: list[Pending]) -> str:
    return f" ({_entries(len(entries) - 1)} more like it)" if len(entries) > 1 else ""


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _entries(number: int) -> str:
    return count(number, "entry", "entries")


def _verb(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _all(length: int) -> str:
    return "no entry" if length == 0 else "the only entry" if length == 1 else f"all {length:,} entries"
