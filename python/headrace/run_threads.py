"""`Consumer.run` and `ShardConsumer.run`: threads call a handler for what the consumer reads."""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError, StateError
from headrace.handling import CLOSE_SECONDS, Handling
from headrace.pieces import Piece, Pieces
from headrace.run_options import RunOptions
from headrace.stop_signals import signals_call

Handle = Callable[[Any], object]
#: How long one wait lasts at most, in seconds: then signals and times are looked at again.
_SLICE = 0.1


class _Call:
    """A call of the handler."""

    __slots__ = ("ends", "is_given_up", "piece", "thread")

    def __init__(self, piece: Piece, timeout: float | None) -> None:
        self.piece = piece
        self.thread = threading.current_thread()
        self.ends = None if timeout is None else time.monotonic() + timeout
        #: Whether it took too long: its entries are settled, and its result is of no use.
        self.is_given_up = False


class ThreadRun:
    """One `run` of a consumer."""

    def __init__(self, consumer: Any, pieces: Pieces[Any], handle: Handle, options: RunOptions) -> None:
        self._handling = Handling(consumer, pieces, handle, options)
        call = getattr(handle, "__call__", None)  # noqa: B004, an object's method may be a coroutine function
        if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(call):
            taker = f"Async{pieces.kind}.run"
            message = f"handle must be a function, got the coroutine function {handle!r}: {taker} takes it"
            raise ConfigError(message, option="handle")
        #: A `Consumer` or a `ShardConsumer`, whose module imports this one.
        self._consumer: Any = consumer
        self._handle = handle
        self._options = options
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        #: For the thread of `run`: a call is over, or there is room for more.
        self._changed = threading.Condition(self._lock)
        #: For the others: a piece is ready, or the run is over.
        self._ready = threading.Condition(self._lock)
        self._ends = False
        self._calls: set[_Call] = set()
        #: The threads without those whose call was given up.
        self._threads: set[threading.Thread] = set()
        #: The number of calls that were given up and still run.
        self._given_up = 0

    def run(self) -> Any:
        """Call the handler until the consumer is stopped. Return its report."""
        handling = self._handling
        report = None
        try:
            with signals_call(handling.signalled):
                try:
                    while not handling.is_over:
                        self._read()
                except Exception as error:
                    handling.end(error)
                self._finish()
                self._give_back()
                if handling.error is None:
                    report = self._consumer.flush(CLOSE_SECONDS)
        finally:
            self._give_back()
        handling.raise_error()
        return report

    def _read(self) -> None:
        """Read more if there is room for it, or wait a moment."""
        with self._lock:
            self._give_up_late()
            self._handling.report_failures()
            if self._handling.is_over:  # a call has ended it meanwhile, and no other one is left that would end a read
                return
            if not self._handling.pieces.has_room:
                self._changed.wait(self._patience())
                return
            # Until something was read, nothing else can happen.
            patience = None if self._handling.pieces.is_idle and not self._calls else self._patience()
        batch = self._consumer.poll(patience)
        if batch is not None:
            with self._lock:
                self._handling.pieces.add(batch)
                for _ in range(min(len(self._handling.pieces), self._options.concurrency)):
                    self._start()
                self._ready.notify()

    def _patience(self) -> float:
        """How long to wait before the calls are looked at again."""
        now = time.monotonic()
        return max(0.0, min([_SLICE, *(call.ends - now for call in self._calls if call.ends is not None)]))

    def _start(self) -> None:
        """Start a thread, unless there are enough. As many again may be started for calls that were given up."""
        missing = self._options.concurrency - len(self._threads)
        if self._ends or min(missing, missing + self._options.concurrency - self._given_up) <= 0:
            return
        # A daemon: the end of the process does not wait for a handler that hangs.
        thread = threading.Thread(target=self._work, name="headrace-run", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            raise

    def _work(self) -> None:
        """Handle pieces until the end. The body of each thread."""
        while (call := self._next()) is not None:
            self._run(call)

    def _next(self) -> _Call | None:
        with self._lock:
            thread = threading.current_thread()
            while not self._ends and not self._handling.is_over and thread in self._threads:
                try:
                    piece = self._handling.next()
                except Exception as error:  # such as a key that cannot be compared
                    self._handling.end(error)
                    break
                if self._handling.pieces.has_room:
                    self._changed.notify()
                if piece is not None:
                    call = _Call(piece, self._options.timeout)
                    self._calls.add(call)
                    if self._handling.pieces.is_ready:
                        self._ready.notify()
                    return call
                self._ready.wait()
            self._threads.discard(thread)
            return None

    def _run(self, call: _Call) -> None:
        """Call the handler, and settle its entries."""
        error, is_mistake = self._result(call.piece.given)
        with self._lock:
            if call.is_given_up:
                self._handling.pieces.ended(call.piece)
                self._given_up -= 1
                # Its place may be free again.
                if len(self._threads) < self._options.concurrency:
                    self._threads.add(call.thread)
            else:
                self._calls.discard(call)
                self._handling.over(call.piece, error, is_mistake=is_mistake)
                if self._ends or self._handling.is_over:
                    self._changed.notify()
        del error  # its traceback holds this frame

    def _result(self, given: object) -> tuple[BaseException | None, bool]:
        """Return the exception of a call, and whether it is a mistake of the handler, whatever the entries."""
        try:
            result = self._context.copy().run(self._handle, given)
        except BaseException as error:
            return error, False
        if result is None:
            return None, False
        if inspect.iscoroutine(result):
            result.close()  # no warning that it was never awaited
        return self._handling.returned(result), True

    def _give_up_late(self) -> None:
        """Fail the calls whose time is over. With the lock."""
        now = time.monotonic()
        for call in [call for call in self._calls if call.ends is not None and call.ends <= now]:
            self._give_up(call)
            self._handling.over(call.piece, self._handling.late(), runs_on=True)
            self._start()
            if not self._threads and not self._ends:
                timeout, hanging = self._options.timeout, self._given_up
                self._handling.end(
                    StateError(
                        f"{hanging:,} calls of the handler run on after their timeout of {timeout:g} s, and a thread "
                        "cannot be stopped: end the process, or let the handler limit what it waits for"
                    )
                )

    def _give_up(self, call: _Call) -> None:
        call.is_given_up = True
        self._given_up += 1
        self._calls.discard(call)
        self._threads.discard(call.thread)

    def _finish(self) -> None:
        """Let the calls that run end within the grace."""
        ends = time.monotonic() + self._options.grace
        with self._lock:
            self._ends = True
            self._ready.notify_all()
            while self._calls and not self._handling.is_hurried and (left := ends - time.monotonic()) > 0:
                self._give_up_late()
                self._changed.wait(min(left, self._patience()))

    def _give_back(self) -> None:
        """Give back what no call has ended, and wait for the threads without a call."""
        with self._lock:
            self._ends = True
            self._ready.notify_all()
            for call in list(self._calls):
                self._give_up(call)
                self._handling.settle(call.piece, "release", runs_on=True)
            self._handling.give_back()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
