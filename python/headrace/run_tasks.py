"""`AsyncConsumer.run`: tasks of the loop call a handler for what the consumer reads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from headrace._headrace import ConsumerBatch
from headrace.consumer_base import ConsumerBase
from headrace.handling import CLOSE_SECONDS, Handling, RunOptions
from headrace.notices import notice
from headrace.pieces import Piece
from headrace.stats import ReadReport
from headrace.stop_signals import signals_call

Handle = Callable[[Any], Awaitable[object]]
#: The exception of a call, and whether it is a mistake of the handler, whatever the entries.
_Result = tuple[BaseException | None, bool]
#: How many seconds calls may take to end after they were cancelled.
_CANCEL_SECONDS = 5.0


class TaskRun:
    """One `run` of a consumer."""

    def __init__(self, consumer: ConsumerBase, handle: Handle, options: RunOptions) -> None:
        self._handling = Handling(consumer, handle, options)
        #: An `AsyncConsumer`, whose module imports this one.
        self._consumer: Any = consumer
        self._handle = handle
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[_Result], Piece] = {}
        self._polling: asyncio.Task[ConsumerBatch | None] | None = None
        #: The tasks that are over and not settled.
        self._done: list[asyncio.Task[Any]] = []
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Look whether the consumer was stopped. Any thread and any signal handler may call it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def run(self) -> ReadReport:
        """Call the handler until the consumer is stopped."""
        handling = self._handling
        report: ReadReport | None = None
        try:
            with signals_call(self._signalled):
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
            await self._give_back()
        handling.raise_error()
        assert report is not None
        return report

    def _signalled(self) -> None:
        self._handling.signalled()
        self.wake()

    async def _step(self) -> None:
        """Start calls, and wait until one is over or more was read."""
        while len(self._running) < self._options.concurrency and (piece := self._handling.next()) is not None:
            self._running[self._start(self._call(piece.given))] = piece
        if self._polling is None and self._handling.has_room:
            self._polling = self._start(self._consumer.poll())
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
                    message = f"handle must be a coroutine function, got {self._handle!r:.100}: Consumer.run takes it"
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
        return TypeError(f"handle must return None, which acknowledges its entries, got {result!r:.100}"), True

    def _settle(self) -> None:
        """Acknowledge, fail or release the pieces of calls that are over, and take what was read."""
        self._changed.clear()
        done, self._done = self._done, []
        for task in done:
            if task is self._polling:
                self._polling = None
                if task.cancelled():
                    continue
                if (error := task.exception()) is not None:
                    self._handling.end(error)
                elif (batch := task.result()) is not None:
                    self._handling.pieces.add(batch)
            elif (piece := self._running.pop(task, None)) is not None:
                if task.cancelled():
                    self._handling.settle(piece, None, "release")
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
                self._handling.settle(piece, None, "release")
            self._running.clear()
            self._handling.give_back()


def _is_cancelled() -> bool:
    """Whether the task was cancelled, and not something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
