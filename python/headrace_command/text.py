"""Values as text: safe to show, readable for people, or for JSON."""

from __future__ import annotations

import base64
import unicodedata

__all__ = ["count", "duration", "json_bytes", "printable", "rate", "size"]

#: Control and format characters (such as those that reverse the text direction), lone surrogates, line separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def printable(text: str | bytes) -> str:
    r"""Escape characters that affect a terminal: `\x1b`, `\u202e`, `\n`. A byte that is not UTF-8 becomes `\xNN`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:
        return f"\\x{ord(character) - 0xDC00:02x}"
    if unicodedata.category(character) in _UNSAFE:
        return character.encode("unicode_escape").decode()
    return character


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Return a value for JSON: its text, or `{"base64": "…"}` if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


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
