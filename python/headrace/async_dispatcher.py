"""The dispatcher for asyncio: accepts messages on an event loop, and returns one outcome for each."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace import _headrace
from headrace._headrace import Delivered
from headrace.dispatcher import FLUSH_AFTER_EXCEPTION, DispatcherOptions
from headrace.dispatcher_base import DispatcherBase, describe_options
from headrace.endpoint import Endpoint
from headrace.errors import ClosedError, ConfigError, StateError
from headrace.event_loop import LoopWatch, OnLoop
from headrace.failure import Failure
from headrace.report import DeliveryReport, delivery_error, not_delivered
from headrace.retry import resolved
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace._headrace import _ArrowArray, _ArrowStream, _Bytes, _Fields, _Layout, _More

    _Future = asyncio.Future[Any]

__all__ = ["AsyncDispatcher"]

#: Cancelled tasks stay in the line until they are reached, or until there are more than this many of them and they make
#: up most of the line.
MOST_LEFT = 64


class _Turn:
    """A task in the line of tasks that wait for room."""

    __slots__ = ("future", "is_over", "take")

    def __init__(self, future: _Future, take: Callable[[], bool]) -> None:
        self.future = future
        #: Takes as much as there is room for, and returns whether that was all. None: the task was cancelled.
        self.take: Callable[[], bool] | None = take
        self.is_over = False


class AsyncDispatcher(OnLoop, DispatcherBase):
    """Sends messages to an endpoint on an asyncio event loop, and returns an outcome for each.

    ```python
    async with AsyncDispatcher(Endpoint(host="localhost", stream_key="order-events")) as dispatcher:
        delivered = await dispatcher.send(b'{"order_id": 123}')
        print(delivered.entry_id)
    ```

    It has the options, outcomes and guarantees of a `Dispatcher`, but its calls never block the loop. It works on
    asyncio's own loop and on uvloop, and uses no thread except to look up host names, passwords and files. All messages
    of one turn of the loop are sent together: tasks that each await one message share round trips.

    **Order.** Messages are accepted in the order of the calls. While the window is full, calls wait for room, and none
    overtakes another. If a call is cancelled before its message was accepted, the message is not sent; if it is
    cancelled later, the message is still sent, and its outcome is in the next report.

    **Outcomes.** `send` returns the outcome of its message or raises it. All other outcomes are in the report of
    `flush`. The end of `async with` raises the failures of reports that were not read. After an exception or a
    cancellation, it waits for outcomes for at most 5 s.

    **Loops and processes.** The first call binds the dispatcher to the running loop. Calls from another loop, or in a
    forked process, raise `StateError`. If the loop is closed while messages have no outcome, a
    `ForgottenWarning` states how many.

    **Exactly once.** With `exactly_once="script"` messages are safe against lost connections; `begin` is refused,
    because another run does not repeat the order in which tasks produce. After a failure, messages wait until all
    earlier ones have an outcome, and are then sent, as after `Dispatcher.skip_failed`. `"idmp"` needs
    `exactly_once_key="message_id"` and a message ID for each message.

    Args:
        endpoint: Where and how entries are stored.
        {options}
        retry: A `RetryPolicy` that states whether and when failed messages are sent again. Default None: never, unless
            `exactly_once` is on; it is then `RetryPolicy()`.
        trace_context: Whether each message, and each entry of a batch, gets the fields `traceparent` and `tracestate`
            of the current OpenTelemetry span, after its own. Without a span nothing is added; a field with one of these
            names is refused. Needs `pip install opentelemetry-api`. Default False.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    _kind = "dispatcher"
    _forgotten_text = (
        ", because their event loop ended, and may not have been sent: await flush(), or use `async with "
        "AsyncDispatcher(…) as dispatcher:`"
    )

    def __init__(
        self, endpoint: Endpoint, *, trace_context: bool = False, **options: Unpack[DispatcherOptions]
    ) -> None:
        super().__init__()
        self._native = _headrace.LoopDispatcher(endpoint, resolved({**options}))
        # Looked up once: each message needs them.
        self._produce = self._native.produce
        self._do_advance = self._native.advance
        self._watch: LoopWatch
        self._create_future: Callable[[], _Future]
        self._call_soon: Callable[..., object]
        #: One for each message of `send` that has no outcome yet, in order.
        self._futures: deque[_Future] = deque()
        #: The tasks that wait for room.
        self._line: deque[_Turn] = deque()
        #: How many of them were cancelled.
        self._left = 0
        #: How many messages must have an outcome, and the future that waits for it.
        self._flushes: deque[tuple[int, _Future]] = deque()
        self._is_scheduled = False
        #: Whether the last turn that sent had a single message, which a task awaits. The next one is then sent
        #: immediately; with several tasks that would split what one call sends for all of them.
        self._is_alone = False
        self._opened(endpoint)
        if trace_context is not False:
            from headrace.trace_context import trace

            trace(self, AsyncDispatcher, {**options}, is_on=trace_context)

    @property
    def closed(self) -> bool:
        """Whether the dispatcher accepts no more messages: it is closed, or waits for the last outcomes."""
        return self._is_closed

    async def send(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> Delivered:
        """Send one message, and wait for its outcome, which no report contains.

        If the call is cancelled before the message was accepted, the message is not sent; if it is cancelled later, the
        outcome is in the next report.

        Args:
            payload: Bytes-like, or a str that is sent as UTF-8, as for `Dispatcher.produce`.
            message_id: The caller's name for the message: a str of at most 16 KiB, or a 64-bit int. Default None: the
                message's ordinal since the last flush that left no message without an outcome.
            key: The key that selects the shard, if the endpoint has `shards`: bytes-like, or a str, which is read as
                UTF-8. Messages with equal keys go to the same shard, in order. Default None: the shards take turns.
            fields: As for `Dispatcher.produce`.
            stream_key: As for `Dispatcher.produce`.
            entry_id: As for `Dispatcher.produce`.

        Returns:
            The entry ID of the message, and whether an earlier attempt had written it.

        Raises:
            DeliveryError: The message was not delivered. `failures[0]` states why, and whether it may be in the stream.
            ConnectionFailedError: A `DeliveryError`: the server could not be reached, or the connection was lost.
            ConfigError: `key` was given, but the endpoint has no shards; or an argument that the options rule out.
            MessageError: An argument has the wrong type or is out of range, or a field has the name of the payload's
                field or of `ts`. Nothing was sent.
            ClosedError: The dispatcher is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        if get_running_loop() is not self._loop:
            self._bind()
        future = self._create_future()
        turn = None
        more = _more(fields, stream_key, entry_id)
        if not self._line and self._produce(payload, message_id, key, True, **more):
            self._futures.append(future)
            if not self._is_scheduled:
                if self._is_alone and len(self._futures) == 1:
                    return await self._send_alone(future, stream_key)
                self._is_scheduled = True
                self._call_soon(self._advance_soon)
        else:
            turn = self._wait(future, self._sender(future, payload, message_id, key, more))
        try:
            outcome = await future
        except BaseException:
            self._give_up(future, turn)
            raise
        if outcome.__class__ is Delivered:
            return outcome
        raise self._error(outcome, stream_key)

    async def produce(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> None:
        """Produce one message. Waits only for room in the window; the outcome is in the report of `flush`.

        Args:
            payload: As for `send`.
            message_id: As for `send`; the report contains it.
            key: As for `send`.
            fields: As for `Dispatcher.produce`.
            stream_key: As for `Dispatcher.produce`.
            entry_id: As for `Dispatcher.produce`.

        Raises:
            ConfigError: `key` was given, but the endpoint has no shards; or an argument that the options rule out.
            MessageError: An argument has the wrong type or is out of range, or a field has the name of the payload's
                field or of `ts`. Nothing was sent.
            ClosedError: The dispatcher is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        if get_running_loop() is not self._loop:
            self._bind()
        more = _more(fields, stream_key, entry_id)
        if not self._line and self._produce(payload, message_id, key, **more):
            self._schedule()
            return
        kept, kept_key, kept_more = _kept(payload), _kept(key), _kept_more(more)
        await self._in_line(lambda: self._produce(kept, message_id, kept_key, **kept_more))

    async def produce_batch(self, data: _ArrowArray | _ArrowStream, **layout: Unpack[_Layout]) -> None:
        """Produce every row of Arrow data as a message, about 1,024 in one turn of the loop.

        Waits for room in the window; the outcomes are in the report of `flush`. Messages that other tasks produce
        meanwhile are accepted after the last row. If the call is cancelled, the rows that were not accepted are not
        sent. A reader is read on the loop, one record batch at a time, and holds the loop up for as long as it takes.

        Args:
            data: A record batch, table or reader with an Arrow PyCapsule, as for `Dispatcher.produce_batch`.
            **layout: The keyword arguments of `Dispatcher.produce_batch`: `payload`, `fields`, `message_id` and others.

        Raises:
            ConfigError: `rows_per_entry` or `codec` is invalid, `shard_key` is given but the endpoint has no shards, or
                an argument is given that shards rule out; nothing was sent.
            SchemaError: A column does not exist or has a type that cannot be written, or arguments are mutually
                exclusive; nothing was sent.
            ReaderError: The reader failed, or its record batch is malformed: no row of that record batch was accepted,
                but all rows before it were.
            InternalError: A defect in headrace. Rows that were accepted have an outcome in the report.
            ClosedError: The dispatcher is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        if get_running_loop() is not self._loop:
            self._bind()
        batch = self._native.open_batch(data, **layout)
        await self._in_line(lambda: self._take_rows(batch))

    async def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for the outcomes of all messages so far, and return those that no report contains yet.

        The report does not contain outcomes that `send` returned or raised. If every message has an outcome, messages
        without an ID are numbered from 0 again.

        Args:
            timeout: Seconds to wait. Default None: as long as the server makes progress (at most `command_timeout`
                without any). After the timeout, messages without a reply fail as retryable `TIMEOUT`, including those
                accepted meanwhile, and the connection is replaced.

        Raises:
            ConfigError: The timeout is negative.
            ClosedError: The dispatcher is closed.
            StateError: The call is made on another event loop or in a forked process.
        """
        if timeout is not None and not timeout >= 0:
            message = f"timeout must be a number of seconds of at least 0, got {timeout}"
            raise ConfigError(message, option="timeout")
        if get_running_loop() is not self._loop:
            self._bind()
        await self._drain(timeout)
        if not self._line and not self._native.unsettled:
            self._native.end_batch(self._futures)
        return self._take_report()

    def begin(self, token: str, version: int = 0) -> None:
        """Begin a batch under a token, for `exactly_once="idmp"`: see `Dispatcher.begin`.

        Token and message ID together identify a message: another run that begins the same token writes only the
        messages that are missing. A batch has at most 1,048,576 messages.

        Args:
            token: 1 to 1,024 bytes of UTF-8.
            version: An integer from 0 to 2**53, which is part of the token.

        Raises:
            ConfigError: `exactly_once` is not `"idmp"`.
            MessageError: The token or the version has the wrong type or is out of range.
            StateError: Messages are still waiting for their outcomes: await `flush` first.
        """
        if self._line:
            raise StateError("messages wait for room: await flush before begin")
        self._native.begin(token, version)

    @property
    def counters(self) -> _headrace.Counters:
        """The counters so far; `stats` reads them."""
        return self._native.counters

    async def close(self) -> None:
        """Flush, then close the connection. A second call does nothing.

        Raises:
            DeliveryError: There are unhandled delivery failures.
        """
        if self._is_closed:
            return
        if get_running_loop() is not self._loop:
            self._bind()
        # From now on, calls from other tasks raise.
        self._loop = None
        self._is_closed = True
        try:
            await self._drain(None)
        except BaseException as error:
            error.add_note(f"headrace: closed with {counted(self._native.unsettled)} without an outcome")
            raise
        finally:
            self._shut()
        self._take_report()
        if unhandled := self._unread.take():
            raise delivery_error(unhandled)

    async def __aenter__(self) -> Self:
        if get_running_loop() is not self._loop:
            self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._close_after(error)

    async def _close_after(self, error: BaseException) -> None:
        """Close without hiding the exception that leaves the block: results become notes on it."""
        if self._is_closed:
            return
        self._loop = None
        self._is_closed = True
        try:
            await self._drain(FLUSH_AFTER_EXCEPTION)
        finally:
            self._shut()
        if len(report := self._take_report()):
            error.add_note(f"headrace: flushed after this exception: {report!r}")
        if unhandled := self._unread.take():
            error.add_note(f"headrace: unhandled delivery failures: {delivery_error(unhandled)}")

    def _forgotten(self) -> int | None:
        if self._is_closed or self._process != os.getpid():
            return None
        with contextlib.suppress(RuntimeError):  # a call panicked
            self._take_report()
        return self._native.unsettled + sum(not turn.future.done() for turn in self._line)

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = super()._bind()
        self._watch = LoopWatch(loop, self._advance)
        self._create_future = loop.create_future
        self._call_soon = loop.call_soon
        return loop

    # The line of tasks that wait for room.

    def _sender(
        self,
        future: _Future,
        payload: _Bytes | None,
        message_id: int | str | None,
        key: _Bytes | None,
        more: _More,
    ) -> Callable[[], bool]:
        kept, kept_key, kept_more = _kept(payload), _kept(key), _kept_more(more)

        def take() -> bool:
            if self._produce(kept, message_id, kept_key, True, **kept_more):
                self._futures.append(future)
                return True
            return False

        return take

    def _take_rows(self, batch: _headrace.LoopBatch) -> bool:
        taken = self._native.produce_rows(batch)
        if taken:
            # The remaining rows follow in another turn of the loop, so that other tasks run in between.
            self._schedule()
        return taken is None

    async def _in_line(self, take: Callable[[], bool]) -> None:
        """Wait until everything was accepted, after the tasks that are already in line."""
        future = self._create_future()

        def take_all() -> bool:
            if take():
                future.set_result(None)
                return True
            return False

        turn = self._wait(future, take_all)
        try:
            error = await future
        except BaseException:
            self._give_up(future, turn)
            raise
        if error is not None:
            raise error

    def _wait(self, future: _Future, take: Callable[[], bool]) -> _Turn:
        """Join the line."""
        turn = _Turn(future, take)
        self._line.append(turn)
        self._schedule()
        return turn

    def _serve(self) -> None:
        """Give the available room to the tasks in line, in their order."""
        line = self._line
        while line:
            turn = line[0]
            if turn.take is None or turn.future.done():
                self._left -= turn.take is None
            else:
                try:
                    if not turn.take():
                        return
                except Exception as error:
                    turn.future.set_result(error)
                self._schedule()
            line.popleft()
            turn.is_over = True

    async def _send_alone(self, future: _Future, stream_key: _Bytes | None) -> Delivered:
        """Send a message of this turn immediately, and wait for its outcome."""
        try:
            try:
                self._advance()
            except Exception as error:
                # It does not concern the task: the loop reports it, as it does for a callback.
                assert self._bound is not None
                self._bound.call_exception_handler({"message": "headrace: an error while sending", "exception": error})
            if future.done():  # other tasks must get their turn of the loop
                await asyncio.sleep(0)
            outcome = await future
        except BaseException:
            self._give_up(future, None)
            raise
        if outcome.__class__ is Delivered:
            return outcome
        raise self._error(outcome, stream_key)

    def _give_up(self, future: _Future, turn: _Turn | None) -> None:
        """Put into the next report what a cancelled task would have received."""
        if not future.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.cancel()
        elif not future.cancelled() and (outcome := future.result()) is not None:
            self._native.put_back(outcome)
        if turn is not None and not turn.is_over:
            # It may hold a large payload.
            turn.take = None
            self._left += 1
            if self._left > MOST_LEFT and 2 * self._left > len(self._line):
                self._line = deque(turn for turn in self._line if turn.take is not None)
                self._left = 0

    # What the loop calls, and when.

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._advance_soon)

    def _advance_soon(self) -> None:
        # Not if a socket was ready in the same turn and has already done so.
        if self._is_scheduled:
            self._advance()

    def _advance(self) -> None:
        """Send, receive, pass outcomes on and accept more, as far as that is possible without waiting."""
        if self._is_scheduled:
            self._is_scheduled = False
            self._is_alone = len(self._futures) == 1
        try:
            sockets, seconds, settled = self._do_advance(self._futures)
        except BaseException:
            # What it received is still there.
            self._schedule()
            raise
        if sockets is not None:
            self._watch.watch(sockets)
        if seconds is not None:
            if seconds > 0:
                self._watch.wake_in(seconds)
            else:
                self._schedule()
        if self._line:
            self._serve()
        if self._flushes:
            self._end_flushes(settled)

    # Flush and close.

    async def _drain(self, timeout: float | None) -> None:
        """Wait until all messages that were produced before have an outcome."""
        loop = self._bound
        assert loop is not None
        future = loop.create_future()
        turn = None
        if self._line:
            turn = self._wait(future, lambda: self._await_outcomes(future))
        else:
            self._await_outcomes(future)
        timer = None if timeout is None else loop.call_later(timeout, self._time_out, future)
        try:
            await future
        except BaseException:
            self._give_up(future, turn)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _take_report(self) -> DeliveryReport:
        return self._unread.add(self._native.report())

    def _await_outcomes(self, future: _Future) -> bool:
        if self._native.unsettled:
            self._flushes.append((self._native.taken, future))
            self._schedule()
        else:
            future.set_result(None)
        return True

    def _end_flushes(self, settled: int) -> None:
        flushes = self._flushes
        while flushes and (flushes[0][0] <= settled or flushes[0][1].done()):
            future = flushes.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _time_out(self, future: _Future) -> None:
        """End the wait of a flush."""
        if future.done():
            return
        if not self._is_closed:  # otherwise `_shut` does this
            # Before the descriptors are closed: uvloop aborts the process if one of them is still watched.
            self._watch.watch([])
            self._end_flushes(self._native.end_batch(self._futures))
            # Immediately: the closed descriptors may soon be reused by others.
            self._advance()
        if not future.done():
            future.set_result(None)

    def _shut(self) -> None:
        """Close the connection. Tasks that still wait for something receive an outcome or an error."""
        if self._bound is not None:
            self._watch.end()
        try:
            if self._native.unsettled:
                self._native.end_batch(self._futures)
        finally:
            self._native.close()
            self._is_scheduled = False
            for turn in self._line:
                turn.is_over = True
                if not turn.future.done():
                    turn.future.set_result(ClosedError("the dispatcher was closed before it accepted the message"))
            self._line.clear()
            for _, future in self._flushes:
                if not future.done():
                    future.set_result(None)
            self._flushes.clear()

    def _error(self, outcome: object, stream_key: _Bytes | None) -> BaseException:
        """Return the exception for what a call waited for."""
        if isinstance(outcome, _headrace.Undelivered):
            return not_delivered(Failure(*outcome.failure), self._endpoint, stream_key)
        assert isinstance(outcome, BaseException)
        return outcome


#: The arguments of a message that is a payload alone.
_NO_MORE: _More = {}


def _more(fields: _Fields | None, stream_key: _Bytes | None, entry_id: str | None) -> _More:
    if fields is None and stream_key is None and entry_id is None:
        return _NO_MORE
    return {"fields": fields, "stream_key": stream_key, "entry_id": entry_id}


def _kept(value: Any) -> Any:
    """Return the same bytes in a form that does not change while a call waits."""
    # A number of numpy has a buffer, but no length.
    if value is None or isinstance(value, bytes | str) or not hasattr(value, "__len__"):
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:  # the call that reads it raises the error
        return value


def _kept_more(more: _More) -> _More:
    """Return the same arguments in a form that does not change while a call waits."""
    if more is _NO_MORE:
        return more
    fields = more["fields"]
    kept = None if fields is None else _headrace.kept_fields(fields)
    return {**more, "fields": kept, "stream_key": _kept(more["stream_key"])}


describe_options(AsyncDispatcher, AsyncDispatcher.__init__)
