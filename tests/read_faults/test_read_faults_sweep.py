"""A reader and a consumer of 60 entries, cut between the bytes of their requests and replies."""

from __future__ import annotations

import pytest

from faults.campaign import program_of
from faults.testbed import FaultTestbed
from read_faults.read_sweep import SWEPT, read_sweep
from support.servers import find_programs

pytestmark = pytest.mark.thorough

#: Bytes between cuts. The laboratory `sweep-read` cuts after every byte.
STEP = {"reader": 11, "consumer": 37}


@pytest.mark.parametrize("label", [program.label for program in find_programs()])
@pytest.mark.parametrize("client", SWEPT)
def test_every_entry_is_read_once_after_a_cut(label: str, client: str) -> None:
    with FaultTestbed(program_of(label), durable=False) as testbed:
        swept = read_sweep(testbed, client, STEP[client])
    assert not swept.violations, swept.violations[:5]
    assert swept.cuts >= sum(swept.bytes.values()) // STEP[client]
    assert swept.connections > swept.cuts, "no connection was cut"
