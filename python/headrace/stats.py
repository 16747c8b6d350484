"""The counters of a dispatcher."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

__all__ = ["Stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The counters of a dispatcher since its creation. They only grow.

    Attributes:
        messages: Messages that were taken.
        delivered: Messages that are in their stream.
        deduplicated: The part of `delivered` that an earlier attempt had written (exactly once).
        failed_by_code: Messages that failed, by code. An attempt that is retried is not a failure.
        possible_duplicates: Messages that were sent again although an earlier attempt may have been written.
        retries: How often a message was sent again.
        retry_waits: How often a call started to wait for retries, whatever their number.
        retry_wait_seconds: Seconds of these waits, each from its first failure, including a wait in progress.
        connections: Connections that were opened and authenticated.
        reconnects: The part of `connections` that replaced a lost connection.
        bytes_sent: Bytes sent, before encryption.
        script_calls: Script calls that were encoded (`exactly_once="script"`).
        script_rows_shared: Messages in them whose field names were sent once per call.
        script_rows_whole: Messages in them that were sent with all their arguments, because of entry IDs of their own.
        flush_seconds: Histogram of the duration of `flush`: pairs of an upper bound in seconds and the number of
            flushes between the previous bound and this one. The last bound is infinite.
        flush_seconds_sum: Seconds spent in `flush`.
    """

    messages: int = 0
    delivered: int = 0
    deduplicated: int = 0
    failed_by_code: dict[str, int]
    possible_duplicates: int = 0
    retries: int = 0
    retry_waits: int = 0
    retry_wait_seconds: float = 0.0
    connections: int = 0
    reconnects: int = 0
    bytes_sent: int = 0
    script_calls: int = 0
    script_rows_shared: int = 0
    script_rows_whole: int = 0
    flush_seconds: tuple[tuple[float, int], ...]
    flush_seconds_sum: float = 0.0

    @property
    def failed(self) -> int:
        """Messages that failed."""
        return sum(self.failed_by_code.values())

    @property
    def flushes(self) -> int:
        """How often `flush` ran."""
        return sum(count for _, count in self.flush_seconds)

    def __add__(self, other: Stats) -> Stats:
        codes = [*self.failed_by_code, *(code for code in other.failed_by_code if code not in self.failed_by_code)]
        pairs = zip(self.flush_seconds, other.flush_seconds, strict=True)
        return Stats(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            failed_by_code={c: self.failed_by_code.get(c, 0) + other.failed_by_code.get(c, 0) for c in codes},
            flush_seconds=tuple((bound, mine + others) for (bound, mine), (_, others) in pairs),
        )


#: The attributes of `Stats` that are one number each.
_NUMBERS: Final = [field.name for field in fields(Stats) if field.name not in ("failed_by_code", "flush_seconds")]
