"""Converts places in a stream, as people write them, to the form that the reader accepts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from headrace_command.usage_error import UsageError

__all__ = ["place"]

_ID = re.compile(r"(\(?)([0-9]{1,20})(?:-([0-9]{1,20}))?")
_LARGEST = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def place(option: str, text: str, words: tuple[str, ...], *, is_first: bool) -> str:
    """Return an entry ID, milliseconds, or one of `words`.

    Args:
        option: The name of the option, for errors.
        text: What was given.
        words: Names of places that the reader knows.
        is_first: Whether entries from there on are read, rather than those up to there.

    Raises:
        UsageError: It is none of these.
    """
    if text in words:
        return text
    if found := _ID.fullmatch(text):
        return _id(option, text, found, is_first=is_first)
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        allowed = ", ".join(words)
        raise UsageError(f"{option} must be {allowed}, an entry ID or a time, got {text!r}") from None
    whole, rest = divmod(moment - _EPOCH, _MILLISECOND)
    if whole < 0:
        raise UsageError(f"{option} must not be before 1970, got {text!r}")
    return str(whole + 1 if is_first and rest else whole)


def _id(option: str, text: str, found: re.Match[str], *, is_first: bool) -> str:
    is_behind, ms, seq = bool(found[1]), int(found[2]), found[3]
    if max(ms, int(seq or 0)) > _LARGEST:
        raise UsageError(f"{option} must be an entry ID whose parts are less than 2^64, got {text!r}")
    if not is_behind:
        return text
    if not is_first:
        raise UsageError(f"{option} must be an entry ID that is included, got {text!r}")
    number = int(seq or 0) + 1
    if number > _LARGEST:
        ms, number = ms + 1, 0
    return f"{ms}-{number}"
