"""A dispatcher of any mode in mid-pipeline, while its server changes its mind; and the account of what it was told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from faults.places import Words, pack
from headrace import Dispatcher
from headrace.testing import LocalServer
from support.modes import SOON, Pair, dispatcher
from support.pipelines import KEY, Outcome, check_accounting, endpoint_to, labels, outcomes
from support.processes import resume, stop
from test_faults import payloads_of

Label = tuple[str | None, str | None, str | None]

DELIVERED: Label = (None, None, None)
BLOCKED: Label = ("retryable", "BLOCKED", "no")
#: More than a server reads of one connection at a time, and less than a socket holds.
ROWS = 120
RUN = 10


def sender(pair: Pair, server: LocalServer, endpoint: dict[str, Any] | None = None, **options: Any) -> Dispatcher:
    runs = {"script_run_rows": RUN} if pair.mode == "script" else {}
    return dispatcher(endpoint_to(server, **endpoint or {}), pair.mode, **{**runs, **options})


class Bench:
    """A dispatcher of some mode, and the account of all that it was given."""

    def __init__(self, sending: Dispatcher) -> None:
        self.sending = sending
        self.sent: list[bytes] = []
        self.told: list[Outcome] = []
        self.possible_duplicates = 0

    def send(self, count: int, size: int = 1_000) -> list[Label]:
        """The labels of so many messages more."""
        self.produce(count, size)
        return self.flush()

    def produce(self, count: int, size: int = 1_000) -> None:
        payloads = payloads_of(len(self.sent), count, size)
        self.sent += payloads
        for payload in payloads:
            self.sending.produce(payload)

    def flush(self) -> list[Label]:
        report = self.sending.flush()
        self.told += outcomes(report)
        self.possible_duplicates += report.possible_duplicates
        return labels(report)

    def poll(self) -> int:
        """Take the outcomes that are known; how many there are in all."""
        self.told += outcomes(self.sending.poll())
        return len(self.told)

    def send_while(self, server: LocalServer, command: Words) -> list[Label]:
        """The same; after the first of them the server runs this command of another client."""
        with self.begun_while(server, command):
            return self.flush()

    @contextmanager
    def begun_while(self, server: LocalServer, command: Words) -> Iterator[None]:
        """Inside the block the messages are on their way."""
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(server.unix_socket)
            # The server looks at ours first: the last that it heard of is the first that it looks at again.
            assert self.send(1) == [DELIVERED]
            stop(server)
            self.produce(ROWS)
            assert len(self.sending.poll()) == 0
            other.sendall(pack(command))
            resume(server)
            yield
            assert not other.recv(1_000).startswith(b"-")

    def check(self, client: Any) -> None:
        check_accounting(client, [(KEY, payload) for payload in self.sent], self.told)


@contextmanager
def bench(
    pair: Pair, server: LocalServer, endpoint: dict[str, Any] | None = None, token: str | None = None, **options: Any
) -> Iterator[Bench]:
    """One that has delivered a message; with a token it is one of the batch that is begun."""
    with sender(pair, server, endpoint, **options) as sending:
        made = Bench(sending)
        if token:
            sending.begin(token)
        assert made.send(1) == [DELIVERED]
        yield made


def again(pair: Pair) -> dict[str, Any]:
    """What may be written already is sent again where it is deduplicated, and else told."""
    return {} if pair.mode == "off" else {"retry": SOON}
