"""Ctrl-C in the middle of a call."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from support.patience import LATE, PATIENCE
from support.processes import after_ticks, wait_until


class Interrupt:
    """A KeyboardInterrupt: the exception, and how many seconds after the signal it was raised."""

    def __init__(self, caught: pytest.ExceptionInfo[KeyboardInterrupt]) -> None:
        self._caught = caught
        self.seconds = 0.0

    @property
    def value(self) -> KeyboardInterrupt:
        return self._caught.value


@contextmanager
def interrupted(once: Callable[[], object] = lambda: True) -> Iterator[Interrupt]:
    """Check that the call inside waits, gets a SIGINT from another thread, and raises KeyboardInterrupt soon after.

    The SIGINT comes when `once` holds.
    """
    waits = threading.Event()
    over = False
    sent = 0.0

    def press() -> None:
        nonlocal sent
        assert waits.wait(PATIENCE)
        wait_until(lambda: over or once())
        if over:
            return  # the call did not wait; a SIGINT now would end the whole run
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught, after_ticks(3, waits.set):  # noqa: PT012, it is the caller's
            interrupt = Interrupt(caught)
            try:
                yield interrupt
            finally:
                interrupt.seconds = time.monotonic() - sent
    finally:
        over = True
        waits.set()
        thread.join()
    assert interrupt.seconds < LATE, f"it was raised {interrupt.seconds:.3f} s after the signal"
