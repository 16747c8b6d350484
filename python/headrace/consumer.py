"""The consumer: entries of streams as Arrow record batches, through a consumer group."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypedDict, Unpack

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.reader import key_bytes, stream_keys
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ConsumerStats
from headrace.tables import CONSUMER, documented, signature

__all__ = ["Consumer", "ConsumerBatch", "ConsumerOptions", "ReadReport"]

ConsumerBatch = _headrace.ConsumerBatch


#: One value per row: a sequence of bool, or an array of pyarrow, numpy, pandas or polars.
Mask: TypeAlias = Any


class ReadReport(NamedTuple):
    """Counts of entries since the consumer was made.

    Attributes:
        handed_over: Handed over in batches; each delivery counts.
        redelivered: Of those, entries that had been delivered before.
        reclaimed: Taken over from other consumers, which had them for longer than `min_idle`.
        acked: Acknowledged: the group does not deliver them again.
        stale: Acknowledged, failed or released when they were another consumer's already, which may work on them too.
        unknown: The reply was lost, and it was not found out whether the server did what was said.
        released: Given back to the group, or failed and to be tried again.
        dead: Moved to `dead_letter_key`.
        lost: Trimmed or deleted while they were pending, before they could be handed over.
        pending: Handed over, or read ahead, and not settled yet.
    """

    handed_over: int
    redelivered: int
    reclaimed: int
    acked: int
    stale: int
    unknown: int
    released: int
    dead: int
    lost: int
    pending: int


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `Consumer`, for functions that pass them on; `Consumer` documents each."""

    group: str | bytes
    consumer: str | bytes
    start: str
    create: bool
    fields: Sequence[str] | None
    on_bad_field: Literal["fail", "null", "keep", "dead_letter"]
    metadata: Sequence[str] | Mapping[str, str] | None
    fields_as: Literal["map", "list"]
    names: Literal["text", "binary"]
    batch_rows: int
    batch_bytes: int
    page_bytes: int
    block: float
    connections: int | None
    linger: float
    min_idle: float
    renew: bool
    max_processing: float
    claim: bool
    claim_interval: float | None
    ack: Literal["explicit", "none"]
    ack_delete: bool
    max_failures: int | None
    dead_letter_key: str | bytes | None
    retry: RetryPolicy | None


