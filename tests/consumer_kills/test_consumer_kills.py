"""Short runs of the laboratory `consumer-kills`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from consumer_kills.check import Entries, Fields, check
from consumer_kills.targets import TOPOLOGIES
from consumer_kills.worker import MAX_FAILURES, STREAM_KEY
from support.patience import PATIENCE
from support.servers import find_programs

pytestmark = pytest.mark.thorough

ENTRIES = Entries(100, frozenset({50}))
OTHERS: tuple[dict[str, object], ...] = (
    {"topology": "cluster", "connections": 1},
    {"topology": "cluster", "asynchronous": True},
)
HEALTHY = [number for number in range(100) if number != 50]


@pytest.mark.parametrize("more", [*({"topology": topology} for topology in TOPOLOGIES), *OTHERS], ids=str)
def test_killed_processes_lose_no_entries_and_poison_becomes_a_dead_letter(more: dict[str, object]) -> None:
    program = max(find_programs()).label
    options: dict[str, object] = {
        "servers": program,
        "kills": 4,
        "entries": 2_000,
        "poison": 1,
        "batch-rows": 16,
        # Leases that a busy machine keeps.
        "min-idle": 2,
        "timeout": PATIENCE,
    }
    options |= {**more, "changes": 3}
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "laboratory", "consumer-kills", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:-1]] == [
        [program, "stable", "4"],
        [program, "random", "4"],
    ]


def rows(numbers: list[int], commits: int = 1) -> list[tuple[str, str, int, int]]:
    return [(STREAM_KEY, ENTRIES.entry_id(number), number, commits) for number in numbers]


def delivered(numbers: list[int]) -> list[str]:
    return [f"{STREAM_KEY} {ENTRIES.entry_id(number)}" for number in numbers]


def dead_letter(number: int, **changed: bytes) -> Fields:
    added = {
        "stream": STREAM_KEY.encode(),
        "id": ENTRIES.entry_id(number).encode(),
        "reason": b"why",
        "failures": b"%d" % MAX_FAILURES,
    }
    return (*ENTRIES.fields(number), *((f"dead:{name}".encode(), text) for name, text in {**added, **changed}.items()))


def test_a_run_without_faults_passes() -> None:
    verdict = check(ENTRIES, rows(HEALTHY), delivered(HEALTHY), [dead_letter(50)])
    assert verdict.well
    assert (verdict.committed_again, verdict.delivered_again) == (0, 0)


def test_repeated_commits_and_deliveries_are_counted() -> None:
    again = delivered([*HEALTHY, 7, 7, 8])
    verdict = check(ENTRIES, [*rows(HEALTHY[:-1]), *rows([99], commits=3)], again, [dead_letter(50)])
    assert verdict.well
    assert (verdict.committed_again, verdict.delivered_again) == (2, 3)


@pytest.mark.parametrize(
    ("committed", "dead", "counts"),
    [
        (rows(HEALTHY[1:]), [dead_letter(50)], {"lost": 1}),
        ([*rows(HEALTHY), *rows([50])], [dead_letter(50)], {"foreign": 1}),
        ([*rows(HEALTHY[1:]), (STREAM_KEY, "9-9", 0, 1)], [dead_letter(50)], {"foreign": 1, "lost": 1}),
        (rows(HEALTHY), [], {"not_dead": 1}),
        (rows(HEALTHY), [dead_letter(50), dead_letter(50)], {"wrong_dead": 1}),
        (rows(HEALTHY), [dead_letter(50), dead_letter(51)], {"wrong_dead": 1}),
        (rows(HEALTHY), [dead_letter(50, id=b"1-0")], {"wrong_dead": 1}),
        (rows(HEALTHY), [dead_letter(50, failures=b"2")], {"wrong_dead": 1}),
        (rows(HEALTHY), [dead_letter(50)[1:]], {"wrong_dead": 1, "not_dead": 1}),
    ],
)
def test_each_fault_is_found(committed: Any, dead: list[Fields], counts: dict[str, int]) -> None:
    verdict = check(ENTRIES, committed, [], dead)
    sorts = ("lost", "foreign", "not_dead", "wrong_dead")
    assert {sort: getattr(verdict, sort) for sort in sorts} == dict.fromkeys(sorts, 0) | counts
    assert not verdict.well


def test_entries_of_several_streams_are_checked_in_their_own_stream() -> None:
    entries = Entries(4, frozenset(), ("a", "b"))
    whole = [("a", entries.entry_id(0), 0, 1), ("b", entries.entry_id(1), 1, 1), ("a", entries.entry_id(2), 2, 1)]
    assert check(entries, [*whole, ("b", entries.entry_id(3), 3, 1)], [], []).well
    verdict = check(entries, [*whole, ("a", entries.entry_id(3), 3, 1)], [], [])
    assert (verdict.foreign, verdict.lost) == (1, 1)
    assert verdict.examples["lost"] == ["b 1000-3"]
