"""Consumers that are gone before the server has confirmed what the caller said of their entries."""

from __future__ import annotations

import atexit
import weakref

from headrace.forgotten import tell

__all__ = ["Unconfirmed"]


class Unconfirmed:
    """A consumer that warns when it is gone, if the server may not know what the caller said of entries."""

    #: What the caller said, in words.
    _said: str
    #: What to do lest that is forgotten.
    _advice: str
    #: Whether the constructor has finished.
    _is_made = False
    _has_told = False

    def _made(self) -> None:
        """Warn from now on."""
        self._is_made = True
        _open_consumers.add(self)

    def _unconfirmed(self) -> int:
        """Return the number of entries."""
        raise NotImplementedError

    def __del__(self) -> None:
        if self._is_made:
            self._tell_of_the_forgotten()

    def _tell_of_the_forgotten(self) -> None:
        """Warn once."""
        if self._has_told or not (count := self._unconfirmed()):
            return
        self._has_told = True
        entries = "1 entry was" if count == 1 else f"{count:,} entries were"
        tell(f"{entries} {self._said} by {self!r}, and the server may not know of it, so that {self._advice}")


_open_consumers: weakref.WeakSet[Unconfirmed] = weakref.WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    """Warn for each consumer, because objects in frames of daemon threads are never collected."""
    for consumer in tuple(_open_consumers):
        consumer._tell_of_the_forgotten()
