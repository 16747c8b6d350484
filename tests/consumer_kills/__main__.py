"""Runs of `consumer_kills`, with stable and with random names. Exits with 1 if one of them lost an entry, or hung."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import get_args

from support.servers import Program, find_programs

from .run import Names, Outcome, Plan, WrongError, run
from .slots import Phase
from .targets import TOPOLOGIES

HEAD = (
    "server", "names", "kills", "working", "committing", "committed", "between", "by poison",
    "deliveries again", "commits again", "at most", "late", "leases lost",
    "changes", "lost", "not dead", "wrong dead", "settled in", "seconds",
)  # fmt: skip


def main() -> int:
    arguments = _parser().parse_args()
    program = _program(arguments.server)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: workers and servers are ended
    folder = Path(tempfile.mkdtemp(prefix="hr-consumer-kills-"))
    rows: list[tuple[str, ...]] = []
    wrong = False
    for names in arguments.names:
        plan = Plan(
            seed=arguments.seed,
            names=names,
            entries=arguments.entries,
            kills=arguments.kills,
            poison=arguments.poison,
            batch_rows=arguments.batch_rows,
            min_idle=arguments.min_idle,
            timeout=arguments.timeout,
            topology=arguments.topology,
            disturbances=arguments.changes if arguments.topology == "cluster" else 0,
            connections=arguments.connections,
        )
        try:
            outcome = run(plan, program, folder / names)
        except WrongError as error:
            print(f"{program.label}, {names} names: {error}", flush=True)
            wrong = True
            continue
        rows.append(_row(program, plan, outcome))
        if faults := _faults(plan, outcome):
            print(f"{program.label}, {names} names: {'; '.join(faults)}: {outcome.verdict.examples}", flush=True)
            wrong = True
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    print("\n".join("  ".join(map(str.rjust, cells, widths)) for cells in (HEAD, *rows)))
    if wrong:
        print(f"files: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m consumer_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--poison", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="8.6", help="such as 7.0, 8.6, valkey")
    parser.add_argument("--names", type=lambda text: text.split(","), default=list(get_args(Names)))
    parser.add_argument("--batch-rows", type=int, default=100)
    parser.add_argument("--min-idle", type=float, default=1.0)
    parser.add_argument("--topology", default="single", choices=TOPOLOGIES, help="a stream, or six in a cluster")
    parser.add_argument(
        "--changes", type=int, default=30, help="slots that move and replicas that take over, in a cluster"
    )
    parser.add_argument("--connections", type=int, help="most connections of a process to each node that read")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a run")
    return parser


def _program(name: str) -> Program:
    found = [program for program in find_programs() if name in (program.name, program.label, program.label[6:])]
    if not found:
        sys.exit(f"no server {name} here, only {', '.join(program.label for program in find_programs())}")
    return max(found)


def _row(program: Program, plan: Plan, outcome: Outcome) -> tuple[str, ...]:
    verdict = outcome.verdict
    numbers = (
        outcome.struck,
        *(outcome.kills[phase] for phase in (Phase.WORKING, Phase.COMMITTING, Phase.COMMITTED)),
        outcome.kills.total() - outcome.struck,
        outcome.poisoned,
        verdict.delivered_again,
        verdict.committed_again,
        outcome.most_again(plan.batch_rows),
        outcome.late,
        outcome.lost_leases,
        outcome.disturbed.total(),
        verdict.lost,
        verdict.not_dead,
        verdict.wrong_dead,
    )
    times = (f"{outcome.settled:.2f} s", f"{outcome.seconds:.1f}")
    return (program.label, plan.names, *(f"{number:,}" for number in numbers), *times)


def _faults(plan: Plan, outcome: Outcome) -> list[str]:
    """What a run has against it."""
    verdict = outcome.verdict
    return [
        text
        for text, is_wrong in (
            ("too few kills", outcome.struck < plan.kills),
            ("too few changes", outcome.disturbed.total() < plan.disturbances),
            ("wrong entries", not verdict.well),
            ("too many commits", verdict.committed_again > outcome.most_again(plan.batch_rows)),
            # Taken over after min_idle, looked for each quarter of it; a second for the work.
            ("pending for too long", outcome.settled > 2 * plan.min_idle + 1),
        )
        if is_wrong
    ]


if __name__ == "__main__":
    sys.exit(main())
