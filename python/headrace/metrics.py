"""Counters of dispatchers, readers and consumers, and their export to Prometheus and OpenTelemetry.

Export is opt-in. `PrometheusCollector` needs `pip install headrace[prometheus]`, `OpenTelemetryInstruments` needs
`headrace[opentelemetry]`; each library is imported only when its class is used.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headrace.consumer import Consumer
from headrace.node_metrics import NODE_COUNTERS, NODE_GAUGES, NodeMetric
from headrace.read_metrics import READ_COUNTERS, READ_GAUGES, ReadMetric
from headrace.reader import Reader
from headrace.stats import ConsumerStats, NodeStats, ReaderStats, Stats, read_stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.metrics_core import Metric

    from headrace import _headrace
    from headrace.async_dispatcher import AsyncDispatcher
    from headrace.dispatcher import Dispatcher
    from headrace.endpoint import Endpoint

__all__ = ["ConsumerStats", "NodeStats", "OpenTelemetryInstruments", "PrometheusCollector", "ReaderStats", "Stats"]

_Label = TypeVar("_Label", bound=tuple[Any, ...])
_Counters = TypeVar("_Counters")
_Counts = TypeVar("_Counts", Stats, ReaderStats)


class _Counter(NamedTuple):
    """One exported counter: its names by the conventions of the two libraries, and its value."""

    prometheus: str
    opentelemetry: str
    unit: str
    help: str
    value: Callable[[Stats], float]


_COUNTERS: Final = [
    _Counter("headrace_messages", "headrace.messages", "{message}", "Messages accepted", lambda stats: stats.messages),
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
        "Delivered messages that were already in their stream",
        lambda stats: stats.deduplicated,
    ),
    _Counter(
        "headrace_possible_duplicates",
        "headrace.possible_duplicates",
        "{message}",
        "Messages sent again although an earlier attempt may have been written",
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
        "Waits for retries",
        lambda stats: stats.retry_waits,
    ),
    _Counter(
        "headrace_retry_wait_seconds",
        "headrace.retry_wait.time",
        "s",
        "Time spent waiting for retries",
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
        "Connections that replaced a lost one",
        lambda stats: stats.reconnects,
    ),
    _Counter(
        "headrace_redirects",
        "headrace.redirects",
        "{redirect}",
        "Changes to another node of a cluster",
        lambda stats: stats.redirects,
    ),
    _Counter(
        "headrace_refreshes",
        "headrace.refreshes",
        "{refresh}",
        "Requests for the slot map of a cluster",
        lambda stats: stats.refreshes,
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
    def of(cls, dispatcher: Dispatcher | AsyncDispatcher) -> _Destination:
        endpoint = dispatcher.endpoint
        return cls(_address(endpoint), endpoint.port, _text(endpoint.stream_key))


class _Source(NamedTuple):
    """The source of entries, which labels a series."""

    address: str
    port: int | None
    stream_key: str
    #: Only for a consumer.
    group: str | None

    @classmethod
    def of(cls, reading: Reader | Consumer) -> _Source:
        endpoint, keys = reading.endpoint, ",".join(map(_text, reading.streams))
        group = _text(reading.group) if isinstance(reading, Consumer) else None
        return cls(_address(endpoint), endpoint.port, keys, group)


def _address(endpoint: Endpoint) -> str:
    return endpoint.unix_socket or endpoint.host or ",".join(endpoint.nodes or ())


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")


def _dispatcher_stats(_: _Destination, counters: _headrace.Counters) -> Stats:
    return read_stats(counters)


def _reading_stats(source: _Source, counters: _headrace.ReadCounters) -> ReaderStats:
    return (ReaderStats if source.group is None else ConsumerStats)(**counters.read())


class _Watched(Generic[_Label, _Counters, _Counts]):
    """The objects of an export, summed by label. Collected ones stay in the sums, which must not decrease.

    Args:
        label: The label of an object.
        read: The values of its counters.
        end: What remains of them once the object was collected.
    """

    def __init__(
        self,
        label: Callable[[Any], _Label],
        read: Callable[[_Label, _Counters], _Counts],
        end: Callable[[_Counts], _Counts],
    ) -> None:
        # Scrapes run in threads of their own.
        self._lock = threading.Lock()
        self._label = label
        self._read: Callable[[_Label, _Counters], _Counts] = read
        self._end: Callable[[_Counts], _Counts] = end
        # The counters, not the object, so that it can be collected and its connection closed.
        self._alive: list[tuple[weakref.ref[Any], _Label, _Counters]] = []
        self._gone: dict[_Label, _Counts] = {}

    def add(self, watched: Any) -> None:
        with self._lock:
            if all(reference() is not watched for reference, _, _ in self._alive):
                self._alive.append((weakref.ref(watched), self._label(watched), watched.counters))

    def __len__(self) -> int:
        return len(self._alive)

    def read(self) -> dict[_Label, _Counts]:
        with self._lock:
            alive = []
            for watched in self._alive:
                reference, label, counters = watched
                if reference() is None:
                    _count(self._gone, label, self._end(self._read(label, counters)))
                else:
                    alive.append(watched)
            self._alive = alive
            sums = dict(self._gone)
            for _, label, counters in alive:
                _count(sums, label, self._read(label, counters))
            return sums


def _count(sums: dict[_Label, _Counts], label: _Label, stats: _Counts) -> None:
    sums[label] = sums[label] + stats if label in sums else stats


class _Exported:
    """The objects that an export watches."""

    def __init__(self, watched: Iterable[Dispatcher | AsyncDispatcher | Reader | Consumer]) -> None:
        self.dispatchers = _Watched(_Destination.of, _dispatcher_stats, lambda stats: stats.without_gauges())
        self.reading = _Watched(_Source.of, _reading_stats, lambda stats: stats.without_gauges())
        for each in watched:
            self.add(each)

    def add(self, watched: Dispatcher | AsyncDispatcher | Reader | Consumer) -> None:
        (self.reading if isinstance(watched, Reader | Consumer) else self.dispatchers).add(watched)

    def __str__(self) -> str:
        return f"{len(self.dispatchers):,} dispatchers, {len(self.reading):,} readers and consumers"


class PrometheusCollector:
    """Exports the counters of dispatchers, readers and consumers to `prometheus_client`.

    ```python
    from prometheus_client import REGISTRY, start_http_server
    from headrace.metrics import PrometheusCollector

    REGISTRY.register(PrometheusCollector(dispatcher))
    start_http_server(9100)
    ```

    Counters with the labels `server` and `stream_key`: `headrace_messages_total`, `headrace_delivered_total`,
    `headrace_deduplicated_total`, `headrace_failed_total` (also with `code`), `headrace_possible_duplicates_total`,
    `headrace_retries_total`, `headrace_retry_waits_total`, `headrace_retry_wait_seconds_total`,
    `headrace_connections_total`, `headrace_reconnects_total`, `headrace_redirects_total`, `headrace_refreshes_total`,
    `headrace_sent_bytes_total`, `headrace_script_calls_total`, `headrace_script_rows_shared_total`,
    `headrace_script_rows_whole_total`; and the histogram `headrace_flush_seconds`. Rows with a stream key of their own
    count under the endpoint's stream key.

    For each node of a cluster, with the additional label `node`: `headrace_node_connections_total`,
    `headrace_node_redirects_total`, and the gauges `headrace_node_in_flight`, `headrace_node_in_flight_bytes`,
    `headrace_node_down_seconds` (0: the node is not down) and `headrace_node_fills_window` (1: the window is full and
    waits for the node).

    For readers and consumers, with the labels `server`, `stream_key` (all keys, separated by commas) and `group` (for
    consumers): `headrace_read_*_total` for each counter of `ReaderStats` and `ConsumerStats`, and the gauges
    `headrace_read_behind_seconds` and `headrace_read_pending`.

    Objects with the same labels are summed, including closed and collected ones. Reading the counters never waits for a
    dispatcher or slows it down. In processes that fork (gunicorn, Spark's workers) each process has its own counters
    and needs a collector of its own, created after the fork.

    Args:
        *watched: The dispatchers, readers and consumers to export; `watch` adds more.

    Raises:
        ImportError: `prometheus_client` is not installed.
    """

    def __init__(self, *watched: Dispatcher | AsyncDispatcher | Reader | Consumer) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError("the export needs prometheus-client: pip install headrace[prometheus]") from error
        self._core = core
        self._watched = _Exported(watched)

    def watch(self, watched: Dispatcher | AsyncDispatcher | Reader | Consumer) -> None:
        """Add a dispatcher, reader or consumer. Adding it again has no effect."""
        self._watched.add(watched)

    def __repr__(self) -> str:
        return f"<PrometheusCollector: {self._watched}>"

    def describe(self) -> Iterator[Metric]:
        """Name the metrics, so that the registry can check for duplicates."""
        return self._families({}, {})

    def collect(self) -> Iterator[Metric]:
        """Read the counters, as `prometheus_client` does for each scrape."""
        return self._families(self._watched.dispatchers.read(), self._watched.reading.read())

    def _families(self, sums: dict[_Destination, Stats], read: dict[_Source, ReaderStats]) -> Iterator[Metric]:
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
            "headrace_flush_seconds", "Duration of flush", labels=["server", "stream_key"]
        )
        for labels, stats in labelled:
            histogram.add_metric(labels, _cumulative(stats.flush_seconds), stats.flush_seconds_sum)
        yield histogram
        for of_nodes in NODE_COUNTERS:
            yield self._of_nodes(self._core.CounterMetricFamily, of_nodes, sums)
        for of_nodes in NODE_GAUGES:
            yield self._of_nodes(self._core.GaugeMetricFamily, of_nodes, sums)
        for metric in READ_COUNTERS:
            yield self._filled(self._core.CounterMetricFamily, metric, read)
        for metric in READ_GAUGES:
            yield self._filled(self._core.GaugeMetricFamily, metric, read)

    def _of_nodes(self, family_of: Any, metric: NodeMetric, sums: dict[_Destination, Stats]) -> Metric:
        family: Any = family_of(metric.prometheus, metric.help, labels=["server", "stream_key", "node"])
        for destination, stats in sums.items():
            for node in stats.nodes:
                family.add_metric([_server(destination), destination.stream_key, node.address], metric.value(node))
        return family  # type: ignore[no-any-return]

    def _filled(self, family_of: Any, metric: ReadMetric, read: dict[_Source, ReaderStats]) -> Metric:
        family: Any = family_of(metric.prometheus, metric.help, labels=["server", "stream_key", "group"])
        for source, stats in read.items():
            if (value := metric.value(stats)) is not None:
                family.add_metric([_server(source), source.stream_key, source.group or ""], value)
        return family  # type: ignore[no-any-return]


def _server(destination: _Destination | _Source) -> str:
    if destination.port is None:
        return destination.address
    host = f"[{destination.address}]" if ":" in destination.address else destination.address
    return f"{host}:{destination.port}"


def _cumulative(buckets: Sequence[tuple[float, int]]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus defines them."""
    total, summed = 0, []
    for bound, count in buckets:
        total += count
        summed.append(("+Inf" if math.isinf(bound) else repr(float(bound)), float(total)))
    return summed


class OpenTelemetryInstruments:
    """Exports the counters of dispatchers, readers and consumers to OpenTelemetry, as observable counters.

    ```python
    from headrace.metrics import OpenTelemetryInstruments

    instruments = OpenTelemetryInstruments(dispatcher)
    ```

    `headrace.messages`, `headrace.delivered`, `headrace.deduplicated`, `headrace.failed` (with `error.type`, the code),
    `headrace.possible_duplicates`, `headrace.retries`, `headrace.retry_waits`, `headrace.retry_wait.time` (seconds),
    `headrace.connections`, `headrace.reconnects`, `headrace.redirects`, `headrace.refreshes`, `headrace.sent` (bytes),
    `headrace.script_calls`, `headrace.script_rows_shared`, `headrace.script_rows_whole`, `headrace.flushes` and
    `headrace.flush.time` (seconds; OpenTelemetry has no observable histogram). The attributes follow OpenTelemetry's
    conventions: `messaging.system`, `messaging.destination.name` (the stream key), `server.address`, `server.port`.
    Sums and forks work as with `PrometheusCollector`.

    For each node of a cluster, with `headrace.node`, its address: `headrace.node.connections`,
    `headrace.node.redirects`, and the gauges `headrace.node.in_flight`, `headrace.node.in_flight.size` (bytes),
    `headrace.node.down.time` (seconds) and `headrace.node.fills_window` (1: the window is full and waits for the node).

    For readers and consumers: `headrace.read.*`, with `messaging.consumer.group.name` for consumers.

    OpenTelemetry keeps instruments for as long as their meter provider exists: create one object, and add to it with
    `watch`.

    Args:
        *watched: The dispatchers, readers and consumers to export; `watch` adds more.
        meter_provider: The provider of the instruments. Default None: the provider of the process.

    Raises:
        ImportError: `opentelemetry-api` is not installed.
    """

    def __init__(
        self, *watched: Dispatcher | AsyncDispatcher | Reader | Consumer, meter_provider: MeterProvider | None = None
    ) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ImportError("the export needs opentelemetry-api: pip install headrace[opentelemetry]") from error
        from headrace._headrace import __version__

        self._observation = metrics.Observation
        self._watched = _Exported(watched)
        meter = metrics.get_meter("headrace", __version__, meter_provider)
        counters = [
            *_COUNTERS,
            _Counter("", "headrace.flushes", "{flush}", "Number of flushes", lambda stats: stats.flushes),
            _Counter("", "headrace.flush.time", "s", "Time spent in flush", lambda stats: stats.flush_seconds_sum),
        ]
        for _, name, unit, description, value in counters:
            meter.create_observable_counter(name, [self._observe(value)], unit, description)
        meter.create_observable_counter("headrace.failed", [self._observe_failed], "{message}", "Messages that failed")
        for node_metric in NODE_COUNTERS:
            callbacks = [self._observe_nodes(node_metric)]
            meter.create_observable_counter(node_metric.opentelemetry, callbacks, node_metric.unit, node_metric.help)
        for node_metric in NODE_GAUGES:
            callbacks = [self._observe_nodes(node_metric)]
            meter.create_observable_gauge(node_metric.opentelemetry, callbacks, node_metric.unit, node_metric.help)
        for metric in READ_COUNTERS:
            callbacks = [self._observe_reading(metric)]
            meter.create_observable_counter(metric.opentelemetry, callbacks, metric.unit, metric.help)
        for metric in READ_GAUGES:
            callbacks = [self._observe_reading(metric)]
            meter.create_observable_gauge(metric.opentelemetry, callbacks, metric.unit, metric.help)

    def watch(self, watched: Dispatcher | AsyncDispatcher | Reader | Consumer) -> None:
        """Add a dispatcher, reader or consumer. Adding it again has no effect."""
        self._watched.add(watched)

    def __repr__(self) -> str:
        return f"<OpenTelemetryInstruments: {self._watched}>"

    def _observe(self, value: Callable[[Stats], float]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for destination, stats in self._watched.dispatchers.read().items():
                yield self._observation(value(stats), _attributes(destination))

        return observe

    def _observe_nodes(self, metric: NodeMetric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for destination, stats in self._watched.dispatchers.read().items():
                for node in stats.nodes:
                    yield self._observation(
                        metric.value(node), {**_attributes(destination), "headrace.node": node.address}
                    )

        return observe

    def _observe_reading(self, metric: ReadMetric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for source, stats in self._watched.reading.read().items():
                if (value := metric.value(stats)) is not None:
                    yield self._observation(value, _attributes(source))

        return observe

    def _observe_failed(self, _: CallbackOptions) -> Iterator[Observation]:
        for destination, stats in self._watched.dispatchers.read().items():
            for code, count in stats.failed_by_code.items():
                yield self._observation(count, {**_attributes(destination), "error.type": code})


def _attributes(destination: _Destination | _Source) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "redis",
        "messaging.destination.name": destination.stream_key,
        "server.address": destination.address,
    }
    if destination.port is not None:
        attributes["server.port"] = destination.port
    if isinstance(destination, _Source) and destination.group is not None:
        attributes["messaging.consumer.group.name"] = destination.group
    return attributes
