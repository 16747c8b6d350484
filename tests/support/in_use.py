"""Whether another thread is in a call of a dispatcher."""

from __future__ import annotations

from headrace import ConcurrentUseError, Dispatcher, StateError

__all__ = ["is_in_use"]


def is_in_use(dispatcher: Dispatcher) -> bool:
    try:
        dispatcher.skip_failed()
    except ConcurrentUseError:
        return True
    except StateError:  # messages wait, but no call does
        return False
    return False
