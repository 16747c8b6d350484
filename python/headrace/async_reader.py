"""The reader for asyncio: entries of streams as Arrow record batches, by position, on an event loop."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn, Self, Unpack

from headrace import _headrace
from headrace._headrace import ReadBatch
from headrace.endpoint import Endpoint
from headrace.errors import ClosedError
from headrace.event_loop import OneCall, Socket
from headrace.reader_base import ReaderBase, ReaderOptions
from headrace.tables import READER, documented, signature

__all__ = ["AsyncReader"]


class AsyncReader(OneCall, ReaderBase):
    """Reads entries of streams by position on an asyncio event loop, without a consumer group.

    ```python
    async with AsyncReader(Endpoint(host="localhost", stream_key="order-events"), end="latest") as reader:
        async for batch in reader:
            rows = [(entry.id, entry["payload"]) for entry in batch]
            await save(rows, batch.position)  # in one transaction
    ```

    It has the options, batches, positions and guarantees of a `Reader`, but its calls never block the loop. It works on
    asyncio's own loop and on uvloop, and uses no thread except to look up host names, passwords and files.

    **Cancellation.** A call that is cancelled, by a timeout for example, takes nothing: the next call returns what it
    would have returned, and `position` is that of the batches that calls returned.

    **Loops and processes.** The first call binds the reader to the running loop. Calls from another loop, or in a
    forked process, raise `StateError`. One task at a time may read.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: the stream of the endpoint, or its shards.
        schema: The fields that become columns, with their types, as for `Reader`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    _kind = "reader"
    _opens = False

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ReaderOptions],
    ) -> None:
        del endpoint, streams, schema, options  # `__new__` takes them
        super().__init__()

    async def read(self, timeout: float | None = None) -> ReadBatch | None:  # type: ignore[override]
        """Return the next batch, or None after `timeout` seconds, once everything was read, or once `stop` was called.

        Default None: wait for as long as it takes. `is_finished` tells that everything was read. The first call
        connects, unless `async with` did; the timeout begins after that.

        Raises:
            DataLossError: Entries were trimmed before they were read, and `on_loss` is `"fail"`.
            FieldError: A value does not fit its column or a payload cannot be unpacked, and `on_bad_field` is `"fail"`.
            StreamReplacedError: A stream is not the one that was read before. The next call continues with the others.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command. The next call continues. If it refused to let one of the streams
                be read, that is the attribute `stream`, and the others continue.
            ConcurrentUseError: Another task reads.
            ClosedError: The reader is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        self._enter()
        if not self._is_open:
            await self._open()
        self._begin_wait(timeout)
        await self._over()
        # Nothing can cancel the call from here on.
        self._take_done()
        return self._take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadBatch:
        if (batch := await self.read()) is None:
            raise StopAsyncIteration
        return batch

    def stop(self) -> None:
        """End the loop: `read` returns None. Can be called from any thread and from a signal handler."""
        super().stop()
        self._go_on_soon(from_handler=True)

    async def close(self) -> None:  # type: ignore[override]
        """Close the connections. A call that waits in another task raises `ClosedError`. A second call does nothing."""
        if self._is_closed:
            return
        if get_running_loop() is not self._loop:
            self._bind()
        self._loop, self._is_closed = None, True
        self._watch.end()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(ClosedError("the reader was closed by another task"))
        super().close()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        self._begin_open()
        await self._over()
        self._take_done()
        self._is_open = True

    def _step(self) -> tuple[bool, list[Socket], float | None]:
        return self._advance()

    def _drop(self) -> None:
        super().close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> NoReturn:
        raise TypeError(
            "an AsyncReader is no table, which would be read without the event loop: `async for batch in reader`"
        )


AsyncReader.__doc__ = documented(AsyncReader.__doc__, READER)
AsyncReader.__signature__ = signature(AsyncReader, READER.values())  # type: ignore[attr-defined]
