"""What the shard consumers of threads and of event loops have in common: options, streams, and commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict, Unpack

from headrace import _headrace
from headrace._headrace import Entry, ShardBatch
from headrace.endpoint import Endpoint
from headrace.one_run import OneRun
from headrace.reader_base import check_schema, key_bytes, shown_streams, stream_keys
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ShardReport, ShardStats
from headrace.unconfirmed import Unconfirmed

#: Called with the keys of streams.
OnStreams: TypeAlias = Callable[[list[bytes]], object]


class ShardConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `ShardConsumer`, for functions that pass them on; `ShardConsumer` documents each."""

    group: str | bytes
    member: str | bytes
    start: str
    create: bool
    lease: float
    max_failures: int | None
    dead_letter_key: str | bytes | None
    wait_replicas: int
    wait_timeout: float | None
    fields: Sequence[str] | Literal["*"] | None
    unpack: Literal["payload", "json", "arrow_ipc"] | None
    payload_field: str
    max_entry_bytes: int
    on_bad_field: Literal["fail", "null", "keep"]
    metadata: Sequence[str] | Mapping[str, str] | None
    fields_as: Literal["map", "list"]
    names: Literal["text", "binary"]
    batch_rows: int
    batch_bytes: int
    page_bytes: int
    block: float
    connections: int | None
    linger: float
    on_loss: Literal["fail", "report"]
    retry: RetryPolicy | None


class ShardConsumerBase(Unconfirmed, OneRun):
    """The options and the streams of a shard consumer, and what the caller says of its batches."""

    _said = "committed"
    _advice = "the next owner gets them again: call flush(), or use `with ShardConsumer(…) as consumer:`"
    #: Whether the constructor connects.
    _opens = True

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        on_assigned: OnStreams | None = None,
        on_revoked: OnStreams | None = None,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ShardConsumerOptions],
    ) -> None:
        check_schema(schema)
        keys = stream_keys(streams)
        self._native = _headrace.ShardConsumer(endpoint, keys, resolved({**options}), schema, self._opens)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._group = key_bytes(options["group"])
        self._member = key_bytes(options["member"])
        self._calls = {"assigned": on_assigned, "revoked": on_revoked}
        OneRun.__init__(self)
        #: Whether a `run` has ended: what it had in hand is not returned again.
        self._has_run = False
        self._made()

    def _unconfirmed(self) -> int:
        return self._native.unconfirmed

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that entries are read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of all streams that the members share."""
        return self._streams.copy()

    @property
    def group(self) -> bytes:
        """The name of the group."""
        return self._group

    @property
    def member(self) -> bytes:
        """The name of this member."""
        return self._member

    @property
    def assignment(self) -> list[bytes]:
        """The keys of the streams that this member owns now."""
        return self._native.assignment

    def commit(self, batch: ShardBatch | Entry) -> None:
        """Commit a batch, or its entries up to this one, and with it everything before it in its stream.

        The commit is sent immediately, by another thread; `flush` waits for it. It changes nothing if another member
        owns the stream by now: its entries then count as `fenced`.

        Args:
            batch: A batch of this consumer, or an entry of one.
        """
        self._native.commit(batch)
        self._committed()

    def fail(self, batch: ShardBatch | Entry, reason: str, *, delay: float | None = None) -> None:
        """Report that a batch, or a single entry, could not be processed: its stream is returned again from there.

        What is before it in its stream is committed. What the caller has of the stream from there on is returned again
        after `delay`; to commit that has no effect. Of a batch that failed half of the entries come next, until the one
        that fails is alone. An entry that has failed `max_failures` times becomes a dead letter, and the stream goes on
        behind it; without this option it is returned again until it is committed. The other streams are not affected.

        Args:
            batch: A batch of this consumer, or an entry of one.
            reason: The reason, for `headrace inspect` and for the dead letter.
            delay: Seconds. Default: 0.1 s, doubled after each further failure, up to 30 s.

        Raises:
            StateError: What failed is committed.
        """
        self._native.fail(batch, reason, delay)
        self._committed()

    def report(self) -> ShardReport:
        """Return the counts so far."""
        return ShardReport(**self._native.report())

    @property
    def counters(self) -> _headrace.ReadCounters:
        """The counters so far; `stats` reads them."""
        return self._native.counters

    def stats(self) -> ShardStats:
        """Return the counters of this consumer since its creation. Any thread may call this, at any time."""
        return ShardStats(**self.counters.read())

    def stop(self) -> None:
        """End the loop: `poll` returns None immediately. Can be called from any thread and from a signal handler."""
        self._native.stop()

    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`.

        Raises:
            SchemaError: The first entry determines the columns, and none was read yet.
        """
        return self._native.__arrow_c_schema__()

    def _committed(self) -> None:
        """Let the keeper send a commit."""

    def __repr__(self) -> str:
        if not self._is_made:  # in a traceback of the constructor
            return f"<{type(self).__name__}: not created>"
        names = f"member {_headrace.shown_names([self._member])} of group {_headrace.shown_names([self._group])}"
        return f"<{type(self).__name__}: {names}, {shown_streams(self._streams, self._endpoint)}>"
