"""Some schedules on each server; the laboratory `positions` plays thousands."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from positions.lies import LIES
from positions.plan import plan_of
from positions.runner import Job, Topology, run
from support import find_programs

pytestmark = pytest.mark.thorough

SCHEDULES = 60
#: The schedules of which one must find a lie: most have nothing to lie about.
TRIES = 400

#: Redis 6.2 does not count entries.
PROGRAMS = {program.label: program for program in find_programs() if program.numbers >= (7,)}


@pytest.mark.parametrize("topology", get_args(Topology))
@pytest.mark.parametrize("label", PROGRAMS)
def test_positions_promise_what_is_done(label: str, topology: Topology) -> None:
    """Random schedules; the seed is in each violation."""
    seed = random.SystemRandom().getrandbits(32)
    jobs = [Job(seed, number) for number in range(SCHEDULES)]
    wrong = [f"{job}: {result.text}" for job, result in run(PROGRAMS[label], topology, jobs) if result.what]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(lie: str) -> None:
    """A schedule is wrong with the lie, and right without it."""
    jobs = (job for number in range(TRIES) for job in (Job(1, number), Job(1, number, lie=lie)))
    wrong: set[int] = set()
    for job, result in run(max(PROGRAMS.values()), "single", jobs):
        if result.what and job.number not in wrong:
            if job.lie:
                return
            wrong.add(job.number)
    pytest.fail(f"{TRIES} schedules do not find it")


def test_the_same_seed_has_the_same_steps() -> None:
    assert plan_of("1/7") == plan_of("1/7") != plan_of("1/8")
