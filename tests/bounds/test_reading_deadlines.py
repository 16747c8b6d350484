"""Calls that read end in their time, whatever the server does. The laboratory `bounds` measures how exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from bounds import readings
from bounds.readings import BEHAVIOURS, CALLS
from headrace import ReadReport
from support import Certs
from support.fixture_types import StartServer
from support.patience import LATE
from support.stalls import Surroundings

TIMEOUT = 0.2
#: The behaviours of the usual size: bytes without a reply, a connect without an end, half a record.
USUAL = ("a byte every 0.1 s after the handshake", "accepts, never answers", "TLS, half a record")


@pytest.fixture
def around(tmp_path: Path, certs: Certs, start_server: StartServer) -> Surroundings:
    return Surroundings(tmp_path, certs, start_server)


def _cases() -> list[object]:
    cases: list[object] = []
    for behaviour in BEHAVIOURS:
        for call in CALLS:
            marks = [] if behaviour in USUAL or call == "Consumer.close(timeout), acked" else [pytest.mark.thorough]
            cases.append(pytest.param(behaviour, call, marks=marks))
    assert {case.values[0] for case in cases if not case.marks} == set(BEHAVIOURS)  # type: ignore[attr-defined]
    return cases


@pytest.mark.parametrize(("behaviour", "call"), _cases())
def test_a_call_ends_in_its_time_whatever_the_server_does(around: Surroundings, behaviour: str, call: str) -> None:
    """The timeouts that do not apply to the call never pass. `close` returns the report, and raises nothing."""
    server = readings.start(around, BEHAVIOURS[behaviour])
    seconds, result = readings.measure(server, around.certs, BEHAVIOURS[behaviour], CALLS[call], TIMEOUT)
    assert seconds < CALLS[call].timeouts * TIMEOUT + LATE
    if "Consumer.close" in call:
        assert isinstance(result, ReadReport)
        if "acked" in call:
            assert result.acked + result.unknown == result.handed_over > 0


def test_the_end_of_a_with_block_does_not_raise_for_a_server_that_is_away(around: Surroundings) -> None:
    behaviour = BEHAVIOURS["refuses connections"]
    server = readings.start(around, behaviour)
    _, raised = readings.measure(server, around.certs, behaviour, readings.LEAVE, TIMEOUT)
    assert raised is None
