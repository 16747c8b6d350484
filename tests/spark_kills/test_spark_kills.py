"""A few runs of `spark_kills`; the laboratory `spark-kills` does many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kills.plan import Plan, Strike, Trap, make_plan, make_source_plan
from spark_kills.pool import Pool
from spark_kills.rows import Rows
from spark_kills.run import RECORD_BATCH, Outcome, Setting, run
from support.patience import PATIENCE
from support.servers import Program, find_programs

pytestmark = pytest.mark.thorough

ROWS = 40_000
#: The seeds of a run on each server: together they cover all kinds of faults.
SEEDS = {"redis-6.2": 49, "redis-7.0": 7, "redis-8.6": 17}
SETTING = Setting("redis_streams", "auto", timeout=PATIENCE)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(tmp_path_factory.mktemp("drivers")) as pool:
        yield pool


def summary(outcome: Outcome) -> str:
    return f"{outcome.verdict}, {outcome.faults}, {outcome.errors}"


def test_the_duplicates_of_a_hand_written_sink_are_found(pool: Pool, tmp_path: Path) -> None:
    program = max(find_programs())
    traps = (Trap("task", 0, 1, 2), Trap("worker", 1, 0, 3), Trap("commit", 1, 0, None))
    plan = Plan(0, Rows(files=4, rows_per_file=5_000, files_per_batch=2), (), traps)
    outcome = run(plan, program, Setting("plain", "off", PATIENCE), pool, tmp_path / "run")
    assert outcome.faults == {"task": 1, "worker": 1, "commit": 1}, summary(outcome)
    assert outcome.restarts == 1  # for the commit
    # The rows of the failed attempts, and all rows of the micro-batch whose commit failed.
    assert outcome.verdict.duplicated == 2_000 + 3_000 + 10_000, summary(outcome)
    assert outcome.verdict.at_least_once
    assert not outcome.verdict.exactly_once


def test_exactly_once_writes_each_row_once_and_in_order(pool: Pool, tmp_path: Path, program: Program) -> None:
    plan = make_plan(SEEDS.get(program.label, 4), ROWS, RECORD_BATCH)
    outcome = run(plan, program, SETTING, pool, tmp_path / "run")
    assert outcome.faults.total() >= 3, summary(outcome)
    assert outcome.verdict.exactly_once, summary(outcome)


def test_a_stream_is_read_and_written_once_and_in_order(pool: Pool, tmp_path: Path) -> None:
    plan = make_source_plan(1, ROWS, RECORD_BATCH)
    setting = Setting("redis_streams", "auto", 2 * PATIENCE, source="stream")  # four rounds
    outcome = run(plan, max(find_programs()), setting, pool, tmp_path / "run")
    assert outcome.faults.keys() >= {"driver", "server", "trim"}, summary(outcome)
    assert outcome.verdict.exactly_once, summary(outcome)
    assert outcome.reported_trimmed == outcome.trimmed > 0, summary(outcome)


def test_each_row_is_written_to_a_cluster_once_and_in_order(pool: Pool, tmp_path: Path) -> None:
    strikes = (
        Strike("move", "rows", 3_000, stream=4, way="whole"),
        Strike("master", "rows", 8_000, stream=1),
        Strike("move", "rows", 14_000, stream=2, way="slowly"),
    )
    plan = Plan(0, Rows(files=4, rows_per_file=5_000, files_per_batch=2), strikes, (Trap("task", 1, 0, 2),))
    setting = Setting("redis_streams", "auto", PATIENCE, topology="cluster", wait_replicas="all")
    outcome = run(plan, max(find_programs()), setting, pool, tmp_path / "run")
    assert outcome.faults == {"move": 2, "master": 1, "task": 1}, summary(outcome)
    assert outcome.verdict.entries == plan.rows.count, summary(outcome)
    assert outcome.verdict.exactly_once, summary(outcome)


def test_without_exactly_once_nothing_is_lost(pool: Pool, tmp_path: Path) -> None:
    plan = make_plan(23, ROWS, RECORD_BATCH, ["worker", "task", "server"])
    outcome = run(plan, max(find_programs()), Setting("redis_streams", "off", PATIENCE), pool, tmp_path / "run")
    assert outcome.faults.keys() == {"worker", "task", "server"}, summary(outcome)
    assert outcome.verdict.at_least_once, summary(outcome)
    assert outcome.verdict.duplicated, summary(outcome)


def test_without_exactly_once_duplicates_are_reported(pool: Pool, tmp_path: Path) -> None:
    # One task fails twice: in the middle of its rows, and after them.
    traps = (Trap("task", 0, 0, 2), Trap("task", 0, 0, None))
    plan = Plan(0, Rows(files=2, rows_per_file=5_000, files_per_batch=2), (), traps)
    outcome = run(plan, max(find_programs()), Setting("redis_streams", "off", PATIENCE), pool, tmp_path / "run")
    assert (outcome.faults, outcome.restarts) == ({"task": 2}, 0), summary(outcome)
    assert outcome.verdict.duplicated == 2_000 + 5_000, summary(outcome)
    assert outcome.reported["possible_duplicates"] >= 7_000
