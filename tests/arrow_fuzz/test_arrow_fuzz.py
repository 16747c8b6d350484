"""Random structures of the Arrow C data interface; the laboratory `fuzz arrow` does many."""

from __future__ import annotations

from itertools import count

import pytest
import redis

from arrow_fuzz.campaign import run
from arrow_fuzz.execution import Execution, draw
from arrow_fuzz.session import KEY, Session
from headrace.testing import LocalServer
from support.c_arrow import ArrowSchema, Held

pytestmark = pytest.mark.thorough

EXECUTIONS = 20_000


def test_every_structure_yields_one_outcome_per_row() -> None:
    results = run(seed=1, first=0, executions=EXECUTIONS)
    assert not results.findings, results.findings[0]
    assert results.executions == EXECUTIONS
    ends = {name: count for name, count in results.counts.items() if "," in name}
    kinds = ["valid array, taken", "valid stream, taken", "failing stream, refused", "odd stream, refused"]
    kinds += [
        f"{kind}, {end}" for kind in ("broken array", "broken stream", "other type") for end in ("refused", "taken")
    ]
    assert sorted(ends) == sorted(kinds)
    assert min(ends.values()) >= EXECUTIONS / 5_000, ends
    assert sum(ends.values()) == EXECUTIONS
    assert results.counts["rows delivered"] > EXECUTIONS


def valid(number: int = 0) -> Execution:
    """The first valid execution from this number that has rows of JSON."""
    for at in count(number):
        drawn = draw(1, at)
        if drawn.kind == "valid array" and drawn.values and drawn.layout == {"json": True}:
            return drawn
        drawn.give_up()
    raise AssertionError


def test_the_harness_finds_injected_errors(any_server: LocalServer) -> None:
    session = Session(any_server.unix_socket)

    def findings() -> list[str]:
        session.check()
        found = [finding.what for finding in session.findings]
        session.findings.clear()
        return found

    session.run(0, valid())
    assert findings() == []

    execution = valid()
    assert execution.values
    execution.values[-1] = {"other": 1}
    session.run(0, execution)
    assert findings() == ["other values"]

    execution = valid(100)
    execution.lengths[0] += 1
    session.run(0, execution)
    assert findings() == ["other rows taken"]

    execution = valid(200)
    execution.layout = {"payload": "no such column"}
    session.run(0, execution)
    assert findings() == ["valid data is refused"]

    session.run(0, valid(300))
    with redis.Redis(unix_socket_path=any_server.unix_socket) as client:
        client.xadd(KEY, {"foreign": 1})
    assert findings() == ["the stream has other entries"]

    held = Held(ArrowSchema())
    assert findings() == ["structures that were not released"]
    held.give_up()

    session.close()
    assert session.findings == []
