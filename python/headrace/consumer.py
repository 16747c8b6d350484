"""The consumer: entries of streams as Arrow record batches, through a consumer group."""

from __future__ import annotations

import atexit
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack

from headrace import _headrace
from headrace._headrace import Entry
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.forgotten import tell
from headrace.reader import check_schema, key_bytes, shown_streams, stream_keys
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ConsumerStats, ReadReport
from headrace.tables import CONSUMER, documented, signature

__all__ = ["Consumer", "ConsumerBatch", "ConsumerOptions", "ReadReport"]

ConsumerBatch = _headrace.ConsumerBatch


#: One value per row: a sequence of bool, or an array of pyarrow, numpy, pandas or polars.
Mask: TypeAlias = Any


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `Consumer`, for functions that pass them on; `Consumer` documents each."""

    group: str | bytes
    consumer: str | bytes
    start: str
    create: bool
    fields: Sequence[str] | Literal["*"] | None
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
    """Reads entries of streams through a consumer group, which delivers each entry until it is acknowledged.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    with Consumer(endpoint, group="billing", consumer="pod-3") as consumer:
        for batch in consumer:
            rows = [(entry.stream, entry.id, entry["payload"]) for entry in batch]
            save(rows)  # with (stream, id) as its key: an entry may come twice
            consumer.ack(batch)
    ```

    A batch holds entries of one stream, one row each. It is a sequence of `Entry` objects, and an Arrow record batch
    for pyarrow, polars, DuckDB and others. First come the entries that are pending under this consumer's name, as after
    a crash; then new ones; then those that other consumers have held for longer than `min_idle`. Acknowledge a batch
    after its rows are committed. After a crash in between the batch is delivered again: at least once.

    **Leases.** While entries are being processed, a thread renews their leases, so that no other consumer takes them
    over. `ConsumerBatch.check` before a commit raises `LeaseLostError` if no renewal succeeded for nine tenths of
    `min_idle`, as in a process that was suspended. Acknowledging an entry that another consumer has taken over by then
    has no effect, and counts as `stale`.

    **Entries that fail.** An entry that comes back after a crash is delivered with half as many others each time, and
    finally alone. With `max_failures`, an entry that has failed alone, or was passed to `fail`, that many times moves
    to `dead_letter_key`.

    **Closing.** The end of the `with` block closes the consumer: it sends outstanding acknowledgements, and gives all
    other entries back, so that other consumers get them immediately. After an exception the other entries stay pending.
    `stop` ends the loop, from any thread or signal handler.

    **Threads and processes.** `poll`, `flush`, `drop_stream` and `close` take one caller at a time. Any thread may call
    the other methods at any time, because they do not wait for a server. The GIL is released while a call waits; Ctrl-C
    is noticed within 0.1 s. A consumer belongs to the process that created it.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: the stream of the endpoint, or its shards.
        schema: The fields that become columns, with their types: a mapping such as
            `{"id": "int64", "at": "timestamp[us, UTC]", "total": "decimal(9, 2)"}`, whose type names are those that
            pyarrow prints (docs/reading.md#types), or an Arrow schema of pyarrow or another library. Each of its fields
            is the entry's field of that name, read from the text that `Dispatcher` writes for the type. Mutually
            exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
        ConnectionFailedError: The server could not be reached.
        CommandError: The server refused a command.
        GroupMissingError: The group does not exist, and `create` is false.
    """

    _has_told: bool = False

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_schema(schema)
        keys = stream_keys(streams)
        self._native = _headrace.Consumer(endpoint, keys, resolved({**options}), schema)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._group = key_bytes(options["group"])
        self._has_warned = False
        self._name = key_bytes(options["consumer"])
        _open_consumers.add(self)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that entries are read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of the streams, without those that were dropped."""
        return self._streams.copy()

    @property
    def group(self) -> bytes:
        """The name of the group."""
        return self._group

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self

    def __next__(self) -> ConsumerBatch:
        self._warn()
        if (batch := self._native.poll(None)) is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = None) -> ConsumerBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes.

        Raises:
            FieldError: A value does not fit its column, and `on_bad_field` is `"fail"`. The entry stays pending until
                `ack_ids`, `fail_ids` or `release_ids` settles it.
            GroupMissingError: The group or its stream was deleted. The next call continues with the other streams.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command, perhaps one of an earlier `ack`, `fail` or `release`. The
                entries stay pending. The next call continues, with the other streams if it refused to let one be read.
            ClosedError: The consumer is closed.
        """
        self._warn()
        return self._native.poll(timeout)

    def _warn(self) -> None:
        """Warn once of a consumer of the same name, before a batch is taken: a filter may make it an exception."""
        if not self._has_warned and self._native.has_namesake:
            self._has_warned = True
            warnings.warn(
                f"another connection reads as consumer {self._names()}: each of the two gets the other's pending "
                "entries as its own; close a consumer before its name is used again, and use a different name in each "
                "process",
                RuntimeWarning,
                stacklevel=3,
            )

    def drop_stream(self, stream: str | bytes) -> None:
        """Stop reading one of the streams, for good, and continue with the others.

        Its entries that were returned can still be settled. Those that were read ahead stay pending, and other
        consumers take them over after `min_idle`. Without a stream that is left, `poll` returns None.

        Raises:
            ConfigError: The consumer has no such stream.
        """
        key = _key(stream)
        self._native.drop_stream(key)
        if key in self._streams:
            self._streams.remove(key)

    def ack(self, batch: ConsumerBatch | Entry, mask: Mask | None = None) -> None:
        """Acknowledge the entries of a batch, or a single entry: the group does not deliver them again.

        The acknowledgement is sent before the next read, or after 0.1 s; `flush` waits for it. Entries that were passed
        to `fail` or `release` before are left out.

        Args:
            batch: A batch of this consumer, or an entry of one.
            mask: True for each row to acknowledge. The others stay pending, for a later call. Default: all rows.
        """
        self._native.ack(batch, _mask(mask))

    def ack_ids(self, stream: str | bytes, entry_ids: Iterable[str]) -> None:
        """Acknowledge entries by their IDs. Those that do not belong to this consumer count as `stale`."""
        self._native.ack_ids(_key(stream), _ids(entry_ids))

    def fail(
        self, batch: ConsumerBatch | Entry, reason: str, *, mask: Mask | None = None, delay: float | None = None
    ) -> None:
        """Report that the entries of a batch, or a single entry, could not be processed.

        Each entry is delivered again, alone, to any consumer of the group, or becomes a dead letter if it has failed
        `max_failures` times.

        Args:
            batch: A batch of this consumer, or an entry of one.
            reason: The reason, for the dead letter.
            mask: True for each row that failed. Default: all rows.
            delay: Seconds until the next delivery, at most `min_idle`. Default: 1 s, doubled after each further
                failure.
        """
        self._native.fail(batch, _mask(mask), reason, delay)

    def fail_ids(
        self, stream: str | bytes, entry_ids: Iterable[str], reason: str, *, delay: float | None = None
    ) -> list[str]:
        """Report failed entries by their IDs, and return the IDs that this consumer does not have."""
        return self._native.fail_ids(_key(stream), _ids(entry_ids), reason, delay)

    def release(self, batch: ConsumerBatch | Entry, *, mask: Mask | None = None, delay: float = 0.0) -> None:
        """Give the entries of a batch, or a single entry, back to the group, as if they had not been delivered.

        Other consumers get them after `delay` seconds, when they next look for idle entries (`claim_interval`). This
        consumer gets them only if no other has taken them for `min_idle`.

        Args:
            batch: A batch of this consumer, or an entry of one.
            mask: True for each row to give back. Default: all rows.
            delay: Seconds, at most `min_idle`.
        """
        self._native.release(batch, _mask(mask), delay)

    def release_ids(self, stream: str | bytes, entry_ids: Iterable[str], *, delay: float = 0.0) -> list[str]:
        """Give entries back by their IDs, and return the IDs that this consumer does not have."""
        return self._native.release_ids(_key(stream), _ids(entry_ids), delay)

    def flush(self, timeout: float | None = None) -> ReadReport:
        """Wait until the server has processed every `ack`, `fail` and `release`, and return the counts so far.

        If `timeout` seconds pass first, `ReadReport.pending` may include entries that it has not processed yet. The
        timeout also ends an attempt to connect.
        """
        return ReadReport(**self._native.flush(timeout))

    def report(self) -> ReadReport:
        """Return the counts so far."""
        return ReadReport(**self._native.report())

    def close(self, timeout: float = 10.0, *, release: bool = True) -> ReadReport:
        """Close the consumer, and return the counts.

        Outstanding acknowledgements, failures and releases are sent. With `release`, all other entries go back to the
        group. What is not done after `timeout` seconds, or because the server is away, stays pending, for a consumer of
        this name or, after `min_idle`, for any: see `ReadReport.pending` and `ReadReport.unknown`.

        Raises:
            CommandError: The server refused an acknowledgement, a failure or a release.
            GroupMissingError: The group or its stream was deleted.
        """
        return ReadReport(**self._native.close(release, timeout))

    def stop(self) -> None:
        """End the loop: `poll` returns None immediately. Can be called from any thread and from a signal handler."""
        self._native.stop()

    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`.

        Raises:
            SchemaError: The first entry determines the columns, and none was read yet.
        """
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

    def __del__(self) -> None:
        # Without `_name` the constructor did not finish.
        if "_name" in self.__dict__:
            self._tell_of_the_forgotten()

    def _tell_of_the_forgotten(self) -> None:
        """Warn once of entries that were settled, if the server may not know of it."""
        if self._has_told or not (count := self._native.unconfirmed):
            return
        self._has_told = True
        entries = "1 entry was" if count == 1 else f"{count:,} entries were"
        tell(
            f"{entries} acknowledged, failed or released by {self!r}, and the server may not know of it, so that it "
            "delivers them again: call flush(), or use `with Consumer(…) as consumer:`"
        )

    def _names(self) -> str:
        return f"{_headrace.shown_names([self._name])} of group {_headrace.shown_names([self._group])}"

    def __repr__(self) -> str:
        if "_name" not in self.__dict__:  # in a traceback of the constructor
            return "<Consumer: not created>"
        return f"<Consumer: {self._names()}, {shown_streams(self._streams, self._endpoint)}>"


_open_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    """Warn for each consumer, because objects in frames of daemon threads are never collected."""
    for consumer in tuple(_open_consumers):
        consumer._tell_of_the_forgotten()


def _key(stream: str | bytes) -> bytes:
    (key,) = stream_keys([stream])
    return key


def _ids(entry_ids: Iterable[str]) -> list[str]:
    if isinstance(entry_ids, str):
        message = f"entry_ids must be a sequence of entry IDs, got {entry_ids!r}: write [{entry_ids!r}]"
        raise ConfigError(message, option="entry_ids")
    return list(entry_ids)


def _mask(mask: Mask | None) -> list[bool] | None:
    if mask is None:
        return None
    names = ("to_pylist", "to_list", "tolist")
    convert = next((method for name in names if (method := getattr(mask, name, None))), None)
    values = list(convert() if convert else mask)
    for row, value in enumerate(values):
        # A list may contain numpy booleans.
        if not isinstance(value, bool) and type(value).__name__ not in {"bool", "bool_"}:
            raise ConfigError(f"mask must have True or False for each row, got {value!r} for row {row}", option="mask")
    return [bool(value) for value in values]


Consumer.__doc__ = documented(Consumer.__doc__, CONSUMER)
Consumer.__signature__ = signature(Consumer, CONSUMER.values(), required=("group", "consumer"))  # type: ignore[attr-defined]
