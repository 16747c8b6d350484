"""A dispatcher that keeps what it sent and every outcome, for faults in the middle of a pipeline."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from faults.scenario import Command, pack
from headrace import DeliveryReport, Dispatcher
from headrace.testing import LocalServer
from support.modes import SOON, Pair, dispatcher
from support.pipelines import DELIVERED, KEY, Outcome, check_accounting, endpoint_to, labels, outcomes, payloads_of
from support.processes import resume, stop

Label = tuple[str | None, str | None, str | None]

BLOCKED: Label = ("retryable", "BLOCKED", "no")
#: Messages of 1 KB: more than a server reads from a connection at once, and less than a socket buffer holds.
ROWS = 120
RUN = 10


def make_dispatcher(
    pair: Pair, server: LocalServer, endpoint: dict[str, Any] | None = None, **options: Any
) -> Dispatcher:
    runs = {"script_run_rows": RUN} if pair.mode == "script" else {}
    return dispatcher(endpoint_to(server, **endpoint or {}), pair.mode, **{**runs, **options})


class TrackedDispatcher:
    """A dispatcher, the payloads it sent, and the outcomes it reported."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.sent: list[bytes] = []
        self.reported: list[Outcome] = []
        self.possible_duplicates = 0

    def send(self, count: int, size: int = 1_000) -> list[Label]:
        """Send `count` more messages; returns their labels."""
        self.produce(count, size)
        return self.flush()

    def produce(self, count: int, size: int = 1_000) -> None:
        payloads = payloads_of(len(self.sent), count, size)
        self.sent += payloads
        for payload in payloads:
            self.dispatcher.produce(payload)

    def flush(self) -> list[Label]:
        report = self.dispatcher.flush()
        self._collect(report)
        return labels(report)

    def poll(self) -> int:
        """Collect the outcomes that are known; returns how many were reported so far."""
        self._collect(self.dispatcher.poll())
        return len(self.reported)

    def send_while(self, server: LocalServer, command: Command) -> list[Label]:
        """Send messages; after the first of them the server runs a command of another client."""
        with self.in_flight_while(server, command):
            return self.flush()

    @contextmanager
    def in_flight_while(self, server: LocalServer, command: Command) -> Iterator[None]:
        """Inside the block messages are in flight; the server runs the command after the first of them."""
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(server.unix_socket)
            # The server serves the most recently active connection first: ours.
            assert self.send(1) == [DELIVERED]
            stop(server)
            self.produce(ROWS)
            assert len(self.dispatcher.poll()) == 0
            other.sendall(pack(command))
            resume(server)
            yield
            assert not other.recv(1_000).startswith(b"-")

    def check(self, client: Any) -> None:
        check_accounting(client, [(KEY, payload) for payload in self.sent], self.reported)

    def _collect(self, report: DeliveryReport) -> None:
        self.reported += outcomes(report)
        self.possible_duplicates += report.possible_duplicates


@contextmanager
def tracked_dispatcher(
    pair: Pair, server: LocalServer, endpoint: dict[str, Any] | None = None, token: str | None = None, **options: Any
) -> Iterator[TrackedDispatcher]:
    """A connected dispatcher that has delivered one message; with a token, the message is part of that batch."""
    with make_dispatcher(pair, server, endpoint, **options) as sending:
        tracked = TrackedDispatcher(sending)
        if token:
            sending.begin(token)
        assert tracked.send(1) == [DELIVERED]
        yield tracked


def retry_options(pair: Pair) -> dict[str, Any]:
    """Retry if the mode deduplicates; otherwise messages whose outcome is unknown are reported."""
    return {} if pair.mode == "off" else {"retry": SOON}
