"""Parses durations."""

import re
from argparse import ArgumentTypeError

__all__ = ["seconds"]

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds(text: str) -> float:
    """Return the seconds in a text such as `90`, `500ms` or `1h30m`.

    Raises:
        ArgumentTypeError: It is not a duration.
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ArgumentTypeError(f"must be a duration such as 90s, 15m, 1h30m or 2d, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
