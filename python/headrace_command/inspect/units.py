"""Durations and counts as people read them."""

from __future__ import annotations

__all__ = ["count", "duration", "rate", "size"]

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Format as `450 ms`, `12 s`, `3 min`, `2 h`, `5 d`: at least two of a unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    return f"{seconds:.1f} s"


def count(number: int, noun: str, plural: str = "") -> str:
    """Format as `1 entry`, `1,200 entries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def rate(value: float) -> str:
    """Format as `0/s`, `0.5/s`, `1,200/s`."""
    return f"{value:,.0f}/s" if value >= 10 or value == int(value) else f"{value:.1f}/s"


def size(number: int) -> str:
    """Format as `512 B`, `1.5 KiB`, `20 MiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
