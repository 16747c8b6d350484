"""The time until a dispatcher continues after the return of its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalServer
from support.pipelines import endpoint_to
from support.processes import resume, stop

#: The server's configuration: exactly once needs a server that keeps its data.


@dataclass(frozen=True)
class Outage:
    """How a server stops and returns. `connected`: whether the dispatcher had a connection before."""

    begin: Callable[[LocalServer], None]
    end: Callable[[LocalServer], None]
    connected: bool = True


OUTAGES = {
    "kill -9, restart": Outage(LocalServer.kill, LocalServer.restart),
    "SIGSTOP, SIGCONT": Outage(stop, resume),
    "no server yet": Outage(LocalServer.kill, LocalServer.restart, connected=False),
    "no answer yet (SIGSTOP, SIGCONT)": Outage(stop, resume, connected=False),
}


def with_retry(server: LocalServer, outage: Outage, away: float, **options: Any) -> float:
    """Seconds from the server's return to the end of a flush that waits for it, with the defaults of RetryPolicy."""
    returned = 0.0

    def end() -> None:
        nonlocal returned
        time.sleep(away)
        outage.end(server)
        returned = time.monotonic()

    with Dispatcher(endpoint_to(server, connect_timeout=60), retry=RetryPolicy(), **options) as dispatcher:
        _begin(server, outage, dispatcher)
        _produce(dispatcher)
        thread = threading.Thread(target=end)
        thread.start()
        dispatcher.flush().raise_for_failures()
        flushed = time.monotonic()
        thread.join()
    return max(flushed - returned, 0.0)  # the flush may end before `restart` sees an answer


def without_retry(server: LocalServer, outage: Outage) -> float:
    """Seconds that the next batch takes, after one that failed."""
    with Dispatcher(endpoint_to(server)) as dispatcher:
        _begin(server, outage, dispatcher)
        _produce(dispatcher)
        assert not dispatcher.flush(timeout=0.2).ok
        outage.end(server)
        started = time.monotonic()
        _produce(dispatcher)
        dispatcher.flush().raise_for_failures()
        return time.monotonic() - started


def _begin(server: LocalServer, outage: Outage, dispatcher: Dispatcher) -> None:
    if outage.connected:
        dispatcher.produce(b"first")
        dispatcher.flush().raise_for_failures()
    outage.begin(server)


def _produce(dispatcher: Dispatcher) -> None:
    for number in range(100):  # few enough not to wait for room
        dispatcher.produce(b"%d" % number)
