"""What the consumers of threads and of event loops have in common: options, streams, and what becomes of entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from headrace import _headrace
from headrace._headrace import ConsumerBatch, Entry
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.one_run import OneRun
from headrace.reader_base import check_schema, key_bytes, shown_streams, stream_keys
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ConsumerStats, ReadReport
from headrace.unconfirmed import Unconfirmed

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


class ConsumerBase(Unconfirmed, OneRun):
    """The options and the streams of a consumer, and what becomes of its entries."""

    _said = "acknowledged, failed or released"
    _advice = "it delivers them again: call flush(), or use `with Consumer(…) as consumer:`"
    #: Whether the constructor connects.
    _opens = True

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
        self._native = _headrace.Consumer(endpoint, keys, resolved({**options}), schema, self._opens)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._group = key_bytes(options["group"])
        self._acknowledges = options.get("ack", "explicit") != "none"
        OneRun.__init__(self)
        self._has_warned = False
        self._name = key_bytes(options["consumer"])
        self._made()

    def _unconfirmed(self) -> int:
        return self._native.unconfirmed

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
        self._decided()

    def ack_ids(self, stream: str | bytes, entry_ids: Iterable[str]) -> None:
        """Acknowledge entries by their IDs. Those that do not belong to this consumer count as `stale`."""
        self._native.ack_ids(_key(stream), _ids(entry_ids))
        self._decided()

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
        self._decided()

    def fail_ids(
        self, stream: str | bytes, entry_ids: Iterable[str], reason: str, *, delay: float | None = None
    ) -> list[str]:
        """Report failed entries by their IDs, and return the IDs that this consumer does not have."""
        unknown = self._native.fail_ids(_key(stream), _ids(entry_ids), reason, delay)
        self._decided()
        return unknown

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
        self._decided()

    def release_ids(self, stream: str | bytes, entry_ids: Iterable[str], *, delay: float = 0.0) -> list[str]:
        """Give entries back by their IDs, and return the IDs that this consumer does not have."""
        unknown = self._native.release_ids(_key(stream), _ids(entry_ids), delay)
        self._decided()
        return unknown

    def report(self) -> ReadReport:
        """Return the counts so far."""
        return ReadReport(**self._native.report())

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

    def _decided(self) -> None:
        """Note that the caller has decided on entries."""

    def _names(self) -> str:
        return f"{_headrace.shown_names([self._name])} of group {_headrace.shown_names([self._group])}"

    def __repr__(self) -> str:
        if not self._is_made:  # in a traceback of the constructor
            return f"<{type(self).__name__}: not created>"
        return f"<{type(self).__name__}: {self._names()}, {shown_streams(self._streams, self._endpoint)}>"


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
