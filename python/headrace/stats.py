"""The counters of dispatchers, readers and consumers, and the report of a consumer."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from headrace.report import outcomes
from headrace.tables import COUNTERS
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace import _headrace

__all__ = [
    "ConsumerStats",
    "NodeStats",
    "ReadReport",
    "ReaderStats",
    "ShardReport",
    "ShardStats",
    "Stats",
    "read_stats",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """A node of a cluster, as a dispatcher sees it.

    `connections` and `redirects` only grow. The other values are as of the end of the last call or, while a call waits,
    of a moment ago.

    Attributes:
        address: Its host and port, as the cluster lists them.
        in_flight: Messages in the window for this node: they have no reply yet, or wait to be sent to it again.
        in_flight_bytes: The size of their commands in bytes.
        connections: Connections to the node that were opened and authenticated.
        redirects: How often the node redirected messages of a slot to another node (`MOVED`, `ASK`).
        down_since: The time since which the node could not be reached or did not reply, in seconds since 1970. None: it
            is not known to be down.
        fills_window: Whether the window is full, and holds more for this node than for any other: calls wait for the
            node.
        waiting_shard: With `fills_window`, the number of the shard whose message has waited longest. None: the endpoint
            has no shards, or several of them share that slot.
    """

    address: str
    # counters: node
    in_flight: int = 0
    in_flight_bytes: int = 0
    connections: int = 0
    redirects: int = 0
    down_since: float | None = None
    fills_window: bool = False
    waiting_shard: int | None = None
    # end

    @property
    def seconds_down(self) -> float | None:
        """Seconds since `down_since`, by this machine's clock."""
        return None if self.down_since is None else max(0.0, time.time() - self.down_since)

    def __repr__(self) -> str:
        down = "" if self.down_since is None else f", down for {self.seconds_down:,.1f} s"
        return f"<NodeStats: {self.address}, {self.in_flight:,} in flight{down}>"

    def without_gauges(self) -> NodeStats:
        """Return the values that only grow, for a dispatcher that was garbage-collected."""
        return replace(self, **_zero_gauges("node"))

    def __add__(self, other: NodeStats) -> NodeStats:
        times = [each for each in (self.down_since, other.down_since) if each is not None]
        return NodeStats(
            address=self.address,
            **_sums(self, other, "node"),
            down_since=min(times, default=None),
            fills_window=self.fills_window or other.fills_window,
            waiting_shard=other.waiting_shard if self.waiting_shard is None else self.waiting_shard,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The counters of a dispatcher since its creation. They only grow, except for some values of each node.

    Attributes:
        messages: Messages that were accepted.
        delivered: Messages that are in their stream.
        deduplicated: The part of `delivered` that an earlier attempt had written (exactly once).
        possible_duplicates: Messages that were sent again although an earlier attempt may have been written.
        retries: How often a message was sent again.
        retry_waits: How often a call started to wait for retries, regardless of their number.
        retry_wait_seconds: The duration of these waits in seconds, each from its first failure, including a wait in
            progress.
        connections: Connections that were opened and authenticated.
        reconnects: The part of `connections` that replaced a lost connection.
        redirects: How often the dispatcher switched to another node of a cluster, because that node now has the stream.
        refreshes: How often nodes of a cluster were asked which node has which slots, including the first time.
        bytes_sent: Bytes sent, before encryption.
        script_calls: Script calls that were encoded (`exactly_once="script"`).
        script_rows_shared: Messages in them whose field names were sent once per call.
        script_rows_whole: Messages in them that were sent with all their arguments, because they have entry IDs of
            their own.
        failed_by_code: Messages that failed, by code. An attempt that is retried is not a failure.
        flush_seconds: Histogram of the duration of `flush`: pairs of an upper bound in seconds and the number of
            flushes between the previous bound and this one. The last bound is infinite.
        flush_seconds_sum: Seconds spent in `flush`.
        nodes: The masters of a cluster, including those that have become replicas or no longer exist, in the order in
            which they were found, at most 1,000. Empty without a cluster.
    """

    # counters: dispatcher
    messages: int = 0
    delivered: int = 0
    deduplicated: int = 0
    possible_duplicates: int = 0
    retries: int = 0
    retry_waits: int = 0
    retry_wait_seconds: float = 0.0
    connections: int = 0
    reconnects: int = 0
    redirects: int = 0
    refreshes: int = 0
    bytes_sent: int = 0
    script_calls: int = 0
    script_rows_shared: int = 0
    script_rows_whole: int = 0
    # end
    failed_by_code: dict[str, int]
    flush_seconds: tuple[tuple[float, int], ...]
    flush_seconds_sum: float = 0.0
    nodes: tuple[NodeStats, ...] = ()

    @property
    def failed(self) -> int:
        """Messages that failed."""
        return sum(self.failed_by_code.values())

    @property
    def flushes(self) -> int:
        """How often `flush` ran."""
        return sum(count for _, count in self.flush_seconds)

    def __repr__(self) -> str:
        nodes = f", {counted(len(self.nodes), 'node', 'nodes')}" if self.nodes else ""
        return f"<Stats: {self.messages:,} messages, {outcomes(self.delivered, self.failed_by_code)}{nodes}>"

    def _repr_html_(self) -> str:
        from headrace import notebook

        names = [field.name for field in fields(NodeStats)]
        nodes = [
            [notebook.shown(name, getattr(node, name)) for name in names] for node in self.nodes[: notebook.MAX_ROWS]
        ]
        codes = list(self.failed_by_code.items())[: notebook.MAX_ROWS]
        return (
            notebook.counters(self)
            + (notebook.table("failed_by_code", ["code", "messages"], codes) if codes else "")
            + (notebook.table("nodes", names, nodes) if nodes else "")
        )

    def without_gauges(self) -> Stats:
        """Return the values that only grow, for a dispatcher that was garbage-collected."""
        return replace(self, **_zero_gauges("dispatcher"), nodes=tuple(node.without_gauges() for node in self.nodes))

    def __add__(self, other: Stats) -> Stats:
        codes = [*self.failed_by_code, *(code for code in other.failed_by_code if code not in self.failed_by_code)]
        pairs = zip(self.flush_seconds, other.flush_seconds, strict=True)
        return Stats(
            **_sums(self, other, "dispatcher"),
            failed_by_code={c: self.failed_by_code.get(c, 0) + other.failed_by_code.get(c, 0) for c in codes},
            flush_seconds=tuple((bound, mine + others) for (bound, mine), (_, others) in pairs),
            flush_seconds_sum=self.flush_seconds_sum + other.flush_seconds_sum,
            nodes=_summed(self.nodes, other.nodes),
        )


def _zero_gauges(*tables: str) -> dict[str, Any]:
    """The gauges of an object that was garbage-collected."""
    return {row.name: row.zero for table in tables for row in COUNTERS[table] if row.is_gauge}


def _sums(one: object, other: object, *tables: str) -> dict[str, Any]:
    names = [row.name for table in tables for row in COUNTERS[table] if row.is_sum]
    return {name: getattr(one, name) + getattr(other, name) for name in names}


def _summed(nodes: tuple[NodeStats, ...], others: tuple[NodeStats, ...]) -> tuple[NodeStats, ...]:
    sums: dict[str, NodeStats] = {}
    for node in (*nodes, *others):
        sums[node.address] = sums[node.address] + node if node.address in sums else node
    return tuple(sums.values())


def read_stats(counters: _headrace.Counters) -> Stats:
    """Return the values of a dispatcher's counters."""
    values = counters.read()
    nodes = _summed((), tuple(NodeStats(**node) for node in values.pop("nodes")))
    return Stats(**values, nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """The counters of a reader since its creation. They only grow, except for `last_entry_time`.

    Attributes:
        batches: Batches that were returned.
        entries: Entries in these batches.
        rows: Rows in these batches.
        lost: Entries that were trimmed or deleted before they could be returned.
        bytes_received: Bytes received, after decryption.
        requests: Requests that were sent, each with all its commands.
        connections: Connections that were opened and authenticated.
        reconnects: The part of `connections` that replaced a lost connection, or one whose stream has moved to another
            node.
        retry_waits: Waits for a server that was unreachable or busy, regardless of the number of attempts (`retry`).
        retry_wait_seconds: The duration of these waits in seconds, each from its first failure, including a wait in
            progress.
        last_entry_time: The time of the last entry that was returned, taken from its ID, in seconds since 1970. None:
            there was none.
    """

    # counters: reader
    batches: int = 0
    entries: int = 0
    rows: int = 0
    lost: int = 0
    bytes_received: int = 0
    requests: int = 0
    connections: int = 0
    reconnects: int = 0
    retry_waits: int = 0
    retry_wait_seconds: float = 0.0
    last_entry_time: float | None = None
    # end

    _TABLES: ClassVar[tuple[str, ...]] = ("reader",)
    #: The counters of the repr, and the noun for one.
    _SHOWN: ClassVar[dict[str, str]] = {"batches": "batch", "entries": "entry", "rows": "row", "lost": "lost"}

    @property
    def seconds_behind(self) -> float | None:
        """Seconds since `last_entry_time`, by this machine's clock. Also grows while no entry is added."""
        return None if self.last_entry_time is None else max(0.0, time.time() - self.last_entry_time)

    def without_gauges(self) -> Self:
        """Return the values that only grow, for a reader that was garbage-collected."""
        return replace(self, **_zero_gauges(*self._TABLES))

    def __repr__(self) -> str:
        counts = (counted(getattr(self, name), noun, name) for name, noun in self._SHOWN.items())
        return f"<{type(self).__name__}: {', '.join(counts)}>"

    def _repr_html_(self) -> str:
        from headrace import notebook

        return notebook.counters(self)

    def __add__(self, other: Self) -> Self:
        times = [each for each in (self.last_entry_time, other.last_entry_time) if each is not None]
        return type(self)(**_sums(self, other, *self._TABLES), last_entry_time=max(times, default=None))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerStats(ReaderStats):
    """The counters of a consumer since its creation. They only grow, except for `last_entry_time` and `pending`.

    The counters of `ReaderStats` are those of the connection that reads. The others count entries, as `ReadReport`
    does.

    Attributes:
        redelivered: Entries read that had been delivered before, to this consumer or another one.
        reclaimed: Entries taken over from other consumers, which had held them for longer than `min_idle`.
        acked: Entries acknowledged, as confirmed by the server: the group does not deliver them again.
        stale: Entries acknowledged, failed or released when another consumer already had them, or had acknowledged
            them: each is a possible duplicate.
        unknown: Entries for which the reply was lost, and it could not be determined whether the server did as
            requested.
        released: Entries given back to the group, or failed and to be retried.
        dead: Entries moved to `dead_letter_key`.
        pending: Entries handed over, or read ahead, and not settled yet.
        renewals: Renewals of leases that the server confirmed, counted for each entry.
    """

    # counters: consumer
    redelivered: int = 0
    reclaimed: int = 0
    acked: int = 0
    stale: int = 0
    unknown: int = 0
    released: int = 0
    dead: int = 0
    pending: int = 0
    renewals: int = 0
    # end

    _TABLES: ClassVar[tuple[str, ...]] = ("reader", "consumer")
    _SHOWN: ClassVar[dict[str, str]] = {**ReaderStats._SHOWN, "acked": "acked", "pending": "pending"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardStats(ReaderStats):
    """The counters of a shard consumer since its creation. They only grow, except for three.

    Those are `last_entry_time`, `pending` and `streams_owned`. The others count as `ReaderStats` and `ShardReport` do.

    Attributes:
        committed: Entries committed, as confirmed by the server: the next owner of the stream begins after them.
        fenced: Entries whose commit came too late: the stream had another owner, or its lease was deleted, and nothing
            was changed. Each is a possible duplicate.
        unknown: Entries for which the reply to the commit was lost, and it could not be determined whether the server
            did as requested.
        pending: Entries returned and not committed, of streams that this member owns.
        streams_taken: How often this member took a stream.
        streams_given_up: How often it gave one up: others had less than their share, or it was closed.
        streams_lost: How often it lost one: its lease was not renewed in time and another member took it, or the lease
            was deleted.
        failed: How often `fail` was called, for a batch or an entry.
        repeated: Entries that were returned and are returned again because they, or an entry before them, failed.
        dead: Entries moved to `dead_letter_key`; `committed` counts them too.
        streams_owned: Streams that this member owns now, without those that it gives up.
    """

    # counters: shard_consumer
    committed: int = 0
    fenced: int = 0
    unknown: int = 0
    pending: int = 0
    streams_taken: int = 0
    streams_given_up: int = 0
    streams_lost: int = 0
    failed: int = 0
    repeated: int = 0
    dead: int = 0
    streams_owned: int = 0
    # end

    _TABLES: ClassVar[tuple[str, ...]] = ("reader", "shard_consumer")
    _SHOWN: ClassVar[dict[str, str]] = {**ReaderStats._SHOWN, "committed": "committed", "pending": "pending"}


class ReadReport(NamedTuple):
    """Counts of entries since the consumer was created.

    A later version may have more counts, after these.

    Attributes:
        handed_over: Entries returned in batches; each delivery counts.
        redelivered: Entries read that had been delivered before, to this consumer or another one.
        reclaimed: Entries taken over from other consumers, which had held them for longer than `min_idle`.
        acked: Entries acknowledged, as confirmed by the server: the group does not deliver them again.
        stale: Entries acknowledged, failed or released when another consumer already had them, or had acknowledged
            them: each is a possible duplicate.
        unknown: Entries for which the reply was lost, and it could not be determined whether the server did as
            requested.
        released: Entries given back to the group, or failed and to be retried.
        dead: Entries moved to `dead_letter_key`.
        lost: Entries trimmed or deleted while they were pending.
        pending: Entries handed over, or read ahead, and not settled yet.
    """

    # counters: report
    handed_over: int = 0
    redelivered: int = 0
    reclaimed: int = 0
    acked: int = 0
    stale: int = 0
    unknown: int = 0
    released: int = 0
    dead: int = 0
    lost: int = 0
    pending: int = 0
    # end


class ShardReport(NamedTuple):
    """Counts since the shard consumer was created, of entries unless something else is said.

    A later version may have more counts, after these.

    Attributes:
        handed_over: Entries returned in batches; each time counts.
        committed: Entries committed, as confirmed by the server: the next owner of the stream begins after them.
        fenced: Entries whose commit came too late: the stream had another owner, or its lease was deleted, and nothing
            was changed. Each is a possible duplicate.
        unknown: Entries for which the reply to the commit was lost, and it could not be determined whether the server
            did as requested.
        lost: Entries trimmed before they were read, of the streams that this member read.
        pending: Entries returned and not committed, of streams that this member owns.
        streams_taken: How often this member took a stream.
        streams_given_up: How often it gave one up: others had less than their share, or it was closed.
        streams_lost: How often it lost one: its lease was not renewed in time and another member took it, or the lease
            was deleted.
        failed: How often `fail` was called, for a batch or an entry.
        repeated: Entries that were returned and are returned again because they, or an entry before them, failed.
        dead: Entries moved to `dead_letter_key`; `committed` counts them too.
    """

    # counters: shard_report
    handed_over: int = 0
    committed: int = 0
    fenced: int = 0
    unknown: int = 0
    lost: int = 0
    pending: int = 0
    streams_taken: int = 0
    streams_given_up: int = 0
    streams_lost: int = 0
    failed: int = 0
    repeated: int = 0
    dead: int = 0
    # end
