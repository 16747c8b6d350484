"""A consumer that one `run` at a time uses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from headrace.errors import ConcurrentUseError

__all__ = ["OneRun"]


class OneRun:
    """A consumer that one `run` at a time uses."""

    def __init__(self) -> None:
        self._runs = threading.Lock()
        #: What a `run` on an event loop does when the consumer is stopped, in any thread and any signal handler.
        self._on_stop: Callable[[], object] | None = None

    @contextlib.contextmanager
    def _only_run(self) -> Iterator[None]:
        """Refuse a second `run` at the same time."""
        if not self._runs.acquire(blocking=False):
            raise ConcurrentUseError("the consumer is in use by another run: it takes one at a time")
        try:
            yield
        finally:
            self._runs.release()
