"""Some faults while streams are read, on each server; `make campaign-read` runs thousands."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from faults.campaign import run
from read_faults import checker, group_checker, read_kinds
from read_faults.read_campaign import READING, episode_apart, is_ours, pairs
from read_faults.read_kinds import OF
from support.servers import find_programs

pytestmark = pytest.mark.timeout(240)

#: Faults of each pair, and processes: they wait most of the time.
FAULTS, JOBS = 24, 4

NEWEST = max(find_programs()).label


def test_every_entry_is_read_once_or_reported() -> None:
    """Random faults over all pairs; the seed is in each violation."""
    chosen = [pair for pair in pairs() if is_ours(pair[1])]
    seed = random.SystemRandom().getrandbits(32)
    done = run(chosen, FAULTS * len(chosen), seed, JOBS, lambda _: None, READING)
    wrong = [failure for each in done for failure in each.failures]
    texts = [f"{text}: PYTHONPATH=tests python -m read_faults replay {replay_id}" for text, replay_id in wrong]
    assert not texts, "\n".join(texts)
    faults = sum((each.result.faults for each in done), Counter[str]())
    assert faults.total() >= FAULTS * len(chosen)
    assert len(faults) > len(OF) / 2


def test_the_checker_finds_what_redis_py_does_not_report() -> None:
    result = episode_apart(NEWEST, "redis-py", [read_kinds.REPLACE_LOWER, read_kinds.TRIM_MAXLEN], seed=1)
    assert {checker.UNREPORTED, checker.LOST, checker.UNNOTICED} <= {found.what for found in result.violations}


def test_the_checker_finds_what_a_group_loses_without_replay_and_with_early_acks() -> None:
    names = [read_kinds.TRIM_MAXLEN, *["reset in replies", read_kinds.KILL_AT_STEP] * 5]
    result = episode_apart(NEWEST, "redis-py-group", names, seed=2)
    found = {found.what for found in result.violations}
    assert {checker.UNREPORTED, group_checker.EARLY} <= found
    assert {checker.LOST, group_checker.PENDING} & found
