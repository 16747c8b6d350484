"""Counters of dispatchers, and their export to Prometheus and OpenTelemetry.

Nothing is exported by itself. `PrometheusCollector` needs `pip install headrace[prometheus]`, and
`OpenTelemetryInstruments` needs `headrace[opentelemetry]`; both libraries are imported when they are asked for, and not
before.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.metrics_core import Metric

    from headrace import _headrace
    from headrace.dispatcher import Dispatcher

__all__ = ["OpenTelemetryInstruments", "PrometheusCollector", "Stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a dispatcher has done since it was made: counts that only grow.

    Attributes:
        messages: Messages that were taken.
        delivered: Messages of which the outcome is that they are in their stream.
        deduplicated: How many of `delivered` were there before (exactly once).
        failed_by_code: Messages that failed, by code. A try that is followed by another one is no failure.
        possible_duplicates: Messages that were sent again although an earlier try may have been written.
        retries: How often a message was sent again.
        retry_waits: How often a call began to wait for messages to be sent again, however many and however often.
        retry_wait_seconds: Seconds of these waits, from the first failure on; they count while one lasts.
        connections: Connections that were made, sign-on included.
        reconnects: How many of these replaced one that was lost.
        bytes_sent: Bytes handed to the transport, before encryption.
        flush_seconds: Histogram of the time that `flush` took: pairs of an upper bound in seconds and the flushes up to
            it that are above the bound before. The last bound is infinite.
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


class _Counter(NamedTuple):
    """One exported counter: its names after the conventions of the two libraries, and where its value is."""

    prometheus: str
    opentelemetry: str
    unit: str
    help: str
    value: Callable[[Stats], float]


_COUNTERS: Final = [
    _Counter(
        "headrace_messages", "headrace.messages", "{message}", "Messages that were taken", lambda stats: stats.messages
    ),
    _Counter(
        "headrace_delivered",
        "headrace.delivered",
        "{message}",
        "Messages that are in their stream",
        lambda stats: stats.delivered,
    ),
    _Counter(
        "headrace_deduplicated",
        "headrace.deduplicated",
        "{message}",
        "Delivered messages that were in their stream before",
        lambda stats: stats.deduplicated,
    ),
    _Counter(
        "headrace_possible_duplicates",
        "headrace.possible_duplicates",
        "{message}",
        "Messages sent again although an earlier try may have been written",
        lambda stats: stats.possible_duplicates,
    ),
    _Counter(
        "headrace_retries",
        "headrace.retries",
        "{message}",
        "Messages that were sent again",
        lambda stats: stats.retries,
    ),
    _Counter(
        "headrace_retry_waits",
        "headrace.retry_waits",
        "{wait}",
        "Waits for messages to be sent again",
        lambda stats: stats.retry_waits,
    ),
    _Counter(
        "headrace_retry_wait_seconds",
        "headrace.retry_wait.time",
        "s",
        "Time of the waits for messages to be sent again",
        lambda stats: stats.retry_wait_seconds,
    ),
    _Counter(
        "headrace_connections",
        "headrace.connections",
        "{connection}",
        "Connections that were made",
        lambda stats: stats.connections,
    ),
    _Counter(
        "headrace_reconnects",
        "headrace.reconnects",
        "{connection}",
        "Connections that replaced one that was lost",
        lambda stats: stats.reconnects,
    ),
    _Counter(
        "headrace_sent_bytes", "headrace.sent", "By", "Bytes sent, before encryption", lambda stats: stats.bytes_sent
    ),
]


class _Place(NamedTuple):
    """Where messages go: what tells the series of a metric apart. Neither a user name nor a database is in it."""

    address: str
    port: int | None
    stream_key: str

    @classmethod
    def of(cls, dispatcher: Dispatcher) -> _Place:
        endpoint = dispatcher.endpoint
        key = endpoint.stream_key
        text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        return cls(endpoint.unix_socket or endpoint.host or "", endpoint.port, text)


class _Watched:
    """The dispatchers of an export, summed by place. Those that are gone stay in the sums, which must not fall."""

    def __init__(self, dispatchers: Iterable[Dispatcher]) -> None:
        # A scrape comes from a thread of its own.
        self._lock = threading.Lock()
        # The counters and not the dispatcher: it must be free to go, and a connection with it.
        self._alive: list[tuple[weakref.ref[Dispatcher], _Place, _headrace.Counters]] = []
        self._gone: dict[_Place, Stats] = {}
        for dispatcher in dispatchers:
            self.add(dispatcher)

    def add(self, dispatcher: Dispatcher) -> None:
        with self._lock:
            if all(reference() is not dispatcher for reference, _, _ in self._alive):
                self._alive.append((weakref.ref(dispatcher), _Place.of(dispatcher), dispatcher.counters))

    def read(self) -> dict[_Place, Stats]:
        with self._lock:
            alive = []
            for watched in self._alive:
                reference, place, counters = watched
                if reference() is None:
                    _count(self._gone, place, counters)
                else:
                    alive.append(watched)
            self._alive = alive
            sums = dict(self._gone)
            for _, place, counters in alive:
                _count(sums, place, counters)
            return sums


def _count(sums: dict[_Place, Stats], place: _Place, counters: _headrace.Counters) -> None:
    stats = Stats(**counters.read())
    sums[place] = sums[place] + stats if place in sums else stats


class PrometheusCollector:
    """Give the counters of dispatchers to `prometheus_client`.

    ```python
    from prometheus_client import REGISTRY, start_http_server
    from headrace.metrics import PrometheusCollector

    REGISTRY.register(PrometheusCollector(dispatcher))
    start_http_server(9100)
    ```

    Counters with the labels `server` and `stream_key`: `headrace_messages_total`, `headrace_delivered_total`,
    `headrace_deduplicated_total`, `headrace_failed_total` (also with `code`), `headrace_possible_duplicates_total`,
    `headrace_retries_total`, `headrace_retry_waits_total`, `headrace_retry_wait_seconds_total`,
    `headrace_connections_total`, `headrace_reconnects_total`, `headrace_sent_bytes_total`; and the histogram
    `headrace_flush_seconds`. Rows with a stream key of their own count under the endpoint's.

    Dispatchers to the same place are summed, also those that were closed and are gone. Reading waits for no dispatcher
    and disturbs none, whatever it is doing. In processes that fork (gunicorn, Spark's workers) each process has its own
    counters, and needs a collector of its own, made after the fork.

    Args:
        *dispatchers: Whose counters to give; `watch` adds others later.

    Raises:
        ImportError: `prometheus_client` is not installed.
    """

    def __init__(self, *dispatchers: Dispatcher) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError("the export needs prometheus-client: pip install headrace[prometheus]") from error
        self._core = core
        self._watched = _Watched(dispatchers)

    def watch(self, dispatcher: Dispatcher) -> None:
        """Add a dispatcher. One that is there already is not counted twice."""
        self._watched.add(dispatcher)

    def describe(self) -> Iterator[Metric]:
        """Name the metrics, for the registry's check that no two have the same name."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        """Read the counters, as `prometheus_client` does for each scrape."""
        return self._families(self._watched.read())

    def _families(self, sums: dict[_Place, Stats]) -> Iterator[Metric]:
        labelled = [([_server(place), place.stream_key], stats) for place, stats in sums.items()]
        for counter in _COUNTERS:
            family = self._core.CounterMetricFamily(counter.prometheus, counter.help, labels=["server", "stream_key"])
            for labels, stats in labelled:
                family.add_metric(labels, counter.value(stats))
            yield family
        family = self._core.CounterMetricFamily(
            "headrace_failed", "Messages that failed", labels=["server", "stream_key", "code"]
        )
        for labels, stats in labelled:
            for code, count in stats.failed_by_code.items():
                family.add_metric([*labels, code], count)
        yield family
        histogram = self._core.HistogramMetricFamily(
            "headrace_flush_seconds", "Time that flush took", labels=["server", "stream_key"]
        )
        for labels, stats in labelled:
            histogram.add_metric(labels, _cumulative(stats.flush_seconds), stats.flush_seconds_sum)
        yield histogram


def _server(place: _Place) -> str:
    if place.port is None:
        return place.address
    host = f"[{place.address}]" if ":" in place.address else place.address
    return f"{host}:{place.port}"


def _cumulative(buckets: Sequence[tuple[float, int]]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each counts those below it too."""
    total, summed = 0, []
    for bound, count in buckets:
        total += count
        summed.append(("+Inf" if math.isinf(bound) else repr(float(bound)), float(total)))
    return summed


class OpenTelemetryInstruments:
    """Give the counters of dispatchers to OpenTelemetry, as observable counters.

    ```python
    from headrace.metrics import OpenTelemetryInstruments

    instruments = OpenTelemetryInstruments(dispatcher)
    ```

    `headrace.messages`, `headrace.delivered`, `headrace.deduplicated`, `headrace.failed` (with `error.type`, the code),
    `headrace.possible_duplicates`, `headrace.retries`, `headrace.retry_waits`, `headrace.retry_wait.time` (seconds),
    `headrace.connections`, `headrace.reconnects`, `headrace.sent` (bytes), `headrace.flushes` and `headrace.flush.time`
    (seconds; OpenTelemetry has no observable histogram). The attributes follow its conventions: `messaging.system`,
    `messaging.destination.name` (the stream key), `server.address`, `server.port`. What `PrometheusCollector` says of
    sums and of forks holds here.

    OpenTelemetry keeps instruments for as long as their meter provider: make one object, and `watch` with it.

    Args:
        *dispatchers: Whose counters to give; `watch` adds others later.
        meter_provider: Where the instruments go. None (default): the provider that was set for the process.

    Raises:
        ImportError: `opentelemetry-api` is not installed.
    """

    def __init__(self, *dispatchers: Dispatcher, meter_provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ImportError("the export needs opentelemetry-api: pip install headrace[opentelemetry]") from error
        from headrace._headrace import __version__

        self._observation = metrics.Observation
        self._watched = _Watched(dispatchers)
        meter = metrics.get_meter("headrace", __version__, meter_provider)
        counters = [
            *_COUNTERS,
            _Counter("", "headrace.flushes", "{flush}", "How often flush ran", lambda stats: stats.flushes),
            _Counter("", "headrace.flush.time", "s", "Time that flush took", lambda stats: stats.flush_seconds_sum),
        ]
        for _, name, unit, description, value in counters:
            meter.create_observable_counter(name, [self._observe(value)], unit, description)
        meter.create_observable_counter("headrace.failed", [self._observe_failed], "{message}", "Messages that failed")

    def watch(self, dispatcher: Dispatcher) -> None:
        """Add a dispatcher. One that is there already is not counted twice."""
        self._watched.add(dispatcher)

    def _observe(self, value: Callable[[Stats], float]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for place, stats in self._watched.read().items():
                yield self._observation(value(stats), _attributes(place))

        return observe

    def _observe_failed(self, _: CallbackOptions) -> Iterator[Observation]:
        for place, stats in self._watched.read().items():
            for code, count in stats.failed_by_code.items():
                yield self._observation(count, {**_attributes(place), "error.type": code})


def _attributes(place: _Place) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "redis",
        "messaging.destination.name": place.stream_key,
        "server.address": place.address,
    }
    if place.port is not None:
        attributes["server.port"] = place.port
    return attributes
