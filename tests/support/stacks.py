"""Shows where a process hangs."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stacks_after(seconds: float) -> Iterator[None]:
    """Write the stacks of all threads to stderr if the block takes longer.

    A thread with the GIL reads them: `faulthandler.dump_traceback_later` reads frames while they change, and may crash.
    """
    timer = threading.Timer(seconds, _show, (seconds,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _show(seconds: float) -> None:
    print(f"still running after {seconds:.0f} s:", file=sys.stderr)
    for number, frame in sys._current_frames().items():
        print(f"thread {number:#x}:", file=sys.stderr)
        traceback.print_stack(frame, file=sys.stderr)
