"""The laboratory of consumer groups: a run for each server and kind of names, and a table."""

from __future__ import annotations

import itertools
from typing import get_args

from laboratory import KEEP, ONE_SERVER, SEED, Option, Run, laboratory
from support.servers import program_named

from .run import Names, Outcome, Plan, WrongError, run
from .slots import Phase
from .targets import TOPOLOGIES


@laboratory(
    Option("kills", 100, "kills at work"),
    *(SEED, ONE_SERVER, KEEP),
    Option("entries", 100_000, "entries, on all streams together"),
    Option("poison", 10, "entries that end each process which gets them"),
    Option("names", list(get_args(Names)), "of processes that are started again"),
    Option("batch_rows", 100, "entries of a batch"),
    Option("min_idle", 1.0, "seconds after which an entry is taken over"),
    Option("topology", "single", "a stream, or six in a cluster", choices=TOPOLOGIES),
    Option("changes", 30, "slots that move and replicas that take over, in a cluster"),
    Option("connections", None, "most connections of a process to each node that read", int),
    Option("asynchronous", False, "with AsyncConsumer, whose calls are cancelled at random moments"),
    Option("timeout", 600.0, "seconds of a run"),
)
def consumer_kills(this: Run) -> str:
    """Kill the processes of a consumer group at work, and look for each entry.

    On a busy machine a larger `--min-idle` keeps leases: `--min-idle 5 --timeout 1800`.
    """
    options = this.options
    same = {name: getattr(options, name) for name in ("seed", "entries", "kills", "poison", "batch_rows", "min_idle")}
    same |= {name: getattr(options, name) for name in ("timeout", "topology", "connections", "asynchronous")}
    same["disturbances"] = options.changes if options.topology == "cluster" else 0
    rows: list[dict[str, str]] = []
    for program, names in itertools.product(map(program_named, options.servers), options.names):
        plan = Plan(names=names, **same)
        try:
            outcome = run(plan, program, this.folder / f"{program.label}-{names}")
        except WrongError as error:
            faults = [str(error)]
        else:
            rows.append({"server": program.label, "names": names, **_cells(plan, outcome)})
            faults = [f"{fault}: {outcome.verdict.examples}" for fault in _faults(plan, outcome)]
        for fault in faults:
            again = this.repeat(seed=options.seed, servers=[program.label], names=[names])
            this.is_wrong(f"{program.label}, {names} names: {fault}", again)
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    this.say("\n".join("  ".join(map(str.rjust, cells, widths)) for cells in lines))
    return f"{len(options.servers) * len(options.names)} runs"


def _cells(plan: Plan, outcome: Outcome) -> dict[str, str]:
    verdict = outcome.verdict
    numbers = {
        "kills": outcome.struck,
        "working": outcome.kills[Phase.WORKING],
        "committing": outcome.kills[Phase.COMMITTING],
        "committed": outcome.kills[Phase.COMMITTED],
        "between": outcome.kills.total() - outcome.struck,
        "by poison": outcome.poisoned,
        "deliveries again": verdict.delivered_again,
        "commits again": verdict.committed_again,
        "at most": outcome.most_again(plan.batch_rows),
        "late": outcome.late,
        "leases lost": outcome.lost_leases,
        "changes": outcome.disturbed.total(),
        "lost": verdict.lost,
        "not dead": verdict.not_dead,
        "wrong dead": verdict.wrong_dead,
    }
    times = {"settled in": f"{outcome.settled:.2f} s", "seconds": f"{outcome.seconds:.1f}"}
    return {name: f"{number:,}" for name, number in numbers.items()} | times


def _faults(plan: Plan, outcome: Outcome) -> list[str]:
    """What a run has against it."""
    verdict = outcome.verdict
    found = {
        "too few kills": outcome.struck < plan.kills,
        "too few changes": outcome.disturbed.total() < plan.disturbances,
        "wrong entries": not verdict.well,
        "too many commits": verdict.committed_again > outcome.most_again(plan.batch_rows),
        # Taken over after min_idle, looked for each quarter of it; a second for the work.
        "pending for too long": outcome.settled > 2 * plan.min_idle + 1,
    }
    return [text for text, is_wrong in found.items() if is_wrong]
