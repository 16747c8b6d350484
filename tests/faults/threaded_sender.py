"""The sender that is a `Dispatcher` of several threads, which call it at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace import ConnectionFailedError, DeliveryError, DeliveryReport
from support.pipelines import Outcome

from .checker import Message
from .senders import Headrace
from .testbed import FaultTestbed

CALLERS = 16


class ThreadedHeadrace(Headrace):
    """A `Dispatcher` that 16 threads share: each sends its own messages, and any of them takes reports."""

    # A script numbers the messages of a batch, and threads do not come in the same order again.
    _begun = ("idmp",)

    def __init__(self, testbed: FaultTestbed, mode: str, key: str, rng: random.Random, token: str) -> None:
        options = {"exactly_once_key": "message_id"} if mode == "idmp" else {}
        super().__init__(testbed, mode, key, rng, token, **options)
        self._lock = threading.Lock()
        self._threads = [ThreadPoolExecutor(1) for _ in range(CALLERS)]

    def send(self, messages: Sequence[Message]) -> None:
        """Let the threads send messages, and wait for all of them."""
        sent = [
            thread.submit(self._send, mine, random.Random(self._rng.getrandbits(64)))
            for caller, thread in enumerate(self._threads)
            if (mine := [message for message in messages if message.caller == caller])
        ]
        for sending in sent:
            sending.result()

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()
        super().close()

    def _send(self, messages: Sequence[Message], rng: random.Random) -> None:
        while messages:
            count = rng.randint(1, len(messages))
            self._send_piece(messages[:count], rng)
            messages = messages[count:]
            if rng.random() < 0.1:
                self._collect(self._dispatcher.poll())
            if rng.random() < 0.05:
                self._collect(self._dispatcher.flush())

    def _send_piece(self, messages: Sequence[Message], rng: random.Random) -> None:
        form = rng.random()
        if form < 0.4 and self.mode == "off":
            for message in messages:
                self._dispatch(message)
        elif form < 0.7:
            for message in messages:
                self._dispatcher.produce(message.payload, message.message_id, stream_key=self._own_key(message))
        else:
            record_batch, layout = self.columns(messages)
            self._dispatcher.produce_batch(record_batch, **layout)

    def _dispatch(self, message: Message) -> None:
        name, own = message.message_id, self._own_key(message)
        try:
            outcome = Outcome(name, self._dispatcher.dispatch(message.payload, stream_key=own), None, None, None, None)
        except (DeliveryError, ConnectionFailedError) as error:
            (failure,) = error.failures
            outcome = Outcome(name, None, failure.kind, failure.code, failure.message, failure.written)
        with self._lock:
            self.reported.outcomes.append(outcome)
            self.reported.calls["received by threads"] += 1

    def _own_key(self, message: Message) -> str | None:
        return None if message.key == self._endpoint.stream_key else message.key

    def _collect(self, report: DeliveryReport) -> list[Outcome]:
        with self._lock:
            collected = super()._collect(report)
            self.reported.calls["in reports"] += len(collected)
            return collected
