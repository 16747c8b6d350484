"""The consumer for asyncio: entries of streams as Arrow record batches, through a consumer group, on an event loop."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Self, Unpack

from headrace import _headrace
from headrace._headrace import ConsumerBatch
from headrace.consumer_base import ConsumerBase, ConsumerOptions
from headrace.endpoint import Endpoint
from headrace.errors import ClosedError
from headrace.event_loop import OneCall, Socket
from headrace.run_options import OnError, Per, RunOptions
from headrace.stats import ReadReport
from headrace.tables import CONSUMER, documented, signature

__all__ = ["AsyncConsumer"]

#: How many seconds the end of a block takes at most after an exception.
_CLOSE_AFTER_EXCEPTION = 5.0


class AsyncConsumer(OneCall, ConsumerBase):
    """Reads entries of streams through a consumer group on an asyncio event loop.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    async with AsyncConsumer(endpoint, group="billing", consumer="pod-3") as consumer:
        async for batch in consumer:
            rows = [(entry.stream, entry.id, entry["payload"]) for entry in batch]
            await save(rows)  # with (stream, id) as its key: an entry may come twice
            consumer.ack(batch)
    ```

    It has the options, batches, leases, reports and guarantees of a `Consumer`, but its calls never block the loop. It
    works on asyncio's own loop and on uvloop, and uses no thread except to look up host names, passwords and files.

    **Leases.** The loop renews them, also while no call waits. A loop that is blocked for half of `min_idle` renews too
    late: a warning in the log says for how long it was blocked, and `ConsumerBatch.check` raises `LeaseLostError` once
    other consumers may have taken the entries over.

    **Cancellation.** A call that is cancelled, by a timeout for example, takes nothing: the next call returns what it
    would have returned.

    **Closing.** The end of `async with` sends outstanding acknowledgements, and gives all other entries back, also if a
    cancellation caused it, or comes while it waits. After an exception the other entries stay pending. The end takes at
    most 10 s; after an exception or a cancellation, 5 s.

    **Loops and processes.** The first call binds the consumer to the running loop. Calls from another loop, or in a
    forked process, raise `StateError`. One task at a time may poll, flush or close; `ack`, `fail`, `release` and `stop`
    may be called at any time, because they do not wait.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: the stream of the endpoint, or its shards.
        schema: The fields that become columns, with their types, as for `Consumer`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    _kind = "consumer"
    _opens = False
    _advice = "it delivers them again: await flush(), or use `async with AsyncConsumer(…) as consumer:`"

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        OneCall.__init__(self)
        ConsumerBase.__init__(self, endpoint, streams, schema=schema, **options)

    async def poll(self, timeout: float | None = None) -> ConsumerBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes. The first call connects, unless `async with` did; the timeout begins
        after that.

        Raises:
            FieldError: A value does not fit its column, and `on_bad_field` is `"fail"`. The entry stays pending until
                `ack_ids`, `fail_ids` or `release_ids` settles it.
            GroupMissingError: The group or its stream was deleted. The next call continues with the other streams.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command, perhaps one of an earlier `ack`, `fail` or `release`. The
                entries stay pending. The next call continues, with the other streams if it refused to let one be read.
            ConcurrentUseError: Another task polls or flushes.
            ClosedError: The consumer is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        self._enter()
        if not self._is_open:
            await self._open()
        self._warn()
        self._native.begin_poll(timeout)
        await self._over()
        # Nothing can cancel the call from here on.
        return self._native.take_batch()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerBatch:
        if (batch := await self.poll()) is None:
            raise StopAsyncIteration
        return batch

    async def flush(self, timeout: float | None = None) -> ReadReport:
        """Wait until the server has processed every `ack`, `fail` and `release`, and return the counts so far.

        If `timeout` seconds pass first, `ReadReport.pending` may include entries that it has not processed yet. The
        timeout also ends an attempt to connect.
        """
        self._enter()
        if not self._is_open:
            await self._open()
        self._native.begin_flush(timeout)
        await self._over()
        return ReadReport(**self._native.take_report())

    async def close(self, timeout: float = 10.0, *, release: bool = True) -> ReadReport:
        """Close the consumer, and return the counts. A call that waits in another task raises `ClosedError`.

        Outstanding acknowledgements, failures and releases are sent. With `release`, all other entries go back to the
        group. What is not done after `timeout` seconds, or because the server is away, stays pending, for a consumer of
        this name or, after `min_idle`, for any: see `ReadReport.pending` and `ReadReport.unknown`.

        A cancellation is raised once that is done. A second one ends it.

        Raises:
            CommandError: The server refused an acknowledgement, a failure or a release.
            GroupMissingError: The group or its stream was deleted.
        """
        if self._is_closed or self._is_closing:
            return self.report()
        if get_running_loop() is not self._loop:
            self._bind()
        if self._waiter is not None and not self._waiter.done():
            self._native.interrupt()
            self._waiter.set_exception(ClosedError("the consumer was closed by another task"))
        self._native.begin_close(release, timeout)
        self._loop = None
        try:
            await self._over(bears_cancellation=True)
            return ReadReport(**self._native.take_report())
        finally:
            self._is_closed = True
            self._watch.end()

    async def run(
        self,
        handle: Callable[[Any], Awaitable[object]],
        *,
        per: Per = "batch",
        key_field: str | bytes | None = None,
        concurrency: int = 8,
        timeout: float | None = None,
        on_error: OnError = "fail",
        grace: float = 10.0,
    ) -> ReadReport:
        """Call a coroutine function for what is read, until `stop`, SIGTERM or SIGINT, and return the counts.

        ```python
        async def handle(entry):
            await save(entry.stream, entry.id, entry["payload"])

        async with AsyncConsumer(endpoint, group="billing", consumer="pod-3") as consumer:
            await consumer.run(handle, per="entry", concurrency=64, timeout=30)
        ```

        A call that returns None acknowledges its entries, an exception fails them. Before that the handler may itself
        call `ack`, `fail` or `release` for single entries: the end of the call decides on the others. No call begins
        once other consumers may have taken its entries over (see `ConsumerBatch.check`): those are given back.

        **The end.** After `stop` or a signal nothing more is read, and no call begins. Calls that run may go on for
        `grace` seconds, or until a second signal, and are cancelled then. All other entries are given back, and the
        server is waited for, for at most 10 s. The same follows an error of reading, which is raised then. If `run` is
        cancelled, its calls are cancelled immediately. Signals count in the main thread, if the program has no handler
        of its own for them, as a web server has: let that call `stop`.

        **Memory.** More is read while fewer than `concurrency` pieces wait for a call, a piece being what a call gets:
        so at most about twice `concurrency` are in hand, and the rest of a batch. Pieces that wait for another one of
        their key count too.

        Args:
            handle: Called with a `ConsumerBatch`, an `Entry`, or a list of entries, in a task of its own. It must
                return None: anything else ends the run by a `TypeError`, and its entries are given back.
            per: `"batch"`; `"entry"`; or `"key"`: entries of a batch that have the same value of `key_field`, in their
                order, at most 250 of them. One call at a time has entries of a key, and they come in the order of
                the stream, over batches and streams; but entries that failed come again after later ones. Entries
                without the field are handled alone, in any order.
            key_field: The field with the key, of the type of the names (`names`), for `per="key"`.
            concurrency: The number of calls at a time, from 1 to 10,000.
            timeout: Seconds, at most 86,400, after which a call is cancelled and counts as failed. A handler that
                catches its cancellation keeps its place until it returns. Default None: no limit.
            on_error: What an exception does with the entries of its call: `"fail"`, with its type and text as the
                reason, at most 200 characters, in which `***` replaces user and password of a URL, values named as
                passwords, and the passwords of the endpoint that it was given or has from a variable; `"release"`; or
                `"stop"`: they are given back, and the run ends and raises the exception. `SystemExit` and
                `KeyboardInterrupt` always do the last.
            grace: Seconds, from 0 to 86,400. What runs after that is cancelled, waited for, for at most 5 s, and its
                entries are given back.

        Raises:
            ConfigError: An option is invalid, `handle` is not a function, or the consumer has `ack="none"`.
            TypeError: `handle` is no coroutine function, or has returned something.
            ConcurrentUseError: The consumer is in use by another `run` or `poll`.
            ClosedError: The consumer is closed.
            StateError: The call is made on another event loop or in a forked process.
            ConnectionFailedError, CommandError, GroupMissingError, FieldError: As for `poll`.
        """
        options = RunOptions(per, key_field, concurrency, timeout, on_error, grace)
        from headrace.consumer_pieces import ConsumerPieces
        from headrace.run_tasks import TaskRun

        with self._only_run():
            report: ReadReport = await TaskRun(self, ConsumerPieces(self, options), handle, options).run()
        return report

    def stop(self) -> None:
        """End the loop: `poll` returns None immediately. Can be called from any thread and from a signal handler."""
        super().stop()
        self._go_on_soon(from_handler=True)
        if (on_stop := self._on_stop) is not None:
            on_stop()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
        else:
            # A task that was cancelled did not fail at its entries.
            await self.close(_CLOSE_AFTER_EXCEPTION, release=isinstance(exc, asyncio.CancelledError))

    async def _open(self) -> None:
        self._native.begin_open()
        await self._over()
        self._native.take_opened()
        self._is_open = True

    def _step(self) -> tuple[bool, list[Socket], float | None]:
        return self._native.advance()

    def _interrupt(self) -> None:
        self._native.interrupt()

    def __del__(self) -> None:
        ConsumerBase.__del__(self)
        OneCall.__del__(self)

    def _drop(self) -> None:
        self._native.interrupt()
        self._native.begin_close(False, 0)
        self._native.advance()
        self._native.interrupt()

    def _decided(self) -> None:
        # The keeper sends the decision later, unless it sleeps: another thread cannot ask while a call goes on.
        if self._bound is not None and (get_ident() != self._thread or self._native.is_woken):
            self._go_on_soon()


AsyncConsumer.__doc__ = documented(AsyncConsumer.__doc__, CONSUMER)
AsyncConsumer.__signature__ = signature(AsyncConsumer, CONSUMER.values(), required=("group", "consumer"))  # type: ignore[attr-defined]
