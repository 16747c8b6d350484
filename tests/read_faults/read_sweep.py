"""A reader and a consumer whose connections are cut after every byte of their requests and replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from faults.checker import Violation
from faults.proxy import Direction, Pair
from faults.sweep import How
from faults.testbed import PASSWORD, USER, FaultTestbed
from headrace import Consumer, Endpoint, Reader, RetryPolicy

KEY, GROUP = "events", "group"
ENTRIES = 60
#: Small, so that a session has several requests, and batches in progress when it is cut.
BATCH_ROWS = 20
#: The seconds within which a consumer must get the next batch.
PATIENCE = 30.0

_AT_ONCE = RetryPolicy(initial_backoff=0.0, max_backoff=0.0)


@dataclass
class ReadSweepResult:
    """The counts of a sweep, and the violations found."""

    cuts: int = 0
    bytes: dict[Direction, int] = field(default_factory=dict)
    #: Connections that were opened, by all sessions.
    connections: int = 0
    violations: list[tuple[str, Violation]] = field(default_factory=list)


def read_sweep(testbed: FaultTestbed, client: str, step: int = 1) -> ReadSweepResult:
    """Cut a session of this client after every `step`-th byte, including the handshake, by RST and FIN in turn.

    All entries are read once and in order, none counts as lost, and a consumer's entries are acknowledged in the end.
    """
    swept = ReadSweepResult()
    cutting = _Cutting(testbed, SWEPT[client])
    for direction in ("requests", "replies"):
        swept.bytes[direction] = total = cutting.measure(direction)
        for at in range(0, total + 1, step):
            how: How = "RST" if at // step % 2 else "FIN"
            found, connections = cutting.cut(direction, at, how)
            swept.cuts += 1
            swept.connections += connections
            swept.violations += [(f"{direction}, {at} of {total} bytes, {how}", violation) for violation in found]
    return swept


@dataclass
class _Session:
    """The result of a client's session."""

    ids: list[str]
    connections: int
    #: The values that must be 0 in the end, by name.
    zero: dict[str, int]


class _Cutting:
    def __init__(self, testbed: FaultTestbed, session: Callable[[Endpoint], _Session]) -> None:
        self._testbed = testbed
        self._session = session
        self._endpoint = Endpoint(
            host="127.0.0.1", port=testbed.proxy.port, stream_key=KEY, username=USER, password=PASSWORD,
            command_timeout=10,
        )  # fmt: skip
        testbed.empty()
        for number in range(1, ENTRIES + 1):
            testbed.control.xadd(KEY, {"n": str(number), "text": "x" * (number % 30)}, id=f"{number}-0")

    def measure(self, direction: Direction) -> int:
        """The number of bytes that pass in this direction without a cut."""
        before = self._testbed.proxy.passed[direction]
        found, _ = self.cut(direction, 1 << 30, "RST")
        assert not found
        return self._testbed.proxy.passed[direction] - before

    def cut(self, direction: Direction, at: int, how: How) -> tuple[list[Violation], int]:
        """Cut after `at` bytes; returns the violations, and the number of connections that were opened."""
        proxy, control = self._testbed.proxy, self._testbed.control
        control.xgroup_create(KEY, GROUP, id="0")
        proxy.at(direction, at, Pair.reset if how == "RST" else Pair.finish)
        session = self._session(self._endpoint)
        proxy.disarm()
        read = Counter(session.ids)
        expected = [f"{number}-0" for number in range(1, ENTRIES + 1)]
        found = [Violation(what, (str(number),)) for what, number in session.zero.items() if number]
        found += [Violation("never read", (each,)) for each in expected if not read[each]]
        found += [Violation("read twice", (each,)) for each, times in read.items() if times > 1]
        if not found and session.ids != expected:
            found = [Violation("not in order", tuple(session.ids))]
        if pending := control.xpending(KEY, GROUP)["pending"]:
            found.append(Violation("left pending", (str(pending),)))
        control.xgroup_destroy(KEY, GROUP)
        return found, session.connections


def _ids(batch: Any) -> list[str]:
    ids: list[str] = pa.record_batch(batch)["entry_id"].to_pylist()
    return ids


def _read(endpoint: Endpoint) -> _Session:
    with Reader(endpoint, end="latest", batch_rows=BATCH_ROWS, retry=_AT_ONCE) as reader:
        ids = [each for batch in reader for each in _ids(batch)]
        return _Session(ids, reader.stats().connections, {"lost": reader.lost})


def _consume(endpoint: Endpoint) -> _Session:
    ids: list[str] = []
    with Consumer(endpoint, group=GROUP, consumer="c", batch_rows=BATCH_ROWS, block=0.05, retry=_AT_ONCE) as consumer:
        while len(ids) < ENTRIES:
            batch = consumer.poll(PATIENCE)
            if batch is None:
                break
            ids += _ids(batch)
            consumer.ack(batch)
        report = consumer.flush()
        zero = {"stale": report.stale, "lost": report.lost, "dead": report.dead, "unknown": report.unknown}
        zero["not acknowledged"] = ENTRIES - report.acked
        return _Session(ids, consumer.stats().connections, zero)


#: The sessions by client.
SWEPT: dict[str, Callable[[Endpoint], _Session]] = {"reader": _read, "consumer": _consume}
