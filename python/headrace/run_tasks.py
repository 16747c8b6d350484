"""`AsyncConsumer.run` and `AsyncShardConsumer.run`: tasks of the loop call a handler for what the consumer reads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.handling import CLOSE_SECONDS, Handling
from headrace.notices import notice
from headrace.pieces import Piece, Pieces
from headrace.run_options import RunOptions
from headrace.stop_signals import signals_call

Handle = Callable[[Any], Awaitable[object]]
#: The exception of a call, and whether it is a mistake of the handler, whatever the entries.
_Result = tuple[BaseException | None, bool]
#: How many seconds calls may take to end after they were cancelled.
_CANCEL_SECONDS = 5.0


class TaskRun:
    """One `run` of a consumer."""

    def __init__(self, consumer: Any, pieces: Pieces[Any], handle: Handle, options: RunOptions) -> None:
        self._handling = Handling(consumer, pieces, handle, options)
        #: An `AsyncConsumer` or an `AsyncShardConsumer`, whose module imports this one.
        self._consumer: Any = consumer
        self._handle = handle
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[_Result], Piece] = {}
        self._polling: asyncio.Task[Any] | None = None
        #: Whether a poll was cancelled: the next one may return what it had read.
        self._may_hold = False
        #: The tasks that are over and not settled.
        self._done: list[asyncio.Task[Any]] = []
        self._changed = asyncio.Event()

    def _wake(self) -> None:
        """Look whether the consumer was stopped. Any thread and any signal handler may call it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def run(self) -> Any:
        """Call the handler until the consumer is stopped. Return its report."""
        handling = self._handling
        report = None
        self._consumer._on_stop = self._wake
        try:
            with signals_call(handling.signalled):
                try:
                    while not handling.is_over:
                        await self._step()
                except Exception as error:  # such as a key that cannot be compared
                    handling.end(error)
                await self._finish()
                await self._give_back()
                if handling.error is None:
                    report = await self._consumer.flush(CLOSE_SECONDS)
        finally:
            self._consumer._on_stop = None
            await self._give_back()
        handling.raise_error()
        return report

    async def _step(self) -> None:
        """Start calls, and wait until one is over or more was read."""
        while len(self._running) < self._options.concurrency and (piece := self._handling.next()) is not None:
            self._running[self._start(self._call(piece.given))] = piece
        pieces = self._handling.pieces
        if self._polling is None and self._may_hold and pieces.is_due:
            self._polling = self._start(self._consumer.poll(0))
        elif self._polling is None:
            self._handling.report_failures()
            if pieces.has_room:
                self._polling = self._start(self._consumer.poll())
        elif pieces.is_due and not self._may_hold:
            self._polling.cancel()
            self._may_hold = True
        await self._changed.wait()
        self._settle()

    def _start(self, coroutine: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._done.append(task)
        self._changed.set()

    async def _call(self, given: Any) -> _Result:
        """Call the handler."""
        limit = asyncio.timeout(self._options.timeout)
        try:
            async with limit:
                awaitable: Any = self._handle(given)
                if not inspect.isawaitable(awaitable):
                    taker = f"{self._handling.pieces.kind}.run"
                    message = f"handle must be a coroutine function, got {self._handle!r:.100}: {taker} takes it"
                    return TypeError(message), True
                result = await awaitable
            if limit.expired():  # the handler has caught its cancellation
                return self._handling.late(), False
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            return (self._handling.late() if limit.expired() else error), False
        finally:
            # It holds the task, whose result is the exception, whose traceback holds this frame.
            del limit
        if result is None:
            return None, False
        return self._handling.returned(result), True

    def _settle(self) -> None:
        """Acknowledge, fail or release the pieces of calls that are over, and take what was read."""
        self._changed.clear()
        done, self._done = self._done, []
        for task in done:
            if task is self._polling:
                self._polling = None
                if task.cancelled():
                    continue
                self._may_hold = False
                if (error := task.exception()) is not None:
                    self._handling.end(error)
                elif (batch := task.result()) is not None:
                    self._handling.pieces.add(batch)
            elif (piece := self._running.pop(task, None)) is not None:
                if task.cancelled():
                    self._handling.settle(piece, "release")
                    continue
                error, is_mistake = task.result()
                self._handling.over(piece, error, is_mistake=is_mistake)

    async def _finish(self) -> None:
        """Let the calls that run end within the grace."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.grace):
                while self._running and not self._handling.is_hurried:
                    await self._changed.wait()
                    self._settle()

    async def _give_back(self) -> None:
        """Cancel what runs, and give back what no call has ended."""
        tasks: list[asyncio.Task[Any]] = [*self._running]
        if self._polling is not None:
            tasks.append(self._polling)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        finally:
            self._done = [task for task in tasks if task.done()]
            self._settle()
            if self._running:
                calls = "1 call" if len(self._running) == 1 else f"{len(self._running):,} calls"
                notice(f"{calls} of the handler of {self._consumer!r} caught the cancellation, and may run on")
            for piece in self._running.values():
                self._handling.settle(piece, "release", runs_on=True)
            self._running.clear()
            self._handling.give_back()


def _is_cancelled() -> bool:
    """Whether the task was cancelled, and not something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
