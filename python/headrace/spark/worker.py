"""The dispatchers of a Python worker, reused across tasks: Spark keeps idle workers for a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint

__all__ = ["dispatcher"]

#: The maximum number of idle dispatchers that one worker keeps.
MAX_DISPATCHERS = 8

_Key = tuple[int, Endpoint, str]

# The process ID is part of the key: workers are forked, and a dispatcher belongs to one process.
_idle: dict[_Key, Dispatcher] = {}


@contextmanager
def dispatcher(endpoint: Endpoint, options: Mapping[str, Any], *, text: bool = False) -> Iterator[Dispatcher]:
    """Lend the worker's dispatcher for this endpoint and these options, which are text if `text` is set.

    The dispatcher returns to the cache only if the block succeeds. Otherwise it is closed, and the next task gets a
    new one.
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
