"""Some faults while streams are read, on each server; the laboratory `campaign-read` runs thousands."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from faults.campaign import run
from read_faults import checker, group_checker, read_kinds
from read_faults.read_campaign import READING, episode_apart, is_ours, pairs
from support.servers import find_programs

pytestmark = pytest.mark.thorough

#: The number of faults for each server and client, and of processes, which mostly wait.
FAULTS = {"reader": 12, "async-reader": 6, "consumer": 6, "consumers": 6, "async-consumers": 6}
JOBS = 4

NEWEST = max(find_programs()).label


@pytest.mark.parametrize("client", FAULTS)
def test_every_entry_is_read_or_reported(client: str) -> None:
    """Random faults on all servers; the seed is in each violation."""
    chosen = [pair for pair in pairs() if pair[1] == client]
    total = FAULTS[client] * len(chosen)
    seed = random.SystemRandom().getrandbits(32)
    done = run(chosen, total, seed, JOBS, lambda _: None, READING)
    wrong = [failure for each in done for failure in each.failures]
    texts = [f"{text}; repeat with: {repeat}" for text, repeat in wrong]
    assert not texts, "\n".join(texts)
    faults = sum((each.result.faults for each in done), Counter[str]())
    assert faults.total() >= total
    assert len(faults) > min(total, len(set(read_kinds.kinds_for(client)))) / 2


def test_every_client_of_headrace_is_tested() -> None:
    assert {client for _, client in pairs() if is_ours(client)} == set(FAULTS)


def test_the_checker_finds_losses_that_redis_py_does_not_report() -> None:
    result = episode_apart(NEWEST, "redis-py", [read_kinds.REPLACE_LOWER, read_kinds.TRIM_MAXLEN], seed=1)
    assert {checker.UNREPORTED, checker.LOST, checker.UNNOTICED} <= {found.what for found in result.violations}


def test_the_checker_finds_losses_of_a_group_without_replay_and_with_early_acks() -> None:
    names = ["reset in replies", read_kinds.KILL_AT_STEP] * 5
    result = episode_apart(NEWEST, "redis-py-group", names, seed=2)
    found = {found.what for found in result.violations}
    assert group_checker.EARLY in found
    assert {checker.LOST, group_checker.PENDING} & found


def test_faults_at_chosen_bytes_and_of_the_group_are_injected() -> None:
    names = [name for name, of in read_kinds.OF.items() if of in ("group", "bytes")]
    result = episode_apart(NEWEST, "consumer", names, seed=3)
    assert not result.violations
    assert len(result.faults) > len(names) / 2
