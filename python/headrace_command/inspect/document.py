"""What is known about a stream, and the diagnosis, as a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_command.escape import json_bytes
from headrace_command.inspect.command_line import CommandLine
from headrace_command.inspect.facts import Group, Id, Stream, age, id_text
from headrace_command.inspect.finding import Finding

__all__ = ["document"]


def document(stream: Stream, findings: Sequence[Finding], command_line: CommandLine) -> dict[str, Any]:
    """Return the object. Durations are in seconds, rates in entries per second."""
    dead = stream.dead_letters
    return {
        "stream": json_bytes(stream.key),
        "time": stream.now,
        "length": stream.length,
        "entries_added": stream.entries_added,
        "first_id": _id(stream.first),
        "first_age": age(stream.first, stream.now),
        "last_id": _id(stream.last),
        "last_age": age(stream.last, stream.now),
        "last_generated_id": id_text(stream.last_generated),
        "memory": stream.memory,
        "rate": stream.rate,
        "sample": stream.seconds,
        "dead_letters": None if dead is None else {"stream": json_bytes(dead[0]), "length": dead[1]},
        "groups": [_group(group) for group in stream.groups],
        "healthy": not any(finding.is_alarm for finding in findings),
        "findings": [_finding(finding, command_line) for finding in findings],
    }


def _id(entry_id: Id | None) -> str | None:
    return None if entry_id is None else id_text(entry_id)


def _group(group: Group) -> dict[str, Any]:
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
    }


def _finding(finding: Finding, command_line: CommandLine) -> dict[str, Any]:
    remedy = finding.remedy
    return {
        "code": finding.code,
        "alarm": finding.is_alarm,
        "group": None if finding.group is None else json_bytes(finding.group),
        "text": finding.text,
        "advice": None if remedy is None else remedy.text,
        "command": None if remedy is None else command_line.of(remedy),
    }