class Consumer:
    """Reads entries of streams through a consumer group: each is delivered until it is acknowledged.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    with Consumer(endpoint, group="billing", consumer="pod-3") as consumer:
        for batch in consumer:
            table = pa.table(batch)
            save(table)  # with (stream, entry_id) as its key: an entry may come twice
            consumer.ack(batch)
    ```

    A batch has entries of one stream, one row each. It is an Arrow record batch for pyarrow, polars, DuckDB and others.
    First come the pending entries of this consumer's name, which it had before a crash; then new ones; then those that
    other consumers had for longer than `min_idle`. Acknowledge a batch behind the commit of its rows. A crash in
    between delivers the batch again: at least once.

    **Leases.** While entries are worked on, a thread renews them, so that no other consumer takes them over.
    `ConsumerBatch.check` before a commit raises `LeaseLostError` if that did not succeed for nine tenths of `min_idle`,
    as in a process that was stopped. An acknowledgement of an entry that another consumer has by then has no effect,
    and counts as `stale`.

    **Entries that fail.** An entry that comes back after a crash is delivered with half as many others each time, and
    at last alone. With `max_failures`, one that fails alone so often, or that `fail` names so often, moves to
    `dead_letter_key`.

    **The end.** `with` ends a consumer: it sends what was acknowledged, and gives back what was not, so that others get
    it at once. Behind an exception it keeps the rest pending. `stop` ends the loop, from any thread or signal handler.

    **Threads and processes.** `poll`, `flush` and `close` take one caller at a time. Any thread may call the others, at
    any time: they wait for no server. The GIL is released while a call waits; Ctrl-C is noticed within 0.1 s. A
    consumer belongs to the process that made it.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: that of the endpoint, or its shards.
        schema: An Arrow schema, of pyarrow or another library. Each of its fields is the field of that name of an
            entry, read from the text that `Dispatcher` writes for its type. Mutually exclusive with `fields`.
        {options}
        retry: A `RetryPolicy`: whether, how often and for how long a server is tried again that is away, starts or is
            busy. Default None: a lost connection is replaced at once, a single time between two replies.

    Raises:
        ConfigError: An option is unknown or wrong.
        ConnectionFailedError: The server was not reached.
        CommandError: The server refused a command.
        GroupMissingError: There is no such group, and `create` is false.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._ArrowSchema | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        if schema is not None and not hasattr(schema, "__arrow_c_schema__"):
            raise ConfigError(f"schema must be an Arrow schema, got {schema!r}", option="schema")
        keys = stream_keys(streams)
        self._endpoint = endpoint  # first: the repr of a consumer that was not made is shown in tracebacks
        self._native = _headrace.Consumer(endpoint, keys, resolved({**options}), schema)
        self._streams = keys or [key_bytes(endpoint.stream_key)]
        self._group = key_bytes(options["group"])
        if self._native.has_namesake:
            group, consumer = options["group"], options["consumer"]
            warnings.warn(
                f"another connection reads as consumer {consumer!r} of group {group!r}: each of the two gets the "
                "other's pending entries as its own; give each process a name",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of the streams."""
        return self._streams.copy()

    @property
    def group(self) -> bytes:
        """The name of the group."""
        return self._group

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self

    def __next__(self) -> ConsumerBatch:
        if (batch := self.poll()) is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = None) -> ConsumerBatch | None:
        """Return the next batch, or None when `timeout` seconds are over or `stop` was called.

        Default: wait for as long as it takes.

        Raises:
            FieldError: A value does not fit its column, and `on_bad_field` is `"fail"`. The entry is pending:
                `ack_ids`, `fail_ids` or `release_ids` say what is to become of it.
            GroupMissingError: The group or its stream was deleted.
            ConnectionFailedError: The server was not reached, or was lost. The next call goes on.
            CommandError: The server refused a command, perhaps one of an earlier `ack`, `fail` or `release`. The
                entries stay pending. The next call goes on.
            ClosedError: The consumer is closed.
        """
        return self._native.poll(timeout)

    def ack(self, batch: ConsumerBatch, mask: Mask | None = None) -> None:
        """Say that the entries of a batch are done: the group does not deliver them again.

        It is sent in front of the next read, or after 0.1 s; `flush` waits for it.

        Args:
            batch: A batch of this consumer.
            mask: True for each row that is done. The others stay pending, for a later call. Default: all are done.
        """
        self._native.ack(batch, _mask(mask))

    def ack_ids(self, stream: str | bytes, entry_ids: Iterable[str]) -> None:
        """Say the same of entries by their IDs. Those that are not this consumer's count as `stale`."""
        self._native.ack_ids(_key(stream), list(entry_ids))

    def fail(self, batch: ConsumerBatch, reason: str, *, mask: Mask | None = None, delay: float | None = None) -> None:
        """Say that the entries of a batch could not be worked on.

        Each is delivered again, alone, to any consumer of the group; or it becomes a dead letter if it failed
        `max_failures` times.

        Args:
            batch: A batch of this consumer.
            reason: Why, for the dead letter.
            mask: True for each row that failed. Default: all failed.
            delay: Seconds until then, at most `min_idle`. Default: 1 s, and twice as long after each further failure.
        """
        self._native.fail(batch, _mask(mask), reason, delay)

    def fail_ids(
        self, stream: str | bytes, entry_ids: Iterable[str], reason: str, *, delay: float | None = None
    ) -> list[str]:
        """Say the same of entries by their IDs. Returns those that this consumer does not have."""
        return self._native.fail_ids(_key(stream), list(entry_ids), reason, delay)

    def release(self, batch: ConsumerBatch, *, mask: Mask | None = None, delay: float = 0.0) -> None:
        """Give the entries of a batch back to the group, as if they had not been delivered.

        Other consumers get them after `delay` seconds, when they next look for idle entries (`claim_interval`). This
        one takes them only if no other did for `min_idle`.

        Args:
            batch: A batch of this consumer.
            mask: True for each row that is given back. Default: all.
            delay: Seconds, at most `min_idle`.
        """
        self._native.release(batch, _mask(mask), delay)

    def release_ids(self, stream: str | bytes, entry_ids: Iterable[str], *, delay: float = 0.0) -> list[str]:
        """Do the same with entries by their IDs. Returns those that this consumer does not have."""
        return self._native.release_ids(_key(stream), list(entry_ids), delay)

    def flush(self, timeout: float | None = None) -> ReadReport:
        """Wait until the server knows what was said of entries, and return the counts so far.

        After `timeout` seconds `ReadReport.pending` may have entries of which it does not know yet.
        """
        return ReadReport(*self._native.flush(timeout))

    def report(self) -> ReadReport:
        """The counts so far."""
        return ReadReport(*self._native.report())

    def close(self, timeout: float = 10.0, *, release: bool = True) -> ReadReport:
        """End the consumer, and return the counts.

        What was acknowledged, failed or released is sent. With `release`, all other entries go back to the group.
        After `timeout` seconds the rest stays pending, for a consumer of this name or, after `min_idle`, for any.
        """
        return ReadReport(*self._native.close(release, timeout))

    def stop(self) -> None:
        """End the loop: `poll` returns None at once. From any thread, and from a signal handler."""
        self._native.stop()

    def __arrow_c_schema__(self) -> object:
        """The schema of the batches as a `PyCapsule`."""
        return self._native.__arrow_c_schema__()

    @property
    def counters(self) -> _headrace.ReadCounters:
        """The counters so far; `stats` reads them."""
        return self._native.counters

    def stats(self) -> ConsumerStats:
        """Return the counters of this consumer since its creation. Any thread may call this, at any time."""
        return ConsumerStats(**self.counters.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(release=exc_type is None)

    def __repr__(self) -> str:
        return f"Consumer({self._endpoint!r})"


def _key(stream: str | bytes) -> bytes:
    (key,) = stream_keys([stream])
    return key


def _mask(mask: Mask | None) -> list[bool] | None:
    if mask is None:
        return None
    names = ("to_pylist", "to_list", "tolist")
    convert = next((method for name in names if (method := getattr(mask, name, None))), None)
    values = list(convert() if convert else mask)
    for row, value in enumerate(values):
        # A list may have numpy's booleans.
        if not isinstance(value, bool) and type(value).__name__ not in {"bool", "bool_"}:
            raise ConfigError(f"mask must have True or False for each row, got {value!r} for row {row}", option="mask")
    return [bool(value) for value in values]


Consumer.__doc__ = documented(Consumer.__doc__, CONSUMER)
Consumer.__signature__ = signature(Consumer, CONSUMER.values())  # type: ignore[attr-defined]
