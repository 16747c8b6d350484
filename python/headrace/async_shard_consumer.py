"""The shard consumer for asyncio: the entries of streams in order, each stream with one owner, on an event loop."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack

from headrace import _headrace
from headrace._headrace import ShardBatch
from headrace.endpoint import Endpoint
from headrace.errors import ClosedError
from headrace.event_loop import OneCall, Socket
from headrace.run_options import OnShardError, Per, RunOptions
from headrace.shard_consumer_base import OnStreams, ShardConsumerBase, ShardConsumerOptions
from headrace.stats import ShardReport
from headrace.tables import SHARD_CONSUMER, documented, signature

__all__ = ["AsyncShardConsumer"]

#: How many seconds the end of a block takes at most after an exception.
_CLOSE_AFTER_EXCEPTION = 5.0


class AsyncShardConsumer(OneCall, ShardConsumerBase):
    """Reads streams as a member of a group in which each stream has one owner, on an asyncio event loop.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events", shards=12)
    async with AsyncShardConsumer(endpoint, group="billing", member="pod-3") as consumer:
        async for batch in consumer:
            await save([(entry.stream, entry.id, entry["payload"]) for entry in batch])
            consumer.commit(batch)
    ```

    It has the options, batches, leases, reports and guarantees of a `ShardConsumer`, but its calls never block the
    loop. It works on asyncio's own loop and on uvloop, and uses no thread except to look up host names, passwords and
    files.

    **Leases.** The loop renews them, also while no call waits. A loop that is blocked for half of `lease` renews too
    late: a warning in the log says for how long it was blocked, and `ShardBatch.check` raises `LeaseLostError` once
    other members may own its streams.

    **Cancellation.** A call that is cancelled, by a timeout for example, takes nothing: the next call returns what it
    would have returned.

    **Closing.** The end of `async with` sends commits and gives the streams up, also if a cancellation caused it, or
    comes while it waits. It takes at most 10 s; after an exception or a cancellation, 5 s.

    **Loops and processes.** The first call binds the consumer to the running loop. Calls from another loop, or in a
    forked process, raise `StateError`. One task at a time may poll, flush or close; `commit` and `stop` may be called
    at any time, because they do not wait.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes, the same for all members of the group. Default: the stream of
            the endpoint, or its shards.
        on_assigned: Called with the keys of streams that this member has got, before their first batch, in the
            call that polls. An exception ends that call.
        on_revoked: Called with the keys of streams that it gives up or has lost, in the call that polls: commit what
            is done.
        schema: The fields that become columns, with their types, as for `Reader`. Mutually exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    _kind = "consumer"
    _opens = False
    _advice = "the next owner gets them again: await flush(), or use `async with AsyncShardConsumer(…) as consumer:`"

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
        OneCall.__init__(self)
        ShardConsumerBase.__init__(
            self, endpoint, streams, on_assigned=on_assigned, on_revoked=on_revoked, schema=schema, **options
        )

    async def poll(self, timeout: float | None = None) -> ShardBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes. A member without a stream waits until it gets one. The first call
        connects, unless `async with` did; the timeout begins after that.

        Raises:
            DataLossError, FieldError, StreamReplacedError, ConnectionFailedError, CommandError: As for `ShardConsumer`.
            ConcurrentUseError: Another task polls or flushes.
            ClosedError: The consumer is closed.
            StateError: The call is made on another event loop or in a forked process, or another process uses the name
                of the member.
        """
        self._enter()
        if not self._is_open:
            await self._open()
        ends = None if timeout is None else monotonic() + timeout
        while True:
            self._native.begin_poll(timeout)
            await self._over()
            # Nothing can cancel the call from here on, unless it continues.
            what, value = self._native.take_polled()
            if what == "batch":
                return value  # type: ignore[no-any-return]
            if what == "nothing":
                return None
            if (call := self._calls[what]) is not None:
                call(value)
            if ends is not None:
                timeout = max(0.0, ends - monotonic())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShardBatch:
        if (batch := await self.poll()) is None:
            raise StopAsyncIteration
        return batch

    async def flush(self, timeout: float | None = None) -> ShardReport:
        """Wait until the server has processed every commit, for at most `timeout` seconds, and return the counts.

        Raises:
            CommandError: The server refused a commit. It is tried again.
            ConnectionFailedError: The server could not be reached.
        """
        self._enter()
        if not self._is_open:
            await self._open()
        self._native.begin_flush(timeout)
        await self._over()
        return ShardReport(**self._native.take_report())

    async def close(self, timeout: float = 10.0) -> ShardReport:
        """Close the consumer, and return the counts. A call that waits in another task raises `ClosedError`.

        Commits are sent, and all streams are given up, so that other members have them immediately. If that is not
        possible within `timeout` seconds, they have them when the leases end: see `ShardReport.unknown`.

        A cancellation is raised once that is done. A second one ends it.

        Raises:
            CommandError: The server refused a commit.
        """
        if self._is_closed or self._is_closing:
            return self.report()
        if get_running_loop() is not self._loop:
            self._bind()
        if self._waiter is not None and not self._waiter.done():
            self._native.interrupt()
            self._waiter.set_exception(ClosedError("the consumer was closed by another task"))
        self._native.begin_close(timeout)
        self._loop = None
        try:
            await self._over(bears_cancellation=True)
            return ShardReport(**self._native.take_report())
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
        on_error: OnShardError = "fail",
        grace: float = 10.0,
    ) -> ShardReport:
        """Call a coroutine function for what is read, until `stop`, SIGTERM or SIGINT, and return the counts.

        ```python
        async def handle(entries):
            for entry in entries:
                await save(entry.stream, entry.id, entry["payload"])

        async with AsyncShardConsumer(endpoint, group="billing", member="pod-3") as consumer:
            await consumer.run(handle, per="key", key_field="customer", concurrency=64, timeout=30)
        ```

        **Commits.** A call that returns None commits its entries, as soon as everything before them in their stream is
        done. The handler itself calls neither `commit` nor `fail`.

        **Failures.** After an exception no call of the stream begins any more, except with what comes before. When all
        have ended, what is before is committed, and `fail` is called with the entry or the batch: the stream comes
        again from there on, and with `per="key"` what was done after it comes twice. Entries of a call that fails with
        several are handled again one by one before that. Other streams go on.

        **Leases.** No call begins once another member may own the stream (see `ShardBatch.check`): it gets what is not
        committed. What is in hand of a stream that is given up is handled, as long as its lease lasts.

        **The end.** After `stop` or a signal nothing more is read, and no call begins. Calls that run may go on for
        `grace` seconds, or until a second signal, and are cancelled then; the server is waited for, for at most 10 s.
        What is not done by then is not committed. The same follows an error of reading, which is raised then. If `run`
        is cancelled, its calls are cancelled immediately. After it the consumer returns nothing more: close it, and the
        streams come again from the last commits. Signals count in the main thread, if the program has no handler of
        its own for them, as a web server has: let that call `stop`.

        **Memory.** What was read and is not committed is at most twice `concurrency` batches, or 100 times as many
        entries if batches are small: so a call that hangs holds up all streams in the end, unless there is a `timeout`.

        Args:
            handle: Called with a `ShardBatch`, an `Entry`, or a list of entries, in a task of its own. It must return
                None: anything else ends the run by a `TypeError`.
            per: `"batch"`; `"entry"`; or `"key"`: entries of a batch that have the same value of `key_field`, in their
                order, at most 250 of them. Batches and entries of a stream are handled one after the other, with
                `"key"` those of each key. An entry without the field is handled alone in its stream: after all
                before it, and before all after it. Streams do not wait for each other.
            key_field: The field with the key, of the type of the names (`names`), for `per="key"`.
            concurrency: The number of calls at a time, from 1 to 10,000.
            timeout: Seconds, at most 86,400, after which a call is cancelled and counts as failed. A handler that
                catches its cancellation keeps its place, and its stream waits, until it returns. Default None: no
                limit.
            on_error: What follows an exception: `"fail"`: see above, with its type and text as the reason, at most 200
                characters, in which `***` replaces user and password of a URL, values named as passwords, and the
                passwords of the endpoint that it was given or has from a variable; or `"stop"`: the run ends and
                raises the exception. `SystemExit` and `KeyboardInterrupt` always do the last.
            grace: Seconds, from 0 to 86,400. What runs after that is cancelled, and waited for, for at most 5 s.

        Raises:
            ConfigError: An option is invalid, or `handle` is not a function.
            TypeError: `handle` is no coroutine function, or has returned something.
            ConcurrentUseError: The consumer is in use by another `run` or `poll`.
            ClosedError: The consumer is closed.
            StateError: The call is made on another event loop or in a forked process, or the consumer has run before.
            DataLossError, FieldError, StreamReplacedError, ConnectionFailedError, CommandError: As for `poll`.
        """
        options = RunOptions(per, key_field, concurrency, timeout, on_error, grace, ("fail", "stop"))
        from headrace.run_tasks import TaskRun
        from headrace.shard_pieces import ShardPieces

        with self._only_run():
            report: ShardReport = await TaskRun(self, ShardPieces(self, options), handle, options).run()
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
            await self.close(_CLOSE_AFTER_EXCEPTION)

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
        ShardConsumerBase.__del__(self)
        OneCall.__del__(self)

    def _drop(self) -> None:
        self._native.interrupt()
        self._native.begin_close(0)
        self._native.advance()
        self._native.interrupt()

    def _committed(self) -> None:
        # Another thread cannot ask while a call goes on.
        if self._bound is not None and (get_ident() != self._thread or self._native.is_woken):
            self._go_on_soon()


AsyncShardConsumer.__doc__ = documented(AsyncShardConsumer.__doc__, SHARD_CONSUMER)
AsyncShardConsumer.__signature__ = signature(  # type: ignore[attr-defined]
    AsyncShardConsumer, SHARD_CONSUMER.values(), required=("group", "member")
)
