"""What `Dispatcher` and `AsyncDispatcher` have in common: their endpoint, their counters, and what they warn of."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace.endpoint import Endpoint
from headrace.forgotten import tell, without_outcome
from headrace.report import UnhandledFailures, delivery_error
from headrace.tables import DISPATCHER, documented, signature
from headrace.unread import UnreadReports

if TYPE_CHECKING:
    from headrace import _headrace
    from headrace.stats import Stats

__all__ = ["DispatcherBase"]


class DispatcherBase:
    """The endpoint of a dispatcher, its counters, and the reports that were not read."""

    #: What a warning of forgotten messages says of them, and what to do.
    _forgotten_text: str

    _endpoint: Endpoint
    _unread: UnreadReports
    _is_lost: bool

    def _opened(self, endpoint: Endpoint) -> None:
        """End the constructor: from now on there may be something to warn of."""
        self._endpoint = endpoint
        self._unread = UnreadReports(endpoint)
        self._is_lost = False
        _open_dispatchers.add(self)

    if TYPE_CHECKING:

        @property
        def counters(self) -> _headrace.Counters:
            """The counters so far; `stats` reads them."""

        def _forgotten(self) -> int | None:
            """Return how many messages will have no outcome. None: this process has nothing to say of them."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that messages are sent to."""
        return self._endpoint

    def stats(self) -> Stats:
        """Return the counters of this dispatcher since its creation. Any thread may call this, at any time."""
        from headrace.stats import read_stats  # a tenth of the time that importing this module takes

        return read_stats(self.counters)

    def __del__(self) -> None:
        # Without `_unread` the constructor did not finish.
        if "_unread" in self.__dict__:
            self._tell_of_the_forgotten(self._unread.take_dropped)

    def _tell_of_the_forgotten(self, take: Callable[[], list[UnhandledFailures]]) -> None:
        """Warn once of messages that will have no outcome, and of failures in reports that were not read."""
        if self._is_lost or (count := self._forgotten()) is None:
            return
        if unhandled := take():
            tell(f"{delivery_error(unhandled)}; the report of {self!r} was not read")
        if count:
            self._is_lost = True
            tell(f"{without_outcome(count, self._endpoint)}{self._forgotten_text}")

    def __reduce__(self) -> NoReturn:
        msg = "a dispatcher cannot be pickled: it owns a connection; pickle the endpoint, and create a dispatcher there"
        raise TypeError(msg)

    def __repr__(self) -> str:
        # In a traceback of the constructor there is no endpoint yet.
        return f"<{type(self).__name__}: {self.__dict__.get('_endpoint', 'not created')}>"


def describe_options(kind: type[DispatcherBase], constructor: Any) -> None:
    """Complete the docstring and the signature of a dispatcher by the table of options."""
    kind.__doc__ = documented(kind.__doc__, _KEYWORDS)
    constructor.__signature__ = signature(constructor, [*_KEYWORDS.values(), DISPATCHER["retry"]])


_KEYWORDS: Final = {name: option for name, option in DISPATCHER.items() if not name.startswith("retry")}

_open_dispatchers: weakref.WeakSet[DispatcherBase] = weakref.WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    """Warn for each dispatcher with messages left.

    Objects in frames of daemon threads are never collected, and an event loop may never be closed.
    """
    for dispatcher in tuple(_open_dispatchers):
        dispatcher._tell_of_the_forgotten(dispatcher._unread.take)
