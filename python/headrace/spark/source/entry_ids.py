"""Entry IDs as pairs of integers, which sort as they do on the server. Each half has 64 unsigned bits."""

from __future__ import annotations

from typing import Final

__all__ = ["HIGHEST", "LOWEST", "Id", "after", "before", "parse", "show"]

#: Milliseconds and sequence number.
Id = tuple[int, int]

MAX: Final = 2**64 - 1
#: An ID that no entry has.
LOWEST: Final[Id] = (0, 0)
HIGHEST: Final[Id] = (MAX, MAX)


def parse(text: str) -> Id | None:
    """Read `ms-seq`; None if the text is anything else."""
    ms, dash, seq = text.partition("-")
    if not dash or not all(half.isascii() and half.isdigit() for half in (ms, seq)):
        return None
    entry_id = (int(ms), int(seq))
    return entry_id if max(entry_id) <= MAX else None


def show(entry_id: Id) -> str:
    """Write an ID as `ms-seq`."""
    return f"{entry_id[0]}-{entry_id[1]}"


def after(entry_id: Id) -> Id | None:
    """Return the next higher ID; None after the highest one."""
    ms, seq = entry_id
    if seq < MAX:
        return ms, seq + 1
    return (ms + 1, 0) if ms < MAX else None


def before(entry_id: Id) -> Id | None:
    """Return the next lower ID; None before the lowest one."""
    ms, seq = entry_id
    if seq:
        return ms, seq - 1
    return (ms - 1, MAX) if ms else None
