"""The senders under test: headrace in its modes, and redis-py for comparison. All report the same outcomes."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow
import redis

from headrace import DeliveryReport, Dispatcher, Endpoint, ForgottenWarning, RetryPolicy
from headrace.stats import Stats
from support.pipelines import Outcome, outcomes

from .checker import Message, Promise, Stored, Violation
from .fault_kinds import TIMEOUT, FaultKind
from .testbed import PASSWORD, USER, FaultTestbed

#: A deadline that outlasts any fault, and backoffs short enough to notice its end quickly.
PATIENT = {"initial_backoff": 0.002, "max_backoff": 0.05, "deadline": 60.0}


@dataclass
class Reported:
    """The outcomes that a sender reported."""

    outcomes: list[Outcome] = field(default_factory=list)
    possible_duplicates: int = 0
    #: How it was called, and where outcomes arrived.
    calls: Counter[str] = field(default_factory=Counter)


class Sender(Protocol):
    """Sends messages through the proxy."""

    reported: Reported
    replays: bool
    """Whether a new sender can repeat the batch without writing anything twice."""
    per_reply: int
    """The maximum number of messages that one reply is for."""

    @property
    def connections(self) -> int:
        """The number of connections made so far."""

    def send(self, messages: Sequence[Message]) -> None: ...
    def flush(self) -> None: ...
    def finish(self) -> None:
        """Wait until all messages that were sent have an outcome, and collect the outcomes."""

    def close(self) -> None:
        """End the sender as a crash would: pending messages get no outcome. A second call does nothing."""

    def promise(self, kinds: Sequence[FaultKind], again: bool) -> Promise:
        """The guarantees that remain under faults of these kinds.

        `again` says whether another sender had begun the batch before.
        """

    def account(self, messages: Sequence[Message], stored: Stored) -> tuple[Sequence[Message], list[Violation]]:
        """The messages that were accepted, in this order, and what is wrong with the others."""


class ModeSender:
    """The base of headrace's senders: the mode `off`, `script` or `idmp`, and other options chosen at random."""

    def __init__(self, testbed: FaultTestbed, mode: str, key: str, rng: random.Random) -> None:
        self.reported = Reported()
        self.mode = mode
        self._rng = rng
        policy = RetryPolicy(**PATIENT)  # type: ignore[arg-type]
        options: dict[str, Any] = {"window_max_entries": rng.choice([1, 10, 100, 1000, 8192]), "classify": "failover"}
        self.in_flight, self.per_reply = options["window_max_entries"], 1
        self.retry, self._maxlen, self._ordered = "always", None, True
        if mode == "off":
            self.retry = rng.choice(["never", "if not written", "always"])
            self._maxlen = rng.choice([None, None, None, 100])
            if self.retry != "never":
                options["retry"] = RetryPolicy(**PATIENT, retry_unknown=self.retry == "always")  # type: ignore[arg-type]
        else:
            options |= {"exactly_once": mode, "retry": policy}
            if mode == "script":
                options["script_run_rows"] = self.per_reply = rng.choice([1, 10, 100, 1000])
            else:
                self._ordered = rng.random() < 0.1
                if self._ordered:
                    options |= {"ordered": True, "window_max_entries": None}
        if testbed.program.can("waitaof") and rng.random() < 0.15:
            options |= {"wait_aof": True, "wait_every": rng.choice([1, 10, 500, 8192])}
        self._endpoint = Endpoint(
            host="127.0.0.1", port=testbed.proxy.port, stream_key=key, username=USER, password=PASSWORD,
            connect_timeout=TIMEOUT, command_timeout=TIMEOUT, maxlen=self._maxlen, maxlen_approximate=False,
            tls=testbed.tls_ca_cert is not None, tls_ca_cert=testbed.tls_ca_cert,
        )  # fmt: skip
        self._options = options

    def stats(self) -> Stats:
        """The counters of the dispatcher."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        return self.stats().connections

    def promise(self, kinds: Sequence[FaultKind], again: bool) -> Promise:
        refused = any(kind.refuses for kind in kinds)
        late = any(kind.late for kind in kinds)
        if self.mode == "script":
            return Promise(unknown_ordered=True, deduplicated=True)
        if self.mode == "idmp":
            # A message that failed permanently and is sent again arrives after its successors.
            failed = again and any(kind.fails for kind in kinds)
            ordered = not (refused or failed) or (self._ordered and not again)
            return Promise(ordered=ordered, unknown_ordered=True)
        # Not limited by the number of faults: on a busy machine a retry may time out too.
        lost_in_flight = self.stats().reconnects * self.in_flight
        return Promise(
            duplicates=min(self.reported.possible_duplicates, lost_in_flight) if self.retry == "always" else 0,
            ordered=self.retry == "never" or not refused,
            unknown_ordered=not late,
            trimmed=self._maxlen is not None,
        )

    def columns(self, messages: Sequence[Message]) -> tuple[pyarrow.RecordBatch, dict[str, Any]]:
        """A record batch of these messages, and a randomly chosen layout for it."""
        own_keys = any(message.key != self._endpoint.stream_key for message in messages)
        columns = {
            "payload": pyarrow.array([message.payload for message in messages], pyarrow.binary()),
            "id": [message.message_id for message in messages],
            "key": [message.key for message in messages],
            "note": ["a note"] * len(messages),
            "some": ["a note" if place % 3 else None for place in range(len(messages))],
            "entry": ["*"] * len(messages),
        }
        # Each leads to a different form of a row in a script call.
        layouts: list[dict[str, Any]] = [{}, {}, {"fields": ["note", "payload"]}, {"fields": ["payload", "some"]}]
        if self.mode != "idmp":
            layouts.append({"entry_id": "entry"})
        layout = {**self._rng.choice(layouts), "stream_key": "key" if own_keys else None, "message_id": "id"}
        return pyarrow.record_batch(columns), layout

    def _collect(self, report: DeliveryReport) -> list[Outcome]:
        collected = outcomes(report)
        self.reported.outcomes += collected
        self.reported.possible_duplicates += report.possible_duplicates
        return collected


class Headrace(ModeSender):
    """A `Dispatcher`."""

    #: The modes in which a batch is begun under a token.
    _begun: ClassVar[tuple[str, ...]] = ("script", "idmp")

    def __init__(
        self, testbed: FaultTestbed, mode: str, key: str, rng: random.Random, token: str, **options: Any
    ) -> None:
        super().__init__(testbed, mode, key, rng)
        self.replays = mode in self._begun
        self._dispatcher = Dispatcher(self._endpoint, **self._options, **options)
        if self.replays:
            self._dispatcher.begin(token)

    def stats(self) -> Stats:
        return self._dispatcher.stats()

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages one by one or as a record batch."""
        own_keys = any(message.key != self._endpoint.stream_key for message in messages)
        if not own_keys and self._rng.random() < 0.3:
            for message in messages:
                self._dispatcher.produce(message.payload, message.message_id)
        else:
            record_batch, layout = self.columns(messages)
            self._dispatcher.produce_batch(record_batch, **layout)
        if self._rng.random() < 0.2:
            self._collect(self._dispatcher.poll())

    def flush(self) -> None:
        self._collect(self._dispatcher.flush())

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForgottenWarning)
            super(Dispatcher, self._dispatcher).close()

    def account(self, messages: Sequence[Message], stored: Stored) -> tuple[Sequence[Message], list[Violation]]:
        del stored
        return messages, []


