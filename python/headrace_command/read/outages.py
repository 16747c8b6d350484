"""Shows the library's warnings, such as those about an unreachable server, as messages of the command."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from headrace_command.messages import Messages

__all__ = ["shown"]


class _Handler(logging.Handler):
    def __init__(self, messages: Messages) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.warn(record.getMessage())


@contextmanager
def shown(messages: Messages) -> Iterator[None]:
    """Write the records of the logger `headrace` and Python's warnings to stderr as messages."""
    handler = _Handler(messages)
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: messages.warn(str(message))
            yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
