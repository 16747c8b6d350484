"""What a dispatcher, reader or consumer needs from its event loop: sockets and times, and that it is the same loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import warnings
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, NoReturn, Self
from weakref import ref

from headrace.errors import ClosedError, ConcurrentUseError, StateError

#: The number of a connection, its descriptor, and whether to wait until it is writable too.
Socket = tuple[int, int, bool]


class OnLoop:
    """An object that one event loop of one process uses: the first that calls it."""

    #: What it is.
    _kind: str

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_closed = False
        #: The loop that calls may run on. None: not bound yet, or closed.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bound: asyncio.AbstractEventLoop | None = None

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Bind it to the running loop, or raise if it may not be used there."""
        kind = self._kind
        if self._process != os.getpid():
            raise StateError(f"the process was forked since the {kind} was created: create a new one in the child")
        if self._is_closed or self._is_closing:
            raise ClosedError(f"the {kind} is closed; make a new one")
        if self._bound is not None:
            raise StateError(f"the {kind} belongs to another event loop: create one in each loop")
        self._loop = self._bound = asyncio.get_running_loop()
        return self._loop

    @property
    def _is_closing(self) -> bool:
        """Whether it has begun to close: it was bound, and is so no longer."""
        return self._bound is not None and self._loop is None

    if not TYPE_CHECKING:  # a type checker refuses `with` by itself

        def __enter__(self) -> NoReturn:
            raise TypeError(f"an {type(self).__name__} needs `async with`")

        __exit__ = __enter__


class OneCall(OnLoop):
    """An object of which one call at a time waits, and which a cancelled call leaves where it was."""

    def __init__(self) -> None:
        super().__init__()
        self._is_open = False
        #: The call that waits.
        self._waiter: asyncio.Future[None] | None = None
        #: Whether the loop will continue soon.
        self._is_scheduled = False
        #: The thread of the loop.
        self._thread: int
        self._watch: LoopWatch

    if TYPE_CHECKING:

        def _step(self) -> tuple[bool, list[Socket], float | None]:
            """Do what can be done without waiting. Raises only what is a defect.

            Returns whether the call is over; the sockets to watch; and in how many seconds to continue at the latest.
            """

        def _interrupt(self) -> None:
            """End the call that is at work: the next one continues from where it was."""

        def _drop(self) -> None:
            """Close the connections, without a command to the server."""

        async def _open(self) -> None:
            """Connect."""

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = super()._bind()
        self._thread = get_ident()
        weak = ref(self)  # the loop does not keep what a program forgot

        def advance() -> None:
            if (this := weak()) is not None:
                this._go_on()

        self._watch = LoopWatch(loop, advance)
        return loop

    def _enter(self) -> None:
        """Raise if a call may not begin now."""
        if asyncio.get_running_loop() is not self._loop:
            self._bind()
        if self._waiter is not None:
            raise ConcurrentUseError(f"the {self._kind} is in use by another task: it takes one call at a time")

    async def _over(self, *, bears_cancellation: bool = False) -> None:
        """Wait until what was begun is over; with `bears_cancellation`, also after a first cancellation."""
        assert self._bound is not None
        self._waiter = waiter = self._bound.create_future()
        try:
            self._go_on()
            if waiter.done():  # other tasks must get their turn of the loop
                await asyncio.sleep(0)
            if bears_cancellation:
                try:
                    await asyncio.shield(waiter)
                except asyncio.CancelledError:
                    await waiter
                    raise
            await waiter
            if self._waiter is not waiter:  # what it was for went into the end of all
                raise ClosedError(f"the {self._kind} was closed by another task")
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it shows again in the next call
            if self._waiter is waiter:
                self._interrupt()
                self._go_on()  # the sockets that were closed are watched no longer
            raise
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def _go_on(self) -> None:
        """Continue. The loop calls it, when a socket is ready or it is time."""
        waiter = self._waiter
        try:
            is_over, sockets, seconds = self._step()
        except BaseException as error:
            self._watch.end()  # what failed has closed its sockets
            if waiter is None or waiter.done():
                raise
            waiter.set_exception(error)
            return
        self._watch.watch(sockets)
        if seconds is not None:
            self._watch.wake_in(seconds)
        if is_over and waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _go_on_soon(self, *, from_handler: bool = False) -> None:
        """Continue in the loop, from any thread; with `from_handler`, also while the loop sleeps in this thread."""
        loop = self._bound
        if loop is None or (self._is_scheduled and not from_handler):
            return
        self._is_scheduled = True
        # In its own thread a loop is awake, but for signal handlers.
        is_awake = get_ident() == self._thread and not from_handler
        with contextlib.suppress(RuntimeError):  # the loop is closed
            (loop.call_soon if is_awake else loop.call_soon_threadsafe)(self._go_on_unless_closed)

    def _go_on_unless_closed(self) -> None:
        self._is_scheduled = False
        if not self._is_closed:
            self._go_on()

    async def __aenter__(self) -> Self:
        self._enter()
        try:
            if not self._is_open:
                await self._open()
        except BaseException:
            if self._loop is not None:  # otherwise another task has closed it, or does so now
                self._end()
            raise
        return self

    def _end(self) -> None:
        """Close it immediately."""
        self._is_closed = True
        self._watch.end()
        self._drop()

    def __del__(self) -> None:
        if "_watch" in self.__dict__ and not self._is_closed and self._process == os.getpid():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                # In the loop, which watches the sockets until then.
                self._watch.loop.call_soon_threadsafe(self._end)
            warnings.warn(f"{self!r} was not closed: use `async with`", ResourceWarning, stacklevel=2, source=self)


class LoopWatch:
    """The sockets and the time that an event loop waits for, and what it calls then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, advance: Callable[[], object]) -> None:
        self.loop = loop
        self._advance = advance
        #: By connection and descriptor: whether the loop waits until the socket is writable.
        self._sockets: dict[tuple[int, int], bool] = {}
        #: The same, as they were given.
        self._given: list[Socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def watch(self, sockets: list[Socket]) -> None:
        """Watch these sockets, and no others."""
        if sockets == self._given:
            return
        self._given = sockets
        loop, before = self.loop, self._sockets
        now = {(connection, fd): is_writable for connection, fd, is_writable in sockets}
        # First remove the old ones: a new socket may have the same descriptor.
        for (connection, fd), is_writable in before.items():
            if (connection, fd) not in now:
                with contextlib.suppress(OSError):  # the descriptor is closed
                    loop.remove_reader(fd)
                if is_writable:
                    loop.remove_writer(fd)
        for (connection, fd), is_writable in now.items():
            was_writable = before.get((connection, fd))
            if was_writable is None:
                loop.add_reader(fd, self._advance)
            if is_writable and not was_writable:
                loop.add_writer(fd, self._advance)
            elif was_writable and not is_writable:
                loop.remove_writer(fd)
        self._sockets = now

    def wake_in(self, seconds: float) -> None:
        """Continue after this number of seconds, or earlier."""
        when = self.loop.time() + seconds
        if self._timer is not None:
            # A timer that fires too early costs less than a new one for each message.
            if when >= self._wakes_at:
                return
            self._timer.cancel()
        self._wakes_at = when
        self._timer = self.loop.call_at(when, self._wake)

    def end(self) -> None:
        """Watch nothing, before the descriptors are closed: uvloop aborts the process if it watches a closed one."""
        self.watch([])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._advance()
