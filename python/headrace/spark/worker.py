"""Dispatchers of a Python worker, kept from task to task: workers live for a minute after their last one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint

__all__ = ["dispatcher"]

#: Endpoints that one worker keeps a connection to.
MAX_DISPATCHERS = 8

_Key = tuple[int, Endpoint, str]

# The process ID is part of the key: workers are forked, and a dispatcher is its process's own.
_idle: dict[_Key, Dispatcher] = {}


@contextmanager
def dispatcher(endpoint: Endpoint, options: Mapping[str, Any], *, text: bool = False) -> Iterator[Dispatcher]:
    """Lend the worker's dispatcher for this endpoint and these options; with `text` they are texts, as Spark has them.

    It comes back into the cache only if the block ends well; otherwise it is closed, and the next task gets a new one.
    """
    key = (os.getpid(), endpoint, repr(sorted(options.items())))
    lent = _idle.pop(key, None)
    if lent is None:
        lent = Dispatcher._from_text(endpoint, options) if text else Dispatcher(endpoint, **options)
    try:
        yield lent
    except BaseException as error:
        lent.__exit__(type(error), error, error.__traceback__)
        raise
    _idle[key] = lent
    while len(_idle) > MAX_DISPATCHERS:
        _idle.pop(next(iter(_idle))).close()
