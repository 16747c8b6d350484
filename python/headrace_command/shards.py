"""`headrace shards`: pins the shards of a stream to members of a group of shard consumers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.run import Run
from headrace_command.text import json_bytes, printable

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["run"]


def run(run: Run) -> ExitCode:
    """Pin shards, or free them."""
    from headrace import Group

    if not run.stream:
        raise UsageError("STREAM must be a non-empty key")
    wanted = [_pin(text, frees=run.arguments.free) for text in run.arguments.pins]
    endpoint = run.endpoint(run.stream)
    if endpoint.shards is None:
        endpoint = endpoint.find_shards()
    keys = endpoint.stream_keys
    pins = {}
    for shard, member in wanted:
        if shard >= len(keys):
            raise UsageError(f"the stream {os.fsdecode(run.stream)!r} has the shards 0 to {len(keys) - 1}, not {shard}")
        if keys[shard] in pins:
            raise UsageError(f"shard {shard} is named twice")
        pins[keys[shard]] = member
    group = os.fsencode(run.arguments.group)
    members = _members(endpoint, group)
    Group(endpoint, group).assign(pins)
    for absent in sorted({member for member in pins.values() if member is not None and member not in members}):
        text = f"there is no member {os.fsdecode(absent)!r} of the group {os.fsdecode(group)!r} yet"
        run.messages.warn(f"{text}: until there is, its shards have no owner")
    for key, member in pins.items():
        if run.output.form == "text":
            run.output.text(f"{printable(key)}  {'free' if member is None else f'pinned to {printable(member)}'}")
    rows = [
        {"stream": json_bytes(key), "pinned": None if member is None else json_bytes(member)}
        for key, member in pins.items()
    ]
    if run.output.form == "json":
        run.output.value(rows)
    for row in rows if run.output.form == "jsonl" else ():
        run.output.row(row)
    return ExitCode.OK


def _pin(text: str, *, frees: bool) -> tuple[int, bytes | None]:
    """The number of a shard, and the member; None frees it."""
    number, equals, member = text.partition("=")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"a shard must be a number, got {number!r}")
    if frees and equals:
        raise UsageError(f"with --free, name shards alone, got {text!r}")
    if not frees and not member:
        raise UsageError(f"give a member for each shard, as SHARD=MEMBER, or --free, got {text!r}")
    return int(number), None if frees else os.fsencode(member)


def _members(endpoint: Endpoint, group: bytes) -> set[bytes]:
    """The names of the members that are there."""
    from headrace.admin import Survey

    # The list is beside the stream with the smallest key.
    home = min(endpoint.stream_keys)
    survey = Survey(endpoint)
    try:
        ((stream, groups),) = survey.groups([home])
        seen = survey.leases(home, stream, [one for one in groups if one.name == group])
    finally:
        survey.close()
    return {name for found in seen if found is not None for name, _ in found[1]}
