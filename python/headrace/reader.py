"""The reader: entries of streams as Arrow record batches, by position."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Self, TypedDict, Unpack

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.notices import notice
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ReaderStats
from headrace.tables import READER, documented, signature

__all__ = ["ReadBatch", "Reader", "ReaderOptions"]

ReadBatch = _headrace.ReadBatch

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: After how many seconds without an entry it is said that a call cannot be interrupted.
_QUIET: Final = 10.0


class ReaderOptions(TypedDict, total=False):
    """The keyword arguments of `Reader`, for functions that pass them on; `Reader` documents each."""

    start: str | datetime
    end: str | datetime | None
    reverse: bool
    limit: int | None
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


class Reader(_headrace.Reader):
    """Reads entries of streams by position, without a consumer group.

    ```python
    with Reader(Endpoint(host="localhost", stream_key="order-events"), end="latest") as reader:
        for batch in reader:
            rows = [(entry.id, entry["payload"]) for entry in batch]
            save(rows, batch.position)  # in one transaction
    ```

    A batch holds entries of one stream, in the order of their IDs, one row each unless `unpack` is given. It is a
    sequence of `Entry` objects, and an Arrow record batch for pyarrow, polars, DuckDB and others. Nothing changes on
    the server: `ReadBatch.position` is a short text that states the reader's position after the batch, in all its
    streams. Store it with the rows, in the same transaction: a reader that starts there reads what follows, and a crash
    neither loses nor duplicates rows.

    With `end`, `limit` or `reverse`, the reader itself is an Arrow stream: `pa.table(reader)`,
    `polars.DataFrame(reader)`.

    **Loss.** Entries that are trimmed before they are read are counted, by means of the server's own count of all
    entries ever added (Redis 7.0 and later, Valkey). By default `DataLossError` is raised after the last batch before
    the gap. A stream that was deleted and recreated, or whose server lost its latest entries, raises
    `StreamReplacedError`.

    **Threads and processes.** A reader serves one caller at a time. The GIL is released while a call waits; Ctrl-C is
    noticed within 0.1 s. After a fork the child continues to read over a connection of its own.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: the stream of the endpoint, or its shards.
        schema: The fields that become columns, with their types: a mapping such as
            `{"id": "int64", "at": "timestamp[us, UTC]", "total": "decimal(9, 2)"}`, whose type names are those that
            pyarrow prints (docs/reading.md#types), or an Arrow schema of pyarrow or another library. Each of its fields
            is the entry's field of that name, read from the text that `Dispatcher` writes for the type; with `unpack`,
            the column of that name in the payloads. Mutually exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
        ConnectionFailedError: The server could not be reached.
        CommandError: The server refused a command.
    """

    _endpoint: Endpoint
    _streams: list[bytes]
    _ends: bool
    _is_reverse: bool
    _was_quiet: bool
    _error: BaseException | None = None

    def __new__(  # noqa: D102, see the class
        cls,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Self:
        given = resolved({**options})
        is_reverse = given.get("reverse") is True
        for name, is_last in (("start", False), ("end", True)):
            if isinstance(moment := given.get(name), datetime):
                given[name] = _milliseconds(name, moment, is_last=is_last != is_reverse)
        check_schema(schema)
        keys = stream_keys(streams)
        self = super().__new__(cls, endpoint, keys, given, schema)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._was_quiet = False
        self._is_reverse = is_reverse
        self._ends = is_reverse or any(given.get(name) is not None for name in ("end", "limit"))
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that entries are read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of the streams, without those that were dropped."""
        return self._streams.copy()

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the last table that was made of this reader, or None.

        An Arrow library raises an exception of its own, which has only the text of this one.
        """
        return self._error

    if not TYPE_CHECKING:  # a type checker refuses `async for` by itself

        def __aiter__(self) -> NoReturn:
            raise TypeError("a Reader needs `for`; docs/reading.md#on-an-event-loop reads it in a thread")

    def __iter__(self) -> Iterator[ReadBatch]:
        return self

    def __next__(self) -> ReadBatch:
        if (batch := self.read()) is None:
            raise StopIteration
        return batch

    def read(self, timeout: float | None = None) -> ReadBatch | None:
        """Return the next batch, or None after `timeout` seconds or once everything was read.

        Default None: wait for as long as it takes. `is_finished` distinguishes the two reasons for None.

        Raises:
            DataLossError: Entries were trimmed before they were read, and `on_loss` is `"fail"`.
            FieldError: A value does not fit its column or a payload cannot be unpacked, and `on_bad_field` is `"fail"`.
            StreamReplacedError: A stream is not the one that was read before. The next call continues with the others.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command. The next call continues. If it refused to let one of the streams
                be read, that is the attribute `stream`, and the others continue.
            ClosedError: The reader is closed.
        """
        if timeout is None and not self._ends and not self._was_quiet and _is_in_other_thread():
            if (batch := super().read(_QUIET)) is not None or self.is_finished:
                return batch
            self._was_quiet = True
            notice(
                f"{self!r}: read() has waited for {_QUIET:.0f} s, and nothing but an entry ends it in this thread, not "
                "even the end of the program; read(timeout=) does (docs/reading.md#on-an-event-loop)"
            )
        return super().read(timeout)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all remaining batches as a `PyCapsule` of the Arrow C stream interface.

        If a batch cannot be read, the library that reads them raises an exception of its own, and `error` has the one
        that `read` would have raised.

        Raises:
            ConfigError: The reader follows its streams: the export would never end.
            SchemaError: The first entry determines the columns, and there is none.
        """
        if not self._ends:
            msg = (
                "a reader that follows its streams never ends, so it is not a table: give it end='latest', another end "
                "or limit=, or read batch by batch"
            )
            raise ConfigError(msg, option="end")
        self._error = None
        return super().__arrow_c_stream__(requested_schema)

    def _doubt(self, text: str, /) -> None:
        warnings.warn(text, RuntimeWarning, stacklevel=3)  # at the line that reads

    def _notice(self, text: str, /) -> None:
        notice(text)

    def drop_stream(self, stream: str | bytes) -> None:
        """Stop reading one of the streams, for good, and continue with the others.

        Batches of it that `read` has not returned are dropped, and positions no longer contain it: a reader that starts
        at one is created without it.

        Raises:
            ConfigError: The reader has no such stream.
        """
        key = key_bytes(stream)
        super().drop_stream(key)
        self._streams.remove(key)

    def stats(self) -> ReaderStats:
        """Return the counters of this reader since its creation. Any thread may call this, at any time."""
        return ReaderStats(**self.counters.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        last = self._last_entry(self._streams[0]) if len(self._streams) == 1 else None
        place = "" if last is None else f", {'before' if self._is_reverse else 'after'} {last}"
        return f"<Reader: {shown_streams(self._streams, self._endpoint)}{place}>"


def check_schema(schema: object) -> None:
    """Raise unless the schema is an Arrow schema, a mapping from names to names of types, or None."""
    if schema is None or hasattr(schema, "__arrow_c_schema__"):
        return
    if not isinstance(schema, Mapping):
        allowed = "an Arrow schema, or a mapping such as {'id': 'int64', 'total': 'decimal(9, 2)'}"
        raise ConfigError(f"schema must be {allowed}, got {schema!r}", option="schema")
    for name, text in schema.items():
        if not isinstance(name, str) or not isinstance(text, str):
            message = f"schema must map names of fields to names of types, such as 'int64', got {text!r} for {name!r}"
            raise ConfigError(message, option="schema")


def stream_keys(streams: Iterable[object] | None) -> list[bytes]:
    """Return the keys as bytes; an empty list if none were given."""
    if streams is None:
        return []
    if isinstance(streams, str | bytes):
        raise ConfigError(f"streams must be a sequence of keys, got {streams!r}: write [{streams!r}]", option="streams")
    keys = []
    for key in streams:
        if not isinstance(key, str | bytes) or not key:
            raise ConfigError(f"streams must be keys, non-empty str or bytes, got {key!r}", option="streams")
        keys.append(key_bytes(key))
    if not keys:
        raise ConfigError("streams must have at least one key, got none", option="streams")
    return keys


def shown_streams(keys: list[bytes], endpoint: Endpoint) -> str:
    """Return the keys and their server for a repr."""
    if not keys:
        return f"no stream of {endpoint._server()}"
    return f"{'stream' if len(keys) == 1 else 'streams'} {_headrace.shown_names(keys)} of {endpoint._server()}"


def _is_in_other_thread() -> bool:
    """Whether this is not the main thread, which alone Ctrl-C interrupts."""
    threading = sys.modules.get("threading")  # without its import there is one thread
    return threading is not None and threading.current_thread() is not threading.main_thread()


def key_bytes(key: str | bytes) -> bytes:
    """Return the key as bytes; text is encoded as UTF-8."""
    return key.encode() if isinstance(key, str) else key


def _milliseconds(option: str, moment: datetime, *, is_last: bool) -> str:
    """Return a moment in milliseconds: the first one that is not before it, or the last one that is not after it."""
    if moment.tzinfo is None:
        raise ConfigError(f"{option} must have a time zone, got {moment!r}", option=option)
    whole, rest = divmod(moment - _EPOCH, _MILLISECOND)
    if whole < 0:
        raise ConfigError(f"{option} must not be before 1970, got {moment!r}", option=option)
    return str(whole if is_last or not rest else whole + 1)


Reader.__doc__ = documented(Reader.__doc__, READER)
Reader.__signature__ = signature(Reader, READER.values())  # type: ignore[attr-defined]
