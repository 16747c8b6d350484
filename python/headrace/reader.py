"""The reader: entries of streams as Arrow record batches, by position."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

from headrace import _headrace
from headrace.errors import ConfigError
from headrace.notices import notice
from headrace.reader_base import ReaderBase, ReaderOptions
from headrace.tables import READER, documented, signature

__all__ = ["ReadBatch", "Reader", "ReaderOptions"]

ReadBatch = _headrace.ReadBatch

#: After how many seconds without an entry it is said that a call cannot be interrupted.
_QUIET: Final = 10.0


class Reader(ReaderBase):
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

    _was_quiet = False
    _error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the last table that was made of this reader, or None.

        An Arrow library raises an exception of its own, which has only the text of this one.
        """
        return self._error

    if not TYPE_CHECKING:  # a type checker refuses `async for` by itself

        def __aiter__(self) -> NoReturn:
            raise TypeError("a Reader needs `for`; an AsyncReader is read with `async for` (docs/async.md#reading)")

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
            if (batch := super().read(_QUIET)) is not None or self.is_finished or self._is_stopped:
                return batch
            self._was_quiet = True
            notice(
                f"{self!r}: read() has waited for {_QUIET:.0f} s, and nothing but an entry ends it in this thread, not "
                "even the end of the program; read(timeout=) and stop() do (docs/reading.md#on-an-event-loop)"
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_in_other_thread() -> bool:
    """Whether this is not the main thread, which alone Ctrl-C interrupts."""
    threading = sys.modules.get("threading")  # without its import there is one thread
    return threading is not None and threading.current_thread() is not threading.main_thread()


Reader.__doc__ = documented(Reader.__doc__, READER)
Reader.__signature__ = signature(Reader, READER.values())  # type: ignore[attr-defined]
