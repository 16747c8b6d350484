"""The laboratories of reading behind the fault proxy."""

from __future__ import annotations

from faults.laboratory import CAMPAIGN, SWEEP, run_campaign, run_sweep
from laboratory import Run, laboratory
from support.servers import find_programs

from .read_campaign import READING, pairs
from .read_sweep import SWEPT, read_sweep
from .read_tables import kinds_table, pairs_table, steps_table, violations_table


@laboratory(*CAMPAIGN)
def campaign_read(this: Run) -> str:
    """The same faults under readers and consumers of streams that change, which are killed at any step."""
    return run_campaign(this, READING, pairs(), [pairs_table, violations_table, kinds_table, steps_table])


@laboratory(*SWEEP)
def sweep_read(this: Run) -> str:
    """Cut a reader and a consumer after each of their bytes, on every server: some minutes."""
    every = [(program.label, client) for program in find_programs() for client in SWEPT]
    return run_sweep(this, every, read_sweep, ("client", "connections"), lambda swept: [swept.connections])
