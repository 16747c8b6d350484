"""The checker of `spark_kills` finds every fault, and plans are determined by their seeds. No Spark."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import LocalServer
from spark_kills.check import check
from spark_kills.feed import ROWS_KEY, Feed
from spark_kills.plan import OF_CLUSTERS, OF_FILES, STREAMS, WAYS, Plan, make_plan, make_source_plan
from spark_kills.results import Result, table
from spark_kills.rows import LINE_BYTES, Rows, line, parse, write_files

ROWS = Rows(files=6, rows_per_file=50, files_per_batch=4)


def in_order() -> list[bytes]:
    """A correct stream: the partitions of a micro-batch interleaved, each in order."""
    dice = random.Random(7)
    payloads: list[bytes] = []
    for batch in range(ROWS.batches):
        left = {file: 0 for file in range(ROWS.files) if ROWS.batch_of(file) == batch}
        while left:
            file = dice.choice(list(left))
            payloads.append(line(file, left[file]))
            left[file] += 1
            if left[file] == ROWS.rows_per_file:
                del left[file]
    return payloads


def test_a_correct_stream_passes() -> None:
    verdict = check(ROWS, in_order())
    assert (verdict.expected, verdict.entries) == (300, 300)
    assert verdict.exactly_once
    assert verdict.at_least_once
    assert verdict.examples == {}


def lose_one(payloads: list[bytes]) -> None:
    payloads.remove(line(2, 31))


def lose_the_last_row_of_a_file(payloads: list[bytes]) -> None:
    payloads.remove(line(3, 49))


def double_one(payloads: list[bytes]) -> None:
    payloads.insert(payloads.index(line(2, 31)) + 1, line(2, 31))


def double_one_at_the_end(payloads: list[bytes]) -> None:
    payloads.append(line(2, 31))


def swap_two(payloads: list[bytes]) -> None:
    first, second = payloads.index(line(2, 31)), payloads.index(line(2, 32))
    payloads[first], payloads[second] = payloads[second], payloads[first]


def begin_the_second_batch_too_soon(payloads: list[bytes]) -> None:
    last = max(number for number, payload in enumerate(payloads) if parse(payload) in {(file, 49) for file in range(4)})
    payloads.insert(last, payloads.pop(last + 1))


def change_a_byte(payloads: list[bytes]) -> None:
    place = payloads.index(line(2, 31))
    payloads[place] = payloads[place][:-1] + b"#"


def add_one_of_no_file(payloads: list[bytes]) -> None:
    payloads.append(line(6, 0))


@pytest.mark.parametrize(
    ("spoil", "counts", "example"),
    [
        (lose_one, {"lost": 1}, "2:31"),
        (lose_the_last_row_of_a_file, {"lost": 1}, "3:49"),
        (double_one, {"duplicated": 1}, "2:31"),
        (double_one_at_the_end, {"duplicated": 1}, "2:31"),
        (swap_two, {"out_of_order": 1}, "2:31"),
        (begin_the_second_batch_too_soon, {"out_of_order": 1}, None),
        (change_a_byte, {"lost": 1, "foreign": 1}, "2:31"),
        (add_one_of_no_file, {"foreign": 1}, None),
    ],
)
def test_the_checker_finds_each_fault(
    spoil: Callable[[list[bytes]], None], counts: dict[str, int], example: str | None
) -> None:
    payloads = in_order()
    spoil(payloads)
    verdict = check(ROWS, payloads)
    sorts = ("lost", "duplicated", "foreign", "out_of_order")
    assert {sort: getattr(verdict, sort) for sort in sorts} == dict.fromkeys(sorts, 0) | counts
    assert not verdict.exactly_once
    assert verdict.at_least_once == (not {"lost", "foreign"} & counts.keys())
    if example:
        assert example in verdict.examples[next(iter(counts))]


def by_streams(payloads: list[bytes]) -> list[list[bytes]]:
    """The rows with even numbers, and those with odd numbers."""
    return [[payload for payload in payloads if int(payload[6:13]) % 2 == stream] for stream in (0, 1)]


def test_rows_of_several_streams_are_checked() -> None:
    even, odd = by_streams(in_order())
    assert check(ROWS, even, odd).exactly_once
    assert check(ROWS, even, [*odd, odd[0]]).duplicated == 1
    assert check(ROWS, even, odd[1:]).lost == 1
    assert check(ROWS, [*odd, *even], []).foreign == len(odd)
    assert check(ROWS, even, odd[::-1]).out_of_order > 0


def test_trimmed_rows_do_not_count_as_lost() -> None:
    payloads = [payload for payload in in_order() if (parse(payload) or (0, 0)) >= (0, 7)]
    assert check(ROWS, payloads, trimmed={0: 7}).exactly_once
    assert check(ROWS, payloads, trimmed={0: 6}).lost == 1
    assert check(ROWS, in_order(), trimmed={0: 7}).foreign == 7


def test_the_checkpoint_locates_the_rows_of_a_stream(any_server: LocalServer, tmp_path: Path) -> None:
    plan = Plan(0, Rows(2, 70, 1), (), (), (0, 20))
    feed = Feed(plan, any_server, tmp_path)
    assert [feed.next_round() for _ in range(3)] == [True, True, False]
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    (tmp_path / "offsets").mkdir()
    first = 1_795_324_724_029
    offsets = [
        {"id": f"{first + 9}-6", "n": 70, "lost": 0, "splits": [[f"{first + 5}-0", None]]},
        {"id": f"{first + 19}-5", "n": 139, "lost": 20},
    ]
    for number, offset in enumerate(offsets):
        lines = ["v1", "{}", json.dumps({"v": 1, "streams": {ROWS_KEY: offset}})]
        (tmp_path / "offsets" / str(number)).write_text("\n".join(lines))
    place = feed.place()
    assert [place(0, 0), place(0, 34), place(0, 35), place(0, 69)] == [(0, 0), (0, 0), (0, 1), (0, 1)]
    assert [place(1, 0), place(1, 68), place(1, 69)] == [(1, 2), (1, 2), (2, 3)]
    assert (feed.trimmed, feed.reported(), feed.is_read()) == ({0: 0, 1: 20}, 20, False)
    # Trimming rows of the second round also removed all of the first.
    assert feed.trim_committed() == 0


def test_committed_entries_are_trimmed(any_server: LocalServer, tmp_path: Path) -> None:
    feed = Feed(Plan(0, Rows(1, 70, 1), (), (), (0,)), any_server, tmp_path)
    feed.next_round()
    assert feed.trim_committed() == 0
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    offset = {"v": 1, "streams": {ROWS_KEY: {"id": f"{1_795_324_724_029}-6", "n": 7, "lost": 0}}}
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(offset)]))
    assert feed.trim_committed() == 0
    (tmp_path / "commits" / "0").touch()
    assert feed.trim_committed() == 7


def test_a_verdict_names_the_first_lost_rows() -> None:
    verdict = check(ROWS, [])
    assert verdict.lost == 300
    assert verdict.examples["lost"] == ["0:0", "0:1", "0:2", "0:3", "0:4"]


def test_files_hold_the_rows_that_are_checked(tmp_path: Path) -> None:
    write_files(tmp_path / "input", ROWS)
    files = sorted((tmp_path / "input").iterdir())
    payloads = [payload for file in files for payload in file.read_bytes().splitlines()]
    assert check(ROWS, payloads).exactly_once
    assert {len(payload) for payload in payloads} == {LINE_BYTES}
    assert sorted(files, key=os.path.getmtime) == files


def test_a_plan_is_determined_by_its_seed() -> None:
    assert make_plan(5, 2_000, 100) == make_plan(5, 2_000, 100)
    assert make_source_plan(5, 2_000, 100) == make_source_plan(5, 2_000, 100)
    for draw in (make_plan, make_source_plan):
        assert len({draw(seed, 2_000, 100) for seed in range(20)}) == 20


@pytest.mark.parametrize("kind", OF_FILES)
def test_choosing_one_kind_of_fault_does_not_change_its_plan(kind: Any) -> None:
    whole, alone = make_plan(5, 2_000, 100), make_plan(5, 2_000, 100, [kind])
    assert {strike.kind for strike in alone.strikes} | {trap.kind for trap in alone.traps} <= {kind}
    assert alone.rows == whole.rows
    assert [strike for strike in whole.strikes if strike.kind == kind] == list(alone.strikes)
    assert [trap for trap in whole.traps if trap.kind == kind] == list(alone.traps)


def test_plans_of_streams_trim_read_and_unread_entries() -> None:
    plans = [make_source_plan(seed, 2_000, 100) for seed in range(200)]
    assert {strike.kind for plan in plans for strike in plan.strikes} == {"driver", "worker", "server", "trim"}
    assert {plan.losses[0] for plan in plans} == {0}
    assert 50 < sum(any(plan.losses) for plan in plans) < 150
    assert all(loss < plan.rows.rows_per_file for plan in plans for loss in plan.losses)
    assert {trap.partition for plan in plans for trap in plan.traps if trap.kind == "task"} == {0, 1, 2}
    assert not any(strike.kind == "trim" for strike in make_source_plan(5, 2_000, 100, OF_FILES).strikes)


def test_plans_of_clusters_kill_masters_and_move_slots_of_all_streams() -> None:
    plans = [make_plan(seed, 2_000, 100, OF_CLUSTERS) for seed in range(200)]
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {strike.kind for strike in strikes} == {"driver", "worker", "master", "move"}
    assert all({"master", "move"} <= {strike.kind for strike in plan.strikes} for plan in plans)
    for kind in ("master", "move"):
        assert {strike.stream for strike in strikes if strike.kind == kind} == set(range(STREAMS))
    assert {strike.way for strike in strikes if strike.kind == "move"} == set(WAYS)


def test_plans_contain_every_kind_of_fault() -> None:
    plans = [make_plan(seed, 2_000, 100) for seed in range(200)]
    strikes = [strike for plan in plans for strike in plan.strikes]
    traps = [trap for plan in plans for trap in plan.traps]
    assert {strike.kind for strike in strikes} == {"driver", "worker", "server"}
    assert {trap.kind for trap in traps} == {"worker", "task", "commit"}
    assert {strike.when for strike in strikes} == {"rows", "offsets", "commits", "start"}
    for plan in plans:
        assert all(trap.batch < plan.rows.batches and trap.after != 0 for trap in plan.traps if trap.kind != "commit")
        assert all(trap.batch * plan.rows.files_per_batch + trap.partition < plan.rows.files for trap in plan.traps)


def result(seed: int = 1, server: str = "redis-7.0", mode: str = "auto", **numbers: Any) -> Result:
    names = {"seed": seed, "server": server, "exactly_once": mode}
    known: dict[str, Any] = {"faults": {"driver": 2}, "restarts": 0, "entries": 300, "reported": {}, "seconds": 1.0}
    counts = {"lost": 0, "duplicated": 0, "foreign": 0, "out_of_order": 0}
    return Result(names, **{**known, **counts, **numbers})


@pytest.mark.parametrize(
    ("mode", "numbers", "well"),
    [
        ("auto", {"markers_lost": 1}, True),
        ("auto", {"markers_lost": 1, "lost": 1}, False),
        ("auto", {}, True),
        ("auto", {"lost": 1}, False),
        ("auto", {"duplicated": 1}, False),
        ("auto", {"out_of_order": 1}, False),
        ("auto", {"foreign": 1}, False),
        ("auto", {"trimmed": 5, "reported_trimmed": 5}, True),
        ("auto", {"trimmed": 5, "reported_trimmed": 4}, False),
        ("off", {"duplicated": 1, "out_of_order": 1}, True),
        ("off", {"lost": 1}, False),
        ("off", {"duplicated": 5, "reported": {"possible_duplicates": 5}, "faults": {"task": 1}}, True),
        ("off", {"duplicated": 5, "reported": {"possible_duplicates": 4}, "faults": {"task": 1}}, False),
        ("off", {"duplicated": 5, "reported": {"possible_duplicates": 4}, "faults": {"driver": 1}}, True),
        (
            "off",
            {"duplicated": 5, "reported": {"possible_duplicates": 4}, "faults": {"commit": 1}, "restarts": 1},
            True,
        ),
    ],
)
def test_each_mode_is_held_to_its_guarantee(mode: str, numbers: dict[str, Any], well: bool) -> None:
    assert result(mode=mode, **numbers).well is well
    assert not Result.hung({"exactly_once": mode}, "no end").well


def test_the_table_sums_the_results() -> None:
    results = [result(1), result(2, lost=1_000), result(3, "valkey-9.1", faults={"server": 1, "driver": 1})]
    lines = [line.split() for line in table(results).splitlines()]
    assert lines[0][:5] == ["server", "mode", "runs", "drivers", "workers"]
    assert [line[:4] for line in lines[1:3]] == [["redis-7.0", "auto", "2", "4"], ["valkey-9.1", "auto", "1", "1"]]
    assert lines[3][:3] == ["all", "3", "5"]
    assert "1,000" in lines[1]
