"""The exported metrics: their names by the conventions of Prometheus and OpenTelemetry, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.tables import COUNTERS, Counter

__all__ = ["DISPATCHER_METRICS", "NODE_METRICS", "READ_METRICS", "Metric", "metric_of"]


class Metric(NamedTuple):
    """One exported metric.

    Attributes:
        prometheus: Its name for Prometheus, whose library adds `_total` to a counter.
        opentelemetry: Its name for OpenTelemetry.
        unit: The unit, in the notation of OpenTelemetry.
        help: The description.
        is_gauge: Whether it may decrease.
        value: Returns its value in `Stats` or another class of counters; None if there is none.
    """

    prometheus: str
    opentelemetry: str
    unit: str
    help: str
    is_gauge: bool
    value: Callable[[Any], float | None]


def metric_of(row: Counter, part: str = "") -> Metric | None:
    """Return the metric of a counter, None if it is not exported. Names contain `part`, such as `node`."""
    if row.help is None:
        return None
    name = row.age or row.name

    def value(stats: Any) -> float | None:
        # A reader has no counters of a consumer, nor has a consumer those of a shard consumer.
        found = getattr(stats, name, None)
        return float(found) if isinstance(found, bool) else found

    path = ["headrace", part] if part else ["headrace"]
    prometheus, opentelemetry = _names(name, row.unit)
    names = "_".join([*path, prometheus]), ".".join([*path, opentelemetry])
    return Metric(*names, row.unit, row.help, row.is_gauge, value)


def _names(name: str, unit: str) -> tuple[str, str]:
    """Return the last part of both names. Prometheus ends a name with its unit, OpenTelemetry names the quantity."""
    words = name.split("_")
    if unit == "s":
        rest = "_".join(word for word in words if word != "seconds")
        return f"{rest}_seconds", f"{rest}.time"
    if unit == "By":
        rest = "_".join(word for word in words if word != "bytes")
        # `bytes_sent` is `sent`. `in_flight_bytes` is not `in_flight`, which counts messages.
        return f"{rest}_bytes", rest if words[0] == "bytes" else f"{rest}.size"
    return name, name


def _metrics(part: str, *tables: str) -> list[Metric]:
    """The metrics of these tables, counters first."""
    metrics: dict[str, Metric] = {}
    for row in (row for table in tables for row in COUNTERS[table]):
        if (metric := metric_of(row, part)) is not None:
            # Consumers and shard consumers have some of the same counters.
            metrics.setdefault(metric.prometheus, metric)
    return sorted(metrics.values(), key=lambda metric: metric.is_gauge)


DISPATCHER_METRICS: Final = _metrics("", "dispatcher")
#: For each node of a cluster.
NODE_METRICS: Final = _metrics("node", "node")
#: For readers, consumers and shard consumers.
READ_METRICS: Final = _metrics("read", "reader", "consumer", "shard_consumer")
