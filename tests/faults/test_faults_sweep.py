"""A pipeline of 50 messages, cut after each byte of its requests and replies."""

from __future__ import annotations

import pytest

from faults.campaign import pairs, program_of
from faults.sweep import MESSAGES, sweep
from faults.testbed import FaultTestbed
from support.servers import find_programs

pytestmark = pytest.mark.thorough

#: Bytes between cuts; in mode off, the newest server is cut after every byte. The laboratory `sweep` always does that.
STEP = 7


@pytest.mark.parametrize(("label", "mode"), pairs(), ids=str)
def test_every_outcome_is_correct_after_a_connection_is_cut(label: str, mode: str) -> None:
    program = program_of(label)
    with FaultTestbed(program, durable=False) as testbed:
        swept = sweep(testbed, mode, 1 if mode == "off" and program == max(find_programs()) else STEP)
    assert not swept.violations, swept.violations[:5]
    assert swept.cuts >= sum(swept.bytes.values()) // STEP
    assert sum(swept.reported.values()) == swept.cuts * MESSAGES
    # When it is cut in the middle, some messages were answered, some were in flight, and some were not yet sent.
    assert set(swept.reported) == ({"delivered", "no", "unknown"} if mode == "off" else {"delivered"})
