"""Which entries are read: where to begin and to end, as people write places in a stream."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from headrace_command.exit_code import UsageError

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Span", "span_of"]

_MOST_LAST = 1_000_000
_ID = re.compile(r"(\(?)([0-9]{1,20})(?:-([0-9]{1,20}))?")
_LARGEST = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Span(NamedTuple):
    """Where to begin and end, as the reader accepts it; `last` entries before the end are found at the start."""

    start: str
    end: str | None
    reverse: bool
    limit: int | None
    last: int | None


def span_of(arguments: Namespace, endpoint: Endpoint) -> Span:
    """Return the span of the arguments. Asks the server for its time if that is needed.

    Raises:
        UsageError: An argument is wrong, or contradicts another one.
    """
    is_reverse, follows = arguments.reverse, arguments.follow
    if follows and (is_reverse or arguments.end is not None):
        raise UsageError("--follow has no end: leave out --to and --reverse")
    if is_reverse and (arguments.since is not None or arguments.last is not None):
        raise UsageError("--reverse begins with the newest entry: leave out --since and --last; --to is the oldest one")
    words = ("earliest", "latest")
    start = "latest" if follows or is_reverse else "earliest"
    if arguments.start is not None:
        allowed = ("latest",) if is_reverse else words
        start = _place("--from", arguments.start, allowed, is_first=not is_reverse)
    elif arguments.since is not None:
        start = str(max(0, int((_now(endpoint) - arguments.since) * 1000)))
    end = None if follows else "earliest" if is_reverse else "latest"
    if arguments.end is not None:
        allowed = ("earliest",) if is_reverse else ("latest",)
        end = _place("--to", arguments.end, allowed, is_first=is_reverse)
    limit = _number("--count", arguments.count)
    last = _number("--last", arguments.last)
    if last is not None and (len(arguments.streams) > 1 or endpoint.shards):
        raise UsageError("--last needs a single stream")
    if last is not None and last > _MOST_LAST:
        raise UsageError(f"--last must be at most {_MOST_LAST:,}, got {last:,}")
    return Span(start, end, is_reverse, limit, last)


def _number(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0):
        raise UsageError(f"{option} must be a whole number of at least 1, got {text!r}")
    return int(text)


def _now(endpoint: Endpoint) -> float:
    """The time of the server, or of this machine if the user may not ask for it."""
    from headrace.admin import Commands

    commands = Commands(endpoint)
    try:
        (answer,) = commands.call([(None, [b"TIME"])], writes=False)
    finally:
        commands.close()
    if not isinstance(answer, list):
        return time.time()
    seconds, micros = (int(part) for part in answer if isinstance(part, bytes))
    return seconds + micros / 1e6


def _place(option: str, text: str, words: tuple[str, ...], *, is_first: bool) -> str:
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
