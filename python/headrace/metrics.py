"""Counters of dispatchers, readers and consumers, and their export to Prometheus and OpenTelemetry.

Export is opt-in. `PrometheusCollector` needs `pip install headrace[prometheus]`, `OpenTelemetryInstruments` needs
`headrace[opentelemetry]`; each library is imported only when its class is used.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headrace.consumer_base import ConsumerBase
from headrace.exported import DISPATCHER_METRICS, NODE_METRICS, READ_METRICS, Metric
from headrace.reader_base import ReaderBase
from headrace.shard_consumer_base import ShardConsumerBase
from headrace.stats import ConsumerStats, NodeStats, ReaderStats, ShardStats, Stats, read_stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from prometheus_client.metrics_core import Metric as Family

    from headrace import _headrace
    from headrace.async_dispatcher import AsyncDispatcher
    from headrace.dispatcher import Dispatcher
    from headrace.endpoint import Endpoint

    _Counted = Dispatcher | AsyncDispatcher | ReaderBase | ConsumerBase | ShardConsumerBase
    _Observe = Callable[[CallbackOptions], Iterator[Observation]]

__all__ = [
    "ConsumerStats",
    "NodeStats",
    "OpenTelemetryInstruments",
    "PrometheusCollector",
    "ReaderStats",
    "ShardStats",
    "Stats",
]

_Label = TypeVar("_Label", bound=tuple[Any, ...])
_Counters = TypeVar("_Counters")
_Counts = TypeVar("_Counts", Stats, ReaderStats)


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
    #: The class of its counters.
    stats: type[ReaderStats]

    @classmethod
    def of(cls, reading: ReaderBase | ConsumerBase | ShardConsumerBase) -> _Source:
        endpoint, keys = reading.endpoint, ",".join(map(_text, reading.streams))
        group = None if isinstance(reading, ReaderBase) else _text(reading.group)
        stats = next(stats for kind, stats in _STATS.items() if isinstance(reading, kind))
        return cls(_address(endpoint), endpoint.port, keys, group, stats)


_STATS: Final[Mapping[type, type[ReaderStats]]] = {
    ReaderBase: ReaderStats,
    ConsumerBase: ConsumerStats,
    ShardConsumerBase: ShardStats,
}


def _address(endpoint: Endpoint) -> str:
    return endpoint.unix_socket or endpoint.host or ",".join(endpoint.nodes or ())


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")


def _dispatcher_stats(_: _Destination, counters: _headrace.Counters) -> Stats:
    return read_stats(counters)


def _reading_stats(source: _Source, counters: _headrace.ReadCounters) -> ReaderStats:
    return source.stats(**counters.read())


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


def _values(metric: Metric, sums: Mapping[_Label, Stats | ReaderStats]) -> Iterator[tuple[_Label, float]]:
    for label, stats in sums.items():
        if (value := metric.value(stats)) is not None:
            yield label, value


def _values_of_nodes(metric: Metric, sums: dict[_Destination, Stats]) -> Iterator[tuple[_Destination, str, float]]:
    """Yield the value of each node, with its address. It is 0 if the node has none, such as one that is not down."""
    for destination, stats in sums.items():
        for node in stats.nodes:
            value = metric.value(node)
            yield destination, node.address, 0.0 if value is None else value


class _Exported:
    """The objects that an export watches."""

    def __init__(self, watched: Iterable[_Counted]) -> None:
        self.dispatchers = _Watched(_Destination.of, _dispatcher_stats, lambda stats: stats.without_gauges())
        self.reading = _Watched(_Source.of, _reading_stats, lambda stats: stats.without_gauges())
        for each in watched:
            self.add(each)

    def add(self, watched: _Counted) -> None:
        (self.reading if isinstance(watched, tuple(_STATS)) else self.dispatchers).add(watched)

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

    Counters with the labels `server` and `stream_key`: `headrace_*_total` for each counter of `Stats`, such as
    `headrace_messages_total`, with `headrace_failed_total` for each `code`; and the histogram `headrace_flush_seconds`.
    Rows with a stream key of their own count under the endpoint's stream key.

    For each node of a cluster, with the additional label `node`: `headrace_node_*`, the counters and gauges of
    `NodeStats`. `headrace_node_down_seconds` is 0 if the node is not down, `headrace_node_fills_window` is 1 if the
    window is full and waits for the node.

    For readers and consumers, with the labels `server`, `stream_key` (all keys, separated by commas) and `group` (for
    consumers and shard consumers): `headrace_read_*_total` for each counter of `ReaderStats`, `ConsumerStats` and
    `ShardStats`, and the gauges `headrace_read_behind_seconds`, `headrace_read_pending` and
    `headrace_read_streams_owned`. docs/observability.md lists all names.

    Objects with the same labels are summed, including closed and collected ones. Reading the counters never waits for a
    dispatcher or slows it down. In processes that fork (gunicorn, Spark's workers) each process has its own counters
    and needs a collector of its own, created after the fork.

    Args:
        *watched: The dispatchers, readers and consumers to export; `watch` adds more.

    Raises:
        ImportError: `prometheus_client` is not installed.
    """

    def __init__(self, *watched: _Counted) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError("the export needs prometheus-client: pip install headrace[prometheus]") from error
        self._core = core
        self._watched = _Exported(watched)

    def watch(self, watched: _Counted) -> None:
        """Add a dispatcher, reader or consumer. Adding it again has no effect."""
        self._watched.add(watched)

    def __repr__(self) -> str:
        return f"<PrometheusCollector: {self._watched}>"

    def describe(self) -> Iterator[Family]:
        """Name the metrics, so that the registry can check for duplicates."""
        return self._families({}, {})

    def collect(self) -> Iterator[Family]:
        """Read the counters, as `prometheus_client` does for each scrape."""
        return self._families(self._watched.dispatchers.read(), self._watched.reading.read())

    def _families(self, sums: dict[_Destination, Stats], read: dict[_Source, ReaderStats]) -> Iterator[Family]:
        labelled = [([_server(destination), destination.stream_key], stats) for destination, stats in sums.items()]
        for metric in DISPATCHER_METRICS:
            family = self._family(metric, "server", "stream_key")
            for destination, value in _values(metric, sums):
                family.add_metric([_server(destination), destination.stream_key], value)
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
        for metric in NODE_METRICS:
            family = self._family(metric, "server", "stream_key", "node")
            for destination, node, value in _values_of_nodes(metric, sums):
                family.add_metric([_server(destination), destination.stream_key, node], value)
            yield family
        for metric in READ_METRICS:
            family = self._family(metric, "server", "stream_key", "group")
            for source, value in _values(metric, read):
                family.add_metric([_server(source), source.stream_key, source.group or ""], value)
            yield family

    def _family(self, metric: Metric, *labels: str) -> Any:
        of_kind = self._core.GaugeMetricFamily if metric.is_gauge else self._core.CounterMetricFamily
        return of_kind(metric.prometheus, metric.help, labels=labels)


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

    `headrace.*` for each counter of `Stats`, such as `headrace.messages`, with `headrace.failed` for each `error.type`,
    the code; `headrace.flushes` and `headrace.flush.time` (seconds; OpenTelemetry has no observable histogram). The
    attributes follow OpenTelemetry's conventions: `messaging.system`, `messaging.destination.name` (the stream key),
    `server.address`, `server.port`. Sums and forks work as with `PrometheusCollector`.

    For each node of a cluster, with `headrace.node`, its address: `headrace.node.*`, the counters and gauges of
    `NodeStats`. For readers and consumers: `headrace.read.*`, with `messaging.consumer.group.name` for consumers.
    docs/observability.md lists all names.

    OpenTelemetry keeps instruments for as long as their meter provider exists: create one object, and add to it with
    `watch`.

    Args:
        *watched: The dispatchers, readers and consumers to export; `watch` adds more.
        meter_provider: The provider of the instruments. Default None: the provider of the process.

    Raises:
        ImportError: `opentelemetry-api` is not installed.
    """

    def __init__(
        self,
        *watched: _Counted,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ImportError("the export needs opentelemetry-api: pip install headrace[opentelemetry]") from error
        from headrace._headrace import __version__

        self._observation = metrics.Observation
        self._watched = _Exported(watched)
        meter = metrics.get_meter("headrace", __version__, meter_provider)
        of_flushes = [
            Metric("", "headrace.flushes", "{flush}", "Number of flushes", False, lambda stats: stats.flushes),
            Metric("", "headrace.flush.time", "s", "Time spent in flush", False, lambda stats: stats.flush_seconds_sum),
        ]
        for metric in (*DISPATCHER_METRICS, *of_flushes):
            _create(meter, metric, self._observe(metric, self._watched.dispatchers))
        meter.create_observable_counter("headrace.failed", [self._observe_failed], "{message}", "Messages that failed")
        for metric in NODE_METRICS:
            _create(meter, metric, self._observe_nodes(metric))
        for metric in READ_METRICS:
            _create(meter, metric, self._observe(metric, self._watched.reading))

    def watch(self, watched: _Counted) -> None:
        """Add a dispatcher, reader or consumer. Adding it again has no effect."""
        self._watched.add(watched)

    def __repr__(self) -> str:
        return f"<OpenTelemetryInstruments: {self._watched}>"

    def _observe(self, metric: Metric, watched: _Watched[Any, Any, Any]) -> _Observe:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for label, value in _values(metric, watched.read()):
                yield self._observation(value, _attributes(label))

        return observe

    def _observe_nodes(self, metric: Metric) -> _Observe:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for destination, node, value in _values_of_nodes(metric, self._watched.dispatchers.read()):
                yield self._observation(value, {**_attributes(destination), "headrace.node": node})

        return observe

    def _observe_failed(self, _: CallbackOptions) -> Iterator[Observation]:
        for destination, stats in self._watched.dispatchers.read().items():
            for code, count in stats.failed_by_code.items():
                yield self._observation(count, {**_attributes(destination), "error.type": code})


def _create(meter: Meter, metric: Metric, observe: _Observe) -> None:
    create = meter.create_observable_gauge if metric.is_gauge else meter.create_observable_counter
    create(metric.opentelemetry, [observe], metric.unit, metric.help)


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
