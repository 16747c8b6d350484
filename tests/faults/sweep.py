"""A pipeline of messages that is cut after every byte of its requests and replies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

import pyarrow

from headrace import Dispatcher, Endpoint, RetryPolicy
from support.pipelines import outcomes

from .checker import Message, Promise, Violation, violations
from .proxy import Direction, Pair
from .testbed import PASSWORD, USER, FaultTestbed

KEY = "events"
MESSAGES = 50

How = Literal["RST", "FIN"]


@dataclass
class SweepResult:
    """The counts of a sweep, and the violations found."""

    cuts: int = 0
    bytes: dict[Direction, int] = field(default_factory=dict)
    #: The number of messages reported as delivered, as not written and as unknown.
    reported: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[str, Violation]] = field(default_factory=list)


def sweep(testbed: FaultTestbed, mode: str, step: int = 1) -> SweepResult:
    """Cut after every `step`-th byte, including the handshake, by RST and FIN in turn.

    Without `exactly_once` no message is sent again: messages lost with the connection fail. In the other modes all
    messages are delivered, once and in order.
    """
    swept = SweepResult()
    cutting = _Cutting(testbed, mode)
    for direction in ("requests", "replies"):
        swept.bytes[direction] = total = cutting.measure(direction)
        for at in range(0, total + 1, step):
            how: How = "RST" if at // step % 2 else "FIN"
            found, reported = cutting.cut(direction, at, how)
            swept.cuts += 1
            for label in reported:
                swept.reported[label] = swept.reported.get(label, 0) + 1
            swept.violations += [(f"{direction}, {at} of {total} bytes, {how}", violation) for violation in found]
    return swept


class _Cutting:
    def __init__(self, testbed: FaultTestbed, mode: str) -> None:
        self._testbed = testbed
        self._mode = mode
        self._endpoint = Endpoint(
            host="127.0.0.1", port=testbed.proxy.port, stream_key=KEY, username=USER, password=PASSWORD,
            command_timeout=10,
        )  # fmt: skip
        rng = random.Random(5)
        payloads = [b"%d-" % number + b"x" * rng.randint(0, 30) for number in range(MESSAGES)]
        self._messages = [Message(str(number), KEY, payload) for number, payload in enumerate(payloads)]
        self._batch = pyarrow.record_batch({"payload": pyarrow.array(payloads, pyarrow.binary())})
        testbed.empty()

    def measure(self, direction: Direction) -> int:
        """The number of bytes that pass in this direction without a cut."""
        before = self._testbed.proxy.passed[direction]
        found, reported = self.cut(direction, 1 << 30, "RST")
        assert not found
        assert set(reported) == {"delivered"}
        return self._testbed.proxy.passed[direction] - before

    def cut(self, direction: Direction, at: int, how: How) -> tuple[list[Violation], list[str]]:
        """Cut after `at` bytes; returns the violations, and the label of each message."""
        proxy = self._testbed.proxy
        self._testbed.control.delete(KEY)
        proxy.at(direction, at, Pair.reset if how == "RST" else Pair.finish)
        with self._dispatcher() as dispatcher:
            dispatcher.produce_batch(self._batch)
            report = dispatcher.flush()
            reported = outcomes(report)
        proxy.disarm()
        # Bytes before the cut have been executed and later ones never arrive: there are no late copies.
        promise = Promise(deduplicated=self._mode == "script", unknown_ordered=True)
        found = violations(self._messages, reported, self._testbed.stored([KEY]), promise)
        failed = tuple(outcome.message_id for outcome in reported if outcome.code)
        if self._mode != "off" and failed:
            found.append(Violation("not delivered despite retries", failed))
        return found, [outcome.written or "delivered" for outcome in reported]

    def _dispatcher(self) -> Dispatcher:
        if self._mode == "off":
            return Dispatcher(self._endpoint)
        retry = RetryPolicy(initial_backoff=0.0, max_backoff=0.0)
        runs = {"script_run_rows": 10} if self._mode == "script" else {}
        return Dispatcher(self._endpoint, exactly_once=self._mode, retry=retry, **runs)  # type: ignore[arg-type]
