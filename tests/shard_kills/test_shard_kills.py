"""Short runs of the laboratories `shard-kills` and `shard-pauses`, and lies that the checker must find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_kills.balance import fewest
from shard_kills.check import (
    Entry,
    Lease,
    LeaseChecker,
    Verdict,
    check_log,
    check_positions,
    check_report,
    check_rows,
    shares,
)
from shard_kills.episode import Outcome
from shard_kills.pauses import longest_pauses
from shard_kills.servers import lease_key, members_key
from shard_kills.sink import Row, Sink
from support.servers import find_programs

#: Two keys in each of two shards.
STREAMS = {
    f"events:{shard}": [Entry((1_000 + n // 2, n % 2), f"k{shard}{n % 2}", n // 2) for n in range(8)]
    for shard in (0, 1)
}
SHARDS = list(STREAMS)
#: One owner, then the next one.
ROWS = [
    Row(shard, entry.entry_id, entry.key, entry.number, 1 + (n > 3), f"pod-{1 + (n > 3)}")
    for n in range(8)
    for shard in SHARDS
    for entry in STREAMS[shard][n : n + 1]
]


def run_laboratory(*words: str) -> str:
    command = [sys.executable, "-m", "laboratory", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_no_row_is_lost_twice_or_out_of_order() -> None:
    program = max(find_programs()).label
    said = run_laboratory("shard-kills", "--faults=6", f"--servers={program}", "--lease=1", "--shards=6", "--members=3")
    assert f"{program}, seed 1, lease 1 s: 6 faults" in said


@pytest.mark.thorough
def test_no_row_is_lost_in_a_cluster() -> None:
    program = max(find_programs()).label
    run_laboratory("shard-kills", "--topology=cluster", "--faults=6", f"--servers={program}", "--lease=1", "--seed=3")


@pytest.mark.thorough
def test_what_others_do_is_counted() -> None:
    program = max(find_programs()).label
    said = run_laboratory("shard-kills", "--contenders", "--faults=12", "--per-episode=3", f"--servers={program}")
    assert [kind for kind in ("consumers", "locks", "thieves") if f"| {kind} " in said] == [
        "consumers", "locks", "thieves"
    ]  # fmt: skip


@pytest.mark.thorough
def test_pauses_and_balance_are_measured() -> None:
    words = ("--rounds=1", "--lease=1", "--shards=12", "--seconds=0.5", f"--servers={max(find_programs()).label}")
    said = run_laboratory("shard-pauses", *words)
    assert said.count("SIGKILL") == 2
    assert "12 to 20" in said


def test_an_episode_without_faults_passes() -> None:
    verdict = Verdict()
    check_rows(verdict, STREAMS, ROWS, is_lossy=False)
    check_log(verdict, STREAMS, ROWS, counts=False)
    assert not verdict.wrong, verdict
    assert (verdict.entries, verdict.log) == (
        16,
        {"rows": 16, "lost": 0, "keys": 4, "keys that end with an old row": 0},
    )


def swapped(rows: list[Row], first: int, second: int) -> list[Row]:
    rows = rows.copy()
    rows[first], rows[second] = rows[second], rows[first]
    return rows


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (lambda rows: rows[1:], {"an entry was lost": 1}),
        (lambda rows: rows[:-1], {"an entry was lost": 1}),
        (lambda rows: [*rows, rows[-1]], {"a row is there twice": 1}),
        (lambda rows: swapped(rows, 0, 4), {"a row is behind a later one of its key": 2}),
        (lambda rows: [*rows, rows[0]._replace(entry_id=(9, 9), epoch=2)], {"a row of no entry": 1}),
        (lambda rows: [rows[0]._replace(number=7), *rows[1:]], {"a row has other content than its entry": 1}),
        (lambda rows: [rows[0]._replace(key="k9"), *rows[1:]], {"a row has other content than its entry": 1}),
        (lambda rows: [*rows[:-1], rows[-1]._replace(epoch=1)], {"a row has an older epoch than one before": 1}),
        (
            lambda rows: [rows[0]._replace(shard="events:1"), *rows[1:]],
            {"a row has other content than its entry": 1, "a row is there twice": 1, "an entry was lost": 1},
        ),
    ],
)
def test_each_lie_of_the_database_is_found(lie: Callable[[list[Row]], list[Row]], found: dict[str, int]) -> None:
    verdict = Verdict()
    check_rows(verdict, STREAMS, lie(ROWS), is_lossy=False)
    # What follows from a wrong number or key.
    verdict.wrong.pop("a row is behind a later one of its key", None) if "other" in str(found) else None
    assert verdict.wrong == found


def test_a_producer_that_writes_out_of_order_is_found() -> None:
    verdict = Verdict()
    check_rows(verdict, {"events:0": [Entry((1, 0), "k", 1), Entry((2, 0), "k", 0)]}, [], is_lossy=False)
    assert verdict.wrong["the producer wrote a key out of order"] == 1


def test_what_a_failover_explains_is_not_wrong() -> None:
    verdict = Verdict()
    gone = ROWS[-1]._replace(entry_id=(2_000, 0), number=99)
    check_rows(verdict, STREAMS, [*ROWS, gone], is_lossy=True)
    checker = LeaseChecker(verdict, is_lossy=True)
    for lease in (Lease("a", 5, 9, (7, 0)), Lease("b", 4, 9, (6, 0))):
        checker.see("events:0", lease)
    assert not verdict.wrong
    assert verdict.explained == {"a row of no entry": 1, "an epoch went back": 1, "a position went back": 1}


@pytest.mark.parametrize(
    ("lie", "wrong", "log"),
    [
        (lambda rows: [*rows, *rows[-2:]], {}, {"repeated": 2}),
        (lambda rows: swapped(rows, 0, 4), {"an entry was processed first behind a later one": 2}, {"out of order": 2}),
        (lambda rows: rows[2:], {"an entry was not processed": 1}, {"lost": 2}),
        (
            lambda rows: [*rows, rows[0]],
            {},
            {"repeated": 1, "behind the next owner": 1, "keys that end with an old row": 1},
        ),
    ],
)
def test_each_lie_of_the_log_is_found(
    lie: Callable[[list[Row]], list[Row]], wrong: dict[str, int], log: dict[str, int]
) -> None:
    for counts in (False, True):
        verdict = Verdict()
        check_log(verdict, STREAMS, lie(ROWS), counts=counts)
        assert verdict.wrong == ({} if counts else wrong)
        assert {name: verdict.log[name] for name in log} == log


@pytest.mark.parametrize(
    ("leases", "wrong"),
    [
        ([Lease("a", 1, 9, None), Lease("a", 1, 10, (5, 0)), Lease("", 1, 0, (5, 0)), Lease("b", 2, 9, (5, 1))], {}),
        ([Lease("a", 1, 9, (5, 0)), Lease("a", 1, 9, (4, 9))], {"a position went back": 1}),
        # Also if it was deleted in between.
        ([Lease("a", 1, 9, (5, 0)), Lease("b", 2, 9, None), Lease("b", 2, 9, (4, 0))], {"a position went back": 1}),
        ([Lease("a", 2, 9, None), Lease("b", 1, 9, None)], {"an epoch went back": 1}),
        ([Lease("a", 2, 9, None), Lease("b", 2, 9, None)], {"two members had one epoch": 1}),
    ],
)
def test_each_lie_of_the_leases_is_found(leases: list[Lease], wrong: dict[str, int]) -> None:
    verdict = Verdict()
    checker = LeaseChecker(verdict)
    for lease in leases:
        checker.see("events:0", lease)
    assert verdict.wrong == wrong


@pytest.mark.parametrize(
    ("lease", "group", "wrong"),
    [
        (Lease("", 1, 0, (1_003, 1)), (1_003, 1), {}),
        (Lease("", 1, 0, (1_003, 0)), (1_003, 1), {"a position is not at the end": 1}),
        (Lease("", 1, 0, (1_003, 1)), (1_003, 0), {"the group is not at the end": 1}),
        (Lease("a", 1, 9, (1_003, 1)), (1_003, 1), {"a member that has closed owns a shard": 1}),
        (None, (1_003, 1), {"a position is not at the end": 1}),
    ],
)
def test_each_lie_of_the_last_positions_is_found(
    lease: Lease | None, group: tuple[int, int], wrong: dict[str, int]
) -> None:
    verdict = Verdict()
    leases = {"events:0": lease} if lease else {}
    check_positions(verdict, {"events:0": STREAMS["events:0"]}, leases, {"events:0": group})
    assert verdict.wrong == wrong


@pytest.mark.parametrize(
    ("changed", "withheld", "is_wrong"),
    [
        ({}, 0, False),
        ({"committed": 6, "fenced": 3, "unknown": 1}, 0, False),
        ({"committed": 8}, 2, False),
        ({"committed": 9}, 0, True),
        ({"fenced": 1}, 0, True),
        ({"committed": 9, "pending": 1}, 0, True),
    ],
)
def test_counts_that_do_not_add_up_are_found(changed: dict[str, int], withheld: int, is_wrong: bool) -> None:
    verdict = Verdict()
    counts = {"handed_over": 10, "committed": 10, "fenced": 0, "unknown": 0, "pending": 0}
    check_report(verdict, counts | changed, withheld)
    assert bool(verdict.wrong) is is_wrong


def test_the_database_fences(tmp_path: Path) -> None:
    Sink.create(tmp_path, SHARDS)
    sink = Sink(tmp_path)
    mine = [row for row in ROWS if row.shard == "events:0"]
    assert sink.write(mine[:4])
    later = [row._replace(epoch=2) for row in mine[2:6]]
    assert sink.write(later)
    assert not sink.write(mine[4:6]) or mine[4].epoch == 2
    assert not sink.write([row._replace(epoch=1) for row in mine[6:]])
    assert sink.ends() == {"events:0": mine[5].entry_id, "events:1": (0, 0)}
    assert [row.entry_id for row in sink.rows()] == [row.entry_id for row in mine[:6]]
    sink.note(mine)
    assert [row._replace(at=0.0) for row in sink.log()] == mine
    sink.close()


def test_pauses_are_those_of_the_time_of_a_strike() -> None:
    rows = [Row(shard, (at, 0), "k", at, 1, "pod", float(at)) for at in range(20) for shard in SHARDS]
    rows = [row for row in rows if row.shard == "events:1" or not 5 < row.at < 9]
    assert longest_pauses(rows, [(0.0, 10.0, {"events:0"})]) == ([4.0], [1.0])


def test_shares_and_moves() -> None:
    assert shares(12, 5) == {3: 2, 2: 3}
    assert shares(2, 3) == {1: 2, 0: 1}
    assert [fewest(12, *step) for step in ((0, 3), (3, 4), (4, 3), (12, 20), (5, 6))] == [12, 3, 3, 0, 2]


def test_an_outcome_is_kept_as_json() -> None:
    outcome = Outcome(["kill"], served=[("kill", 1.5)])
    outcome.verdict.add("an entry was lost", "why")
    assert Outcome.from_json(outcome.as_json()) == outcome


def test_leases_are_beside_their_streams() -> None:
    keys: dict[str, Any] = {"events:7": "{events:7}:lease:billing", "a{b}": "lease:a{b}:billing"}
    assert {stream: lease_key(stream) for stream in keys} == keys
    assert members_key("events:0") == "{events:0}:members:billing"
