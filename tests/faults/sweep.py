"""A pipeline of messages that is cut behind every byte of its requests and of its replies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

import pyarrow

from headrace import Dispatcher, Endpoint, RetryPolicy
from support.pipelines import outcomes

from .checker import Message, Promise, Violation, violations
from .lab import PASSWORD, USER, Lab
from .proxy import Direction, Pair

KEY = "events"
MESSAGES = 50

How = Literal["RST", "FIN"]


@dataclass
class Swept:
    """What a sweep did."""

    cuts: int = 0
    bytes: dict[Direction, int] = field(default_factory=dict)
    #: How many messages were told as delivered, not written, doubtful.
    told: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[str, Violation]] = field(default_factory=list)


def sweep(lab: Lab, mode: str, step: int = 1) -> Swept:
    """Cut behind every `step`-th byte, those of the handshake included, by RST and by FIN in turn.

    Without `exactly_once` no message is sent again: what was lost with the connection says so. In the other modes all
    of them are delivered, once and in order.
    """
    swept = Swept()
    cutting = _Cutting(lab, mode)
    for direction in ("requests", "replies"):
        swept.bytes[direction] = total = cutting.measure(direction)
        for at in range(0, total + 1, step):
            how: How = "RST" if at // step % 2 else "FIN"
            found, told = cutting.cut(direction, at, how)
            swept.cuts += 1
            for label in told:
                swept.told[label] = swept.told.get(label, 0) + 1
            swept.violations += [(f"{direction}, {at} of {total} bytes, {how}", violation) for violation in found]
    return swept


class _Cutting:
    def __init__(self, lab: Lab, mode: str) -> None:
        self._lab = lab
        self._mode = mode
        self._endpoint = Endpoint(
            host="127.0.0.1", port=lab.proxy.port, stream_key=KEY, username=USER, password=PASSWORD, command_timeout=10,
        )  # fmt: skip
        rng = random.Random(5)
        payloads = [b"%d-" % number + b"x" * rng.randint(0, 30) for number in range(MESSAGES)]
        self._messages = [Message(str(number), KEY, payload) for number, payload in enumerate(payloads)]
        self._batch = pyarrow.record_batch({"payload": pyarrow.array(payloads, pyarrow.binary())})
        lab.empty()

    def measure(self, direction: Direction) -> int:
        """How many bytes go out in this direction if nothing is cut."""
        before = self._lab.proxy.passed[direction]
        found, told = self.cut(direction, 1 << 30, "RST")
        assert not found
        assert set(told) == {"delivered"}
        return self._lab.proxy.passed[direction] - before

    def cut(self, direction: Direction, at: int, how: How) -> tuple[list[Violation], list[str]]:
        """Cut behind so many bytes; returns what is untrue, and what was told of each message."""
        proxy = self._lab.proxy
        self._lab.control.delete(KEY)
        proxy.at(direction, at, Pair.reset if how == "RST" else Pair.finish)
        with self._dispatcher() as dispatcher:
            dispatcher.produce_batch(self._batch)
            report = dispatcher.flush()
            told = outcomes(report)
        proxy.disarm()
        # What came in behind the cut has been executed, or will never be.
        promise = Promise(deduplicated=self._mode == "script", unknown_ordered=True)
        found = violations(self._messages, told, self._lab.stored([KEY]), promise)
        failed = tuple(outcome.message_id for outcome in told if outcome.code)
        if self._mode != "off" and failed:
            found.append(Violation("not delivered, though it was to be sent again", failed))
        return found, [outcome.written or "delivered" for outcome in told]

    def _dispatcher(self) -> Dispatcher:
        if self._mode == "off":
            return Dispatcher(self._endpoint)
        retry = RetryPolicy(initial_backoff=0.0, max_backoff=0.0)
        runs = {"script_run_rows": 10} if self._mode == "script" else {}
        return Dispatcher(self._endpoint, exactly_once=self._mode, retry=retry, **runs)  # type: ignore[arg-type]
