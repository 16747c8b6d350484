"""Where a read begins and ends: the options `starting`, `ending` and their timestamps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from headrace._headrace import StreamInfo
from headrace.errors import ConfigError
from headrace.spark.source.entry_ids import LOWEST, MAX, Id, after, before, parse, show
from headrace.spark.source.place import Place

__all__ = ["Bound", "Bounds", "Moment", "last_id", "read_bounds", "start_place"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Moment:
    """A time, in milliseconds since 1970."""

    ms: int


Bound = Literal["earliest", "latest"] | Id | Moment


@dataclass(frozen=True)
class Bounds:
    """Where each stream begins, or ends.

    Attributes:
        option: The option that sets them.
        usual: The bound of the streams that it does not name.
        named: The bounds of the others, by key.
    """

    option: str
    usual: Bound
    named: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, key: str) -> Bound:
        """The bound of a stream."""
        return self.named.get(key, self.usual)

    def check(self, keys: Iterable[str]) -> None:
        """Refuse a stream that is not read."""
        if unknown := sorted(set(self.named) - set(keys)):
            raise ConfigError(f"{self.option} names the stream {unknown[0]!r}, which is not read", option=self.option)


def read_bounds(
    option: str, given: str | None, given_timestamp: str | None, usual: Literal["earliest", "latest"]
) -> Bounds:
    """Read the option and its timestamp counterpart, of which at most one may be given.

    Raises:
        ConfigError: Both are given, or one is wrong.
    """
    if given_timestamp is not None:
        timestamp = f"{option}_timestamp"
        if given is not None:
            raise ConfigError(f"{option} and {timestamp} are mutually exclusive", option=timestamp)
        return _read(timestamp, given_timestamp, usual, lambda value, shown: _moment(timestamp, value, shown))
    allowed = ("earliest", "latest") if option == "starting" else ("latest",)
    return _read(option, usual if given is None else given, usual, lambda value, _: _bound(option, value, allowed))


def _read(option: str, text: str, usual: Bound, read: Callable[[object, str], Bound]) -> Bounds:
    if not text.lstrip().startswith("{"):
        return Bounds(option, read(text, text))
    try:
        named = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not valid JSON: {error}", option=option) from None
    return Bounds(option, usual, {key: read(value, f"{value!r} for {key!r}") for key, value in named.items()})


def _bound(option: str, value: object, allowed: tuple[str, ...]) -> Bound:
    if isinstance(value, str):
        if value in allowed:
            return "earliest" if value == "earliest" else "latest"
        if (entry_id := parse(value)) is not None:
            return entry_id
        # The form for the last-delivered-id of a group, which it has already read.
        if option == "starting" and (last := parse(value.removeprefix("("))) and (entry_id := after(last)):
            return entry_id
    words = ", ".join(map(repr, allowed)) + ", an entry ID 'ms-seq'"
    words += ", '(' and an entry ID for the entries after it" if option == "starting" else ""
    text = f"{option} must be {words}, or JSON with one of these for each stream, got {value!r}"
    raise ConfigError(text, option=option)


def _moment(option: str, value: object, shown: str) -> Moment:
    text = str(value)
    if text.isascii() and text.isdigit() and int(text) <= MAX:
        return Moment(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment < EPOCH:
        allowed = "milliseconds since 1970, an ISO 8601 time with a zone, or JSON with one of these for each stream"
        raise ConfigError(f"{option} must be {allowed}, got {shown}", option=option)
    whole, rest = divmod(moment - EPOCH, timedelta(milliseconds=1))
    # The first millisecond that is not before the time, or the last one that is not after it.
    return Moment(whole + (1 if rest and option.startswith("starting") else 0))


def start_place(bounds: Bounds, key: str, info: StreamInfo, *, past_end: Literal["error", "latest"]) -> Place:
    """Return where a stream begins. Entries already removed count as read. An empty stream begins with its first entry.

    Raises:
        ConfigError: The bound is after the newest entry.
    """
    bound = bounds.of(key)
    if bound == "earliest" or info.last == LOWEST:
        return Place(LOWEST, info.removed)
    if bound == "latest":
        return Place.end_of(info)
    first = (bound.ms, 0) if isinstance(bound, Moment) else bound
    if first > info.last:
        if isinstance(bound, Moment) and past_end == "latest":
            return Place.end_of(info)
        newest = f"the newest entry of stream {key!r}, {show(info.last)}"
        hint = "; starting_timestamp_past_end='latest' begins there" if isinstance(bound, Moment) else ""
        asked = bound.ms if isinstance(bound, Moment) else show(bound)
        raise ConfigError(f"{bounds.option}={asked} is after {newest}{hint}", option=bounds.option)
    place = before(first) or LOWEST
    # The number of earlier entries is known for the oldest entry, and for no other.
    is_within = info.first is not None and info.first <= place
    return Place(place, None, info.removed) if is_within else Place(place, info.removed)


def last_id(bounds: Bounds, key: str, info: StreamInfo) -> Id:
    """Return the last entry to read: the newest one, or one before it."""
    bound = bounds.of(key)
    if isinstance(bound, str):
        return info.last
    return min(info.last, (bound.ms, MAX) if isinstance(bound, Moment) else bound)
