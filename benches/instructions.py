"""Instructions and allocations per message or entry, counted by callgrind: they are stable where seconds are not.

    python -m benches.instructions                    every case, against the ceilings of instructions.toml
    python -m benches.instructions payload json       only these
    python -m benches.instructions --profile payload  the functions that spend them

Exit status 1: a case is above its ceiling, and no profile was requested. The work of the kernel is not counted. The
messages go to a server that only counts: under callgrind a client is about fifty times slower, so the milliseconds in a
real server's entry IDs would change that much more often; the counting server's clock advances by entries. Reads use
the newest Redis.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benches import document, figures
from benches.callgrind import Counts, read
from benches.counting import CountingServer
from benches.instruction_cases import CASES, LONG, MARK, ROWS_OF_BATCH, SHORT
from benches.machine import described
from benches.servers import newest_program
from benches.tables import aligned

from headrace.testing import LocalServer

BUDGET = Path(__file__).with_name("instructions.toml")
#: A ceiling that exceeds the figure by more than this factor guards too little.
SLACK = 1.10
#: Cases that must not allocate per message. A record batch and a growing buffer allocate a few times.
WITHOUT_ALLOCATIONS = {"payload", "payload-16", "payload-1024", "trim-every-100", "fields", "json"}
WITHOUT_ALLOCATIONS |= {"streams", "streams-1-node", "streams-8-nodes", "shards", "shards-8-nodes"}
ALLOCATIONS = 0.1
#: Lines of a profile.
PROFILE_LINES = 40


@dataclass(frozen=True)
class Cost:
    """The cost of one message."""

    instructions: float
    allocations: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Instructions a message, by callgrind.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of these: {', '.join(CASES)}; default: all")
    parser.add_argument("--profile", metavar="CASE", choices=CASES, help="show in which functions")
    parser.add_argument("--figures", type=Path, help="put the figures into this JSON file")
    parser.add_argument("--document", type=Path, help="put the table into this document")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if not shutil.which("valgrind"):
        parser.error("valgrind is not installed: it counts the instructions")

    names = list(dict.fromkeys([*(arguments.cases or CASES), *([arguments.profile] if arguments.profile else [])]))
    # The loops alone, for the cases whose figures include them.
    names += [loop for name in names if (loop := CASES[name].loop) and loop not in names]
    with tempfile.TemporaryDirectory() as folder:
        dumps = run(Path(folder), names)
        counts = {name: (read(short), read(long)) for name, (short, long) in dumps.items()}
    costs = {name: cost(short, long) for name, (short, long) in counts.items()}
    if arguments.profile:
        print(*profile(counts[arguments.profile][1]), sep="\n", end="\n\n")
    budget = tomllib.loads(BUDGET.read_text())["instructions"]
    heads = ("instructions a message", "counted", "loop alone", "ceiling", "allocations")
    table = list(aligned([heads, *lines(costs, budget)]))
    print(*table, sep="\n")
    machine = described()
    if arguments.figures:
        values = {name: round(found.instructions, 1) for name, found in costs.items()}
        part = {"machine": machine, "instructions": values, "ceilings": budget}
        figures.put(arguments.figures, "instructions", part)
    if arguments.document:
        document.fill(arguments.document, "instructions", [document.taken_on(machine), "", *table])
    failures = [*above(costs, budget)]
    for line in [*failures, *slack(costs, budget)]:
        print(line)
    return 1 if failures and not arguments.profile else 0


def run(folder: Path, names: Sequence[str]) -> dict[str, tuple[Path, Path]]:
    """Run the cases, and return for each the dumps of its short and its long interval."""
    log = folder / "valgrind.log"
    with ExitStack() as stack:
        nodes = {CASES[name].nodes for name in names}
        counting = {number: stack.enter_context(CountingServer(number)).port for number in sorted(nodes)}
        storing = 0
        if any(CASES[name].reads for name in names):
            storing = stack.enter_context(LocalServer(newest_program().path, transport="tcp")).port or 0
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/dump", f"--dump-before={MARK}"),
            f"--log-file={log}",
            *(sys.executable, "-m", "benches.instruction_cases", json.dumps(counting), str(storing), *names),
        ]
        # The hashes of str determine the order in which a dict is searched; idle threads of numpy are counted too. A
        # copy of 2 KiB or more by `rep movsb`, or such a fill, is one instruction, which callgrind counts once per
        # byte.
        vectors = ":".join(f"glibc.cpu.x86_rep_{name}_threshold={1 << 40}" for name in ("movsb", "stosb"))
        fixed = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "GLIBC_TUNABLES": vectors}
        finished = subprocess.run(command, env=os.environ | fixed, check=False)
    if finished.returncode:
        raise SystemExit(f"it failed under callgrind:\n{log.read_text()}")
    # The numbers of the dumps begin with 1; the counts after the last mark are in `dump` itself.
    numbered = [folder / f"dump.{number}" for number in range(1, 3 * len(names) + 1)]
    if not numbered[-1].exists():
        raise SystemExit(f"callgrind did not notice the calls of {MARK}:\n{log.read_text()}")
    return {name: (numbered[3 * at + 1], numbered[3 * at + 2]) for at, name in enumerate(names)}


def cost(short: Counts, long: Counts) -> Cost:
    messages = (LONG - SHORT) * ROWS_OF_BATCH
    return Cost((long.instructions - short.instructions) / messages, (long.allocations - short.allocations) / messages)


def lines(costs: dict[str, Cost], budget: dict[str, int]) -> Iterator[tuple[str, ...]]:
    for name, found in costs.items():
        case = CASES[name]
        loop = f"{costs[case.loop].instructions:,.0f}" if case.loop else ""
        ceiling = f"{budget[name]:,}" if name in budget else ""
        yield (f"{name}: {case.title}", f"{found.instructions:,.0f}", loop, ceiling, f"{found.allocations:.3f}")


def above(costs: dict[str, Cost], budget: dict[str, int]) -> Iterator[str]:
    """Yield the violations: instructions above a ceiling, or an allocation per message of a record batch."""
    for name, found in costs.items():
        if name in budget and found.instructions > budget[name]:
            yield f"TOO MANY: {name}: {found.instructions:,.0f} instructions a message; the ceiling is {budget[name]:,}"
        if name in WITHOUT_ALLOCATIONS and found.allocations >= ALLOCATIONS:
            yield f"TOO MANY: {name} allocates {found.allocations:.3f} times a message, which should be 0"


def slack(costs: dict[str, Cost], budget: dict[str, int]) -> Iterator[str]:
    for name, found in costs.items():
        if name in budget and found.instructions * SLACK < budget[name]:
            yield f"{name}: {BUDGET.name} could be lower than {budget[name]:,}: {found.instructions:,.0f} were counted"


def profile(counts: Counts) -> Iterator[str]:
    """Yield the functions in which a long interval is spent, and those that allocate in it, per message."""
    messages = LONG * ROWS_OF_BATCH
    for title_, counter in (("instructions", counts.by_function), ("allocations", counts.allocations_by_caller)):
        yield f"{title_} a message, by function, in an interval of {messages:,}:"
        for function, number in counter.most_common(PROFILE_LINES):
            yield f"{number / messages:10.3f}  {function}"


if __name__ == "__main__":
    sys.exit(main())
