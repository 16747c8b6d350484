"""What is known about a stream, and the diagnosis: as lines of text, and as a JSON object."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from headrace_command.inspect.command_line import CommandLine
from headrace_command.inspect.diagnosis import Finding, failure
from headrace_command.inspect.facts import Consumer, Group, Id, Lease, Pending, Sharing, Stream, age, id_text
from headrace_command.text import count, duration, json_bytes, printable, rate, size

__all__ = ["document", "lines"]

#: The most groups, and consumers of each, that are shown; the others are counted.
_MOST_GROUPS = 20
_MOST_CONSUMERS = 8
_MOST_MEMBERS = 20


def lines(
    stream: Stream,
    findings: Sequence[Finding],
    command_line: CommandLine,
    stuck_after: float,
    width: int,
    sharing: Sharing,
) -> Iterator[str]:
    """Yield the lines of the screen. Sentences are at most `width` characters wide."""
    yield from _stream(stream, width)
    if stream.groups:
        yield ""
    shown = sorted(stream.groups, key=lambda group: -(group.lag or 0) - group.pending)[:_MOST_GROUPS]
    for group in shown:
        yield from _group(stream, group, stuck_after, sharing)
    if len(stream.groups) > len(shown):
        yield f"… {count(len(stream.groups) - len(shown), 'more group')}"
    yield ""
    yield from _diagnosis(findings, command_line, width, has_groups=bool(stream.groups))


def _stream(stream: Stream, width: int) -> Iterator[str]:
    length = f"{count(stream.length, 'entry', 'entries')}"
    parts = [length]
    if stream.memory is not None:
        parts.append(f"about {size(stream.memory)}")
    if stream.rate is not None and stream.seconds is not None:
        parts.append(f"{rate(stream.rate)} added in the last {duration(stream.seconds)}")
    if stream.entries_added is not None:
        parts.append(f"{stream.entries_added:,} ever added")
    head = f"stream {printable(stream.key)}: {', '.join(parts)}"
    yield from textwrap.wrap(head, width, subsequent_indent="  ", break_long_words=False)
    yield f"  first  {_place(stream.first, stream.now)}"
    yield f"  last   {_place(stream.last, stream.now)}"
    if stream.dead_letters is not None:
        key, number = stream.dead_letters
        yield f"  dead letters  {number:,} in {printable(key)}"


def _place(entry_id: Id | None, now: float | None) -> str:
    if entry_id is None:
        return "-"
    old = age(entry_id, now)
    return id_text(entry_id) + ("" if old is None else f"  {duration(old)} ago")


def _group(stream: Stream, group: Group, stuck_after: float, sharing: Sharing) -> Iterator[str]:
    if group.lag is not None:
        lag = f"{group.lag:,}"
        behind = age(group.last_delivered, stream.now)
        if group.lag and group.last_delivered != (0, 0) and behind is not None:
            lag += f" (the last entry that it got is from {duration(behind)} ago)"
    else:
        lag = f"unknown, at most {group.lag_most:,} ({group.lag_unknown})"
    reads = "" if group.read_rate is None else f", reads {rate(group.read_rate)}"
    yield f"group {printable(group.name)}: lag {lag}{reads}"
    if group.trimmed_unread:
        yield f"  trimmed before it read them: {group.trimmed_unread:,}"
    if group.pending:
        yield f"  pending {group.pending:,}{_of_pending(group)}"
    consumers = sorted(group.consumers, key=lambda consumer: (-consumer.pending, consumer.idle))
    shown = consumers[:_MOST_CONSUMERS]
    names = [printable(consumer.name) for consumer in shown]
    width = min(max(map(len, names), default=0), 40)
    for name, consumer in zip(names, shown, strict=True):
        yield f"    {name:{width}}  {_consumer(group, consumer, stuck_after)}"
    if len(consumers) > len(shown):
        yield f"    … {count(len(consumers) - len(shown), 'more consumer')}"
    if group.lease is not None:
        yield f"  {_lease(group.lease)}"
    if group.members:
        yield from _members(group, sharing)
    if not consumers and group.lease is None and not group.members:
        yield "    no consumer"


def _lease(lease: Lease) -> str:
    if lease.owner is None:
        parts = ["no owner"]
    else:
        parts = [f"owner {printable(lease.owner)}{'' if lease.age is None else f' for {duration(lease.age)}'}"]
        if lease.rest is not None:
            over = lease.rest <= 0
            parts.append(f"its lease {'ended' if over else 'ends in'} {duration(abs(lease.rest))}{' ago' * over}")
    parts.append(f"epoch {lease.epoch}")
    if lease.position is None:
        parts.append("nothing committed")
    else:
        ago = "" if lease.committed is None else f" {duration(lease.committed)} ago"
        parts.append(f"committed {id_text(lease.position)}{ago}")
    if lease.pinned is not None:
        parts.append(f"pinned to {printable(lease.pinned)}")
    if lease.has_failed:
        parts.append(f"waits: {failure(lease)}")
    return ", ".join(parts)


def _members(group: Group, sharing: Sharing) -> Iterator[str]:
    shown = sorted(group.members, key=lambda member: (member.is_there, member.name))[:_MOST_MEMBERS]
    names = [printable(member.name) for member in shown]
    width = min(max(map(len, names)), 40)
    yield f"  {count(len(group.members), 'member')}"
    for name, member in sorted(zip(names, shown, strict=True)):
        owned = count(sharing.owned.get((group.name, member.name), 0), "stream")
        gone = "" if member.rest is None or member.is_there else f", not heard of: gone for {duration(-member.rest)}"
        yield f"    {name:{width}}  {owned}{gone}"
    if len(group.members) > len(shown):
        yield f"    … {count(len(group.members) - len(shown), 'more member')}"


def _of_pending(group: Group) -> str:
    if not group.entries:
        return ""
    gone = sum(not entry.exists for entry in group.entries)
    parts = []
    if held := _held(group.entries):
        parts += [f"the longest for {_longest(held)}", f"at most {_deliveries(held)}"]
    parts += _returned(group.entries)
    if gone:
        parts.append(f"{gone:,} trimmed or deleted")
    looked_at = "" if len(group.entries) >= group.pending else f" (of the {len(group.entries):,} with the lowest IDs)"
    return f": {', '.join(parts)}{looked_at}"


def _consumer(group: Group, consumer: Consumer, stuck_after: float) -> str:
    asked = f"asked {duration(consumer.idle)} ago"
    if consumer.idle >= stuck_after:
        asked = f"asked for nothing for {duration(consumer.idle)}"
    if consumer.inactive is not None and consumer.inactive > consumer.idle + 1:
        asked += f", got something {duration(consumer.inactive)} ago"
    own = [entry for entry in group.entries if entry.consumer == consumer.name]
    if not consumer.pending:
        return f"{asked}, nothing pending"
    held = _held(own)
    parts = [_longest(held), _deliveries(held)] if held else []
    detail = ", ".join([*parts, *_returned(own)])
    return f"{asked}, {consumer.pending:,} pending{f' ({detail})' if detail else ''}"


def _held(entries: Sequence[Pending]) -> list[Pending]:
    """The entries that consumers hold. For others, a consumer of headrace has set the idle time and the counter."""
    return [entry for entry in entries if not entry.is_given_back and not entry.failures]


def _longest(held: list[Pending]) -> str:
    return duration(max(entry.idle for entry in held))


def _deliveries(held: list[Pending]) -> str:
    return count(max(entry.deliveries for entry in held), "delivery", "deliveries")


def _returned(entries: Sequence[Pending]) -> list[str]:
    """Counts the entries that are delivered again: those that failed, and those that were given back."""
    failed = sum(entry.failures > 0 for entry in entries)
    given_back = sum(entry.is_given_back for entry in entries)
    return [f"{number:,} {what}" for number, what in ((failed, "failed"), (given_back, "given back")) if number]


def _diagnosis(
    findings: Sequence[Finding], command_line: CommandLine, width: int, *, has_groups: bool
) -> Iterator[str]:
    if not any(finding.is_alarm for finding in findings):
        yield (
            "healthy: nothing is stuck" if has_groups else "no consumer group: readers without one leave no trace here"
        )
    for finding in findings:
        mark = "!" if finding.is_alarm else "-"
        yield from textwrap.wrap(finding.text, width, initial_indent=f"{mark} ", subsequent_indent="  ")
        if finding.remedy is None:
            continue
        yield from textwrap.wrap(finding.remedy.text, width, initial_indent="  → ", subsequent_indent="    ")
        line = command_line.of(finding.remedy)
        if line is not None:
            yield f"    {line}"


def document(
    stream: Stream, findings: Sequence[Finding], command_line: CommandLine, sharing: Sharing
) -> dict[str, Any]:
    """Return the object. Durations are in seconds, rates in entries per second."""
    dead = stream.dead_letters
    return {
        "stream": json_bytes(stream.key),
        "time": stream.now,
        "length": stream.length,
        "entries_added": stream.entries_added,
        "first_id": _id_or_none(stream.first),
        "first_age": age(stream.first, stream.now),
        "last_id": _id_or_none(stream.last),
        "last_age": age(stream.last, stream.now),
        "last_generated_id": id_text(stream.last_generated),
        "memory": stream.memory,
        "rate": stream.rate,
        "sample": stream.seconds,
        "dead_letters": None if dead is None else {"stream": json_bytes(dead[0]), "length": dead[1]},
        "groups": [_group_object(group, sharing) for group in stream.groups],
        "healthy": not any(finding.is_alarm for finding in findings),
        "findings": [_finding_object(finding, command_line) for finding in findings],
    }


def _id_or_none(entry_id: Id | None) -> str | None:
    return None if entry_id is None else id_text(entry_id)


def _group_object(group: Group, sharing: Sharing) -> dict[str, Any]:
    return {
        "name": json_bytes(group.name),
        "last_delivered_id": id_text(group.last_delivered),
        "entries_read": group.entries_read,
        "lag": group.lag,
        "lag_unknown_reason": group.lag_unknown,
        "lag_most": group.lag_most,
        "lag_growth": group.lag_growth,
        "read_rate": group.read_rate,
        "trimmed_unread": group.trimmed_unread,
        "pending": group.pending,
        "consumers": [
            {
                "name": json_bytes(consumer.name),
                "pending": consumer.pending,
                "idle": consumer.idle,
                "inactive": consumer.inactive,
            }
            for consumer in group.consumers
        ],
        "pending_entries": [
            {
                "id": id_text(entry.id),
                "consumer": json_bytes(entry.consumer),
                "idle": entry.idle,
                "deliveries": entry.deliveries,
                "exists": entry.exists,
            }
            for entry in group.entries
        ],
        "lease": None if group.lease is None else _lease_object(group.lease),
        "members": [
            {
                "name": json_bytes(member.name),
                "rest": member.rest,
                "streams": sharing.owned.get((group.name, member.name), 0),
            }
            for member in group.members
        ],
    }


def _lease_object(lease: Lease) -> dict[str, Any]:
    return {
        "owner": _text_or_none(lease.owner),
        "epoch": lease.epoch,
        "age": lease.age,
        "rest": lease.rest,
        "position": _id_or_none(lease.position),
        "committed_age": lease.committed,
        "pinned": _text_or_none(lease.pinned),
        "failures": lease.failures,
        "first_waiting_id": _id_or_none(lease.first_waiting),
        "reason": _text_or_none(lease.reason),
    }


def _text_or_none(text: bytes | None) -> str | dict[str, str] | None:
    return None if text is None else json_bytes(text)


def _finding_object(finding: Finding, command_line: CommandLine) -> dict[str, Any]:
    remedy = finding.remedy
    return {
        "code": finding.code,
        "alarm": finding.is_alarm,
        "group": None if finding.group is None else json_bytes(finding.group),
        "text": finding.text,
        "advice": None if remedy is None else remedy.text,
        "command": None if remedy is None else command_line.of(remedy),
    }
