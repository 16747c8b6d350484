"""The signals that end a `run`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["signals_call"]

#: What the runs of the main thread do at a signal. Several consumers may run on one event loop.
_stops: list[Callable[[], None]] = []
#: The handlers that the first of them has replaced.
_before: dict[signal.Signals, Any] = {}


@contextlib.contextmanager
def signals_call(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT call `stop` in the main thread, unless the program has a handler of its own for them.

    Not by `loop.add_signal_handler`: it cannot tell what it replaces. asyncio and uvloop run other handlers too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _before.clear()
        for number in (signal.SIGTERM, signal.SIGINT):
            if _is_default(handler := signal.getsignal(number)):
                _before[number] = handler
                signal.signal(number, _stop_all)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        for number, before in _before.items():
            if not _stops and signal.getsignal(number) is _stop_all:
                signal.signal(number, before)


def _stop_all(*_: object) -> None:
    for stop in tuple(_stops):
        stop()


def _is_default(handler: object) -> bool:
    """Whether a handler is one that Python or `asyncio.run` sets."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    # `asyncio.Runner` has a partial of one of its methods.
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
