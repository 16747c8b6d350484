"""Counters of dispatchers, and their export to Prometheus and OpenTelemetry.

Export is opt-in. `PrometheusCollector` needs `pip install headrace[prometheus]`, `OpenTelemetryInstruments` needs
`headrace[opentelemetry]`; either library is imported only when its class is used.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.stats import Stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.metrics_core import Metric

    from headrace import _headrace
    from headrace.dispatcher import Dispatcher

__all__ = ["OpenTelemetryInstruments", "PrometheusCollector", "Stats"]


class _Counter(NamedTuple):
    """One exported counter: its names by the conventions of the two libraries, and its value."""

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
    _Counter(
        "headrace_script_calls", "headrace.script_calls", "{call}", "Script calls", lambda stats: stats.script_calls
    ),
    _Counter(
        "headrace_script_rows_shared",
        "headrace.script_rows_shared",
        "{message}",
        "Messages in script calls whose field names were sent once per call",
        lambda stats: stats.script_rows_shared,
    ),
    _Counter(
        "headrace_script_rows_whole",
        "headrace.script_rows_whole",
        "{message}",
        "Messages in script calls that were sent with all their arguments",
        lambda stats: stats.script_rows_whole,
    ),
]


class _Destination(NamedTuple):
    """The destination of messages, which labels a series. It holds no user name and no database."""

    address: str
    port: int | None
    stream_key: str

    @classmethod
    def of(cls, dispatcher: Dispatcher) -> _Destination:
        endpoint = dispatcher.endpoint
        key = endpoint.stream_key
        text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        return cls(endpoint.unix_socket or endpoint.host or "", endpoint.port, text)


class _Watched:
    """The dispatchers of an export, summed by destination. Collected ones stay in the sums, which must not fall."""

    def __init__(self, dispatchers: Iterable[Dispatcher]) -> None:
        # Scrapes run in threads of their own.
        self._lock = threading.Lock()
        # The counters, not the dispatcher, so that it can be collected and its connection closed.
        self._alive: list[tuple[weakref.ref[Dispatcher], _Destination, _headrace.Counters]] = []
        self._gone: dict[_Destination, Stats] = {}
        for dispatcher in dispatchers:
            self.add(dispatcher)

    def add(self, dispatcher: Dispatcher) -> None:
        with self._lock:
            if all(reference() is not dispatcher for reference, _, _ in self._alive):
                self._alive.append((weakref.ref(dispatcher), _Destination.of(dispatcher), dispatcher.counters))

    def read(self) -> dict[_Destination, Stats]:
        with self._lock:
            alive = []
            for watched in self._alive:
                reference, destination, counters = watched
                if reference() is None:
                    _count(self._gone, destination, counters)
                else:
                    alive.append(watched)
            self._alive = alive
            sums = dict(self._gone)
            for _, destination, counters in alive:
                _count(sums, destination, counters)
            return sums


def _count(sums: dict[_Destination, Stats], destination: _Destination, counters: _headrace.Counters) -> None:
    stats = Stats(**counters.read())
    sums[destination] = sums[destination] + stats if destination in sums else stats


class PrometheusCollector:
    """Exports the counters of dispatchers to `prometheus_client`.

    ```python
    from prometheus_client import REGISTRY, start_http_server
    from headrace.metrics import PrometheusCollector

    REGISTRY.register(PrometheusCollector(dispatcher))
    start_http_server(9100)
    ```

    Counters with the labels `server` and `stream_key`: `headrace_messages_total`, `headrace_delivered_total`,
    `headrace_deduplicated_total`, `headrace_failed_total` (also with `code`), `headrace_possible_duplicates_total`,
    `headrace_retries_total`, `headrace_retry_waits_total`, `headrace_retry_wait_seconds_total`,
    `headrace_connections_total`, `headrace_reconnects_total`, `headrace_sent_bytes_total`,
    `headrace_script_calls_total`, `headrace_script_rows_shared_total`, `headrace_script_rows_whole_total`; and the
    histogram `headrace_flush_seconds`. Rows with a stream key of their own count under the endpoint's stream key.

    Dispatchers with the same destination are summed, including closed and collected ones. Reading never waits for a
    dispatcher or slows it down. In processes that fork (gunicorn, Spark's workers) each process has its own counters
    and needs a collector of its own, created after the fork.

    Args:
        *dispatchers: The dispatchers to export; `watch` adds more.

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
        """Add a dispatcher. Adding it again has no effect."""
        self._watched.add(dispatcher)

    def describe(self) -> Iterator[Metric]:
        """Name the metrics, so that the registry can check for duplicates."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        """Read the counters, as `prometheus_client` does for each scrape."""
        return self._families(self._watched.read())

    def _families(self, sums: dict[_Destination, Stats]) -> Iterator[Metric]:
        labelled = [([_server(destination), destination.stream_key], stats) for destination, stats in sums.items()]
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


def _server(destination: _Destination) -> str:
    if destination.port is None:
        return destination.address
    host = f"[{destination.address}]" if ":" in destination.address else destination.address
    return f"{host}:{destination.port}"


def _cumulative(buckets: Sequence[tuple[float, int]]) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus defines them."""
    total, summed = 0, []
    for bound, count in buckets:
        total += count
        summed.append(("+Inf" if math.isinf(bound) else repr(float(bound)), float(total)))
    return summed


class OpenTelemetryInstruments:
    """Exports the counters of dispatchers to OpenTelemetry, as observable counters.

    ```python
    from headrace.metrics import OpenTelemetryInstruments

    instruments = OpenTelemetryInstruments(dispatcher)
    ```

    `headrace.messages`, `headrace.delivered`, `headrace.deduplicated`, `headrace.failed` (with `error.type`, the code),
    `headrace.possible_duplicates`, `headrace.retries`, `headrace.retry_waits`, `headrace.retry_wait.time` (seconds),
    `headrace.connections`, `headrace.reconnects`, `headrace.sent` (bytes), `headrace.script_calls`,
    `headrace.script_rows_shared`, `headrace.script_rows_whole`, `headrace.flushes` and `headrace.flush.time` (seconds;
    OpenTelemetry has no observable histogram). The attributes follow its conventions: `messaging.system`,
    `messaging.destination.name` (the stream key), `server.address`, `server.port`. Sums and forks work as with
    `PrometheusCollector`.

    OpenTelemetry keeps instruments as long as their meter provider: create one object, and `watch` with it.

    Args:
        *dispatchers: The dispatchers to export; `watch` adds more.
        meter_provider: The provider of the instruments. Default None: the provider of the process.

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
        """Add a dispatcher. Adding it again has no effect."""
        self._watched.add(dispatcher)

    def _observe(self, value: Callable[[Stats], float]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for destination, stats in self._watched.read().items():
                yield self._observation(value(stats), _attributes(destination))

        return observe

    def _observe_failed(self, _: CallbackOptions) -> Iterator[Observation]:
        for destination, stats in self._watched.read().items():
            for code, count in stats.failed_by_code.items():
                yield self._observation(count, {**_attributes(destination), "error.type": code})


def _attributes(destination: _Destination) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "redis",
        "messaging.destination.name": destination.stream_key,
        "server.address": destination.address,
    }
    if destination.port is not None:
        attributes["server.port"] = destination.port
    return attributes
