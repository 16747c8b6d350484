"""Parses durations."""

import re
from argparse import ArgumentTypeError

__all__ = ["seconds"]

_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Return `500ms`, `60s`, `60`, `2m` or `1h` in seconds."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"a duration is a number with ms, s, m or h, such as 60s, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]
