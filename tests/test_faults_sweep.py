"""A pipeline of 50 messages, cut behind every byte of its requests and of its replies."""

from __future__ import annotations

import pytest

from faults.campaign import pairs, program_of
from faults.lab import Lab
from faults.sweep import MESSAGES, sweep
from support.servers import find_programs

#: Without `exactly_once` every byte, on the newest server; elsewhere each so many. `make sweep` does all.
STEP = 7

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("label", "mode"), pairs(), ids=str)
def test_no_cut_is_told_of_wrongly(label: str, mode: str) -> None:
    program = program_of(label)
    with Lab(program, durable=False) as lab:
        swept = sweep(lab, mode, 1 if mode == "off" and program == max(find_programs()) else STEP)
    assert not swept.violations, swept.violations[:5]
    assert swept.cuts >= sum(swept.bytes.values()) // STEP
    assert sum(swept.told.values()) == swept.cuts * MESSAGES
    # Cut in the midst, some messages were answered, some were on their way, and some had not begun theirs.
    assert set(swept.told) == ({"delivered", "no", "unknown"} if mode == "off" else {"delivered"})
