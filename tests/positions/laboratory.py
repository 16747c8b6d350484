"""The laboratory of positions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, get_args

from laboratory import JOBS, SEED, SERVERS, Option, Run, laboratory, list_of
from support.servers import program_named

from .lies import LIES
from .plan import plan_of
from .runner import Job, Result, Topology, Worker, run


@laboratory(
    Option("schedules", 1000, "schedules on each server, in each topology"),
    *(SEED, SERVERS, JOBS),
    Option("topologies", list(get_args(Topology)), "one server, or a cluster of three"),
    Option("first", 0, "number of the first schedule"),
    Option("steps", None, "only these steps of each schedule", list_of),
    Option("shrink", False, "look for the fewest steps of the first schedule of each kind of violation"),
    Option("loud", False, "print what each schedule does"),
    Option("lie", None, "a lie that readers tell once", choices=[*LIES]),
)
def positions(this: Run) -> str:
    """Read streams that change from any start and any stored position, and check each row and each report.

    5,000 schedules on one server take four minutes.
    """
    options = this.options
    total: Counter[str] = Counter()
    for program in map(program_named, options.servers):
        for topology in options.topologies:
            kinds: Counter[str] = Counter()
            counts: Counter[str] = Counter()
            numbers = range(options.first, options.first + options.schedules)
            steps = None if options.steps is None else tuple(map(int, options.steps))
            jobs = (Job(options.seed, number, steps, options.lie) for number in numbers)
            with this.progress(len(numbers), "schedules") as add:
                for job, result in run(program, topology, jobs, options.jobs, is_loud=options.loud):
                    add(1)
                    counts += result.counts
                    if not result.what:
                        continue
                    kinds[result.what] += 1
                    again: dict[str, Any] = {"schedules": 1, "first": job.number, "shrink": False}
                    again |= {"servers": [program.label], "topologies": [topology]}
                    if options.shrink and kinds[result.what] == 1:
                        with Worker(program, topology) as worker:
                            least, result = _shrink(worker, job, result)
                        again["steps"] = [str(step) for step in least]
                    where = f"{program.label}, {topology}, schedule {job.number}"
                    lines = [f"{where}: {result.text}", *(result.log if "steps" in again else ())]
                    this.is_wrong("\n    ".join(lines), this.repeat(**again))
            total += counts
            counted = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
            this.say(f"{program.label}, {topology}: {counted}")
            for what, count in kinds.most_common():
                this.say(f"  {count:>5} x {what}")
    return f"{options.schedules:,} schedules on each, {total['readers']:,} readers"


def _shrink(worker: Worker, job: Job, result: Result) -> tuple[list[int], Result]:
    """The steps without which the violation does not occur, and what they do."""
    steps = len(plan_of(f"{job.seed}/{job.number}").steps)
    least = list(job.steps if job.steps is not None else range(steps))
    size = max(1, len(least) // 2)
    while size:
        at = 0
        while at < len(least):
            fewer = [*least[:at], *least[at + size :]]
            found = worker.play(replace(job, steps=tuple(fewer)))
            if found.what == result.what:
                least, result = fewer, found
            else:
                at += size
        size //= 2
    return least, result
