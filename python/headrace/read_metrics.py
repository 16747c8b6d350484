"""The exported metrics of readers and consumers: their names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.stats import ConsumerStats, ReaderStats

__all__ = ["READ_COUNTERS", "READ_GAUGES", "ReadMetric"]


class ReadMetric(NamedTuple):
    """One metric: its names by the conventions of the two libraries, and its value, None if it has none."""

    prometheus: str
    opentelemetry: str
    unit: str
    help: str
    value: Callable[[ReaderStats], float | None]


def _of_all(field: str, unit: str, text: str, prometheus: str = "", opentelemetry: str = "") -> ReadMetric:
    def value(stats: ReaderStats) -> float | None:
        found: float | None = getattr(stats, field)
        return found

    return ReadMetric(
        f"headrace_read_{prometheus or field}", f"headrace.read.{opentelemetry or field}", unit, text, value
    )


def _of_consumers(field: str, unit: str, text: str) -> ReadMetric:
    def value(stats: ReaderStats) -> float | None:
        return getattr(stats, field) if isinstance(stats, ConsumerStats) else None

    return _of_all(field, unit, text)._replace(value=value)


READ_COUNTERS: Final = [
    _of_all("batches", "{batch}", "Batches returned"),
    _of_all("entries", "{entry}", "Entries in batches"),
    _of_all("rows", "{row}", "Rows in batches"),
    _of_all("lost", "{entry}", "Entries that were trimmed or deleted before they could be returned"),
    _of_all("bytes_received", "By", "Bytes received, after decryption", "received_bytes", "received"),
    _of_all("requests", "{request}", "Requests that were sent"),
    _of_all("connections", "{connection}", "Connections that were made"),
    _of_all("reconnects", "{connection}", "Connections that replaced a lost one"),
    _of_all("retry_waits", "{wait}", "Waits for a server that was unreachable or busy"),
    _of_all("retry_wait_seconds", "s", "Time spent waiting for a server", opentelemetry="retry_wait.time"),
    _of_consumers("redelivered", "{entry}", "Entries that had been delivered before"),
    _of_consumers("reclaimed", "{entry}", "Entries taken over from other consumers"),
    _of_consumers("acked", "{entry}", "Entries that were acknowledged"),
    _of_consumers("stale", "{entry}", "Entries that belonged to another consumer when they were settled"),
    _of_consumers("unknown", "{entry}", "Entries whose settlement could not be confirmed"),
    _of_consumers("released", "{entry}", "Entries given back to the group"),
    _of_consumers("dead", "{entry}", "Entries moved to the stream of dead letters"),
    _of_consumers("renewals", "{entry}", "Renewals of leases"),
]

READ_GAUGES: Final = [
    _of_all("seconds_behind", "s", "Age of the last entry returned", "behind_seconds", "behind.time"),
    _of_consumers("pending", "{entry}", "Entries returned or read ahead, and not settled yet"),
]