class RedisPy:
    """redis-py's pipeline, with its default retries."""

    def __init__(self, testbed: FaultTestbed, rng: random.Random) -> None:
        self.reported = Reported()
        self.replays = False
        self.in_flight, self.per_reply = rng.choice([10, 100, 1000]), 1
        self._client = redis.Redis(
            port=testbed.proxy.port, username=USER, password=PASSWORD, protocol=2, socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT, ssl=testbed.tls_ca_cert is not None, ssl_ca_certs=testbed.tls_ca_cert,
        )  # fmt: skip
        self._waiting: list[Message] = []

    @property
    def connections(self) -> int:
        """Not counted."""
        return 0

    def send(self, messages: Sequence[Message]) -> None:
        self._waiting += messages
        while len(self._waiting) >= self.in_flight:
            self._execute(self._waiting[: self.in_flight])

    def flush(self) -> None:
        while self._waiting:
            self._execute(self._waiting[: self.in_flight])

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        self._client.close()

    def account(self, messages: Sequence[Message], stored: Stored) -> tuple[Sequence[Message], list[Violation]]:
        del stored
        return messages, []

    def promise(self, kinds: Sequence[FaultKind], again: bool) -> Promise:
        del kinds, again
        # It reports no possible duplicates, and guarantees no order after a retry.
        return Promise(ordered=False)

    def _execute(self, messages: Sequence[Message]) -> None:
        self._waiting = self._waiting[len(messages) :]
        pipeline = self._client.pipeline(transaction=False)
        for message in messages:
            pipeline.xadd(message.key, {"payload": message.payload})
        try:
            results: Sequence[Any] = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            # The exception does not say what was written: the outcome of all messages is unknown.
            results = [error] * len(messages)
            written = "unknown"
        else:
            written = "no"
        for message, result in zip(messages, results, strict=True):
            name = message.message_id
            if isinstance(result, bytes):
                outcome = Outcome(name, result.decode(), None, None, None, None)
            else:
                outcome = Outcome(name, None, "retryable", type(result).__name__, str(result), written)
            self.reported.outcomes.append(outcome)
