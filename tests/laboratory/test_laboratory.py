"""What all laboratories have in common; that each does its work, the tests beside it show."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laboratory import JOBS, RECORD, REPEAT, RESULTS, SEED, SERVERS, Option, Run
from laboratory.__main__ import declared
from laboratory.results import Results
from support.paths import ROOT, TESTS

OPTIONS = [
    Option("target", None, "", str, ["a", "b"], is_argument=True),
    Option("faults", 900, ""),
    Option("keep_going", False, ""),
    Option("min_idle", 1.0, ""),
    *(SEED, SERVERS, JOBS, RESULTS, RECORD),
]


def run_with(*words: str) -> Run:
    parser = argparse.ArgumentParser()
    for option in OPTIONS:
        option.add(parser)
    return Run("fuzz", OPTIONS, parser.parse_args(words), Path("unused"))


def test_every_laboratory_has_a_summary_and_a_row_in_the_contributing_page() -> None:
    files = {path: path.read_text() for path in TESTS.glob("*/laboratory.py")}
    every = declared()
    assert len(every) == sum(text.count("@laboratory(") for text in files.values()) > 10
    listed = subprocess.run([sys.executable, "-m", "laboratory"], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^\| `([a-z-]+)[ `]", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    for name, (_, summary) in every.items():
        assert summary.endswith("."), name
        assert f"  {name:<17} {summary}\n" in listed
        assert name in rows


def test_the_command_that_repeats_a_run_has_the_options_that_were_changed() -> None:
    given = run_with("a", "--faults=7", "--keep-going", "--servers=7.0 valkey", "--min-idle=0.5", "--jobs=9")
    repeat = given.repeat(seed=1, servers=["redis-7.0"])
    assert repeat == f"{REPEAT} fuzz a --faults 7 --keep-going --min-idle 0.5 --seed 1 --servers redis-7.0"
    again = run_with(*shlex.split(repeat.removeprefix(f"{REPEAT} fuzz ")))
    assert vars(again.options) == vars(given.options) | {"servers": ["redis-7.0"], "jobs": JOBS.default}
    assert run_with("b").repeat() == f"{REPEAT} fuzz b"


def test_tables_are_recorded_between_the_marks_below_their_command(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- fuzz -->\nold\n<!-- /fuzz -->\nafter\n")
    run = run_with("a", "--faults=7", f"--record={document}", "--results=unused")
    for _ in range(2):
        run.record("| table |", "Sentence.")
        text = "`python -m laboratory fuzz a --faults 7`:\n\n| table |\n\nSentence."
        assert document.read_text() == f"before\n<!-- fuzz -->\n\n{text}\n\n<!-- /fuzz -->\nafter\n"
    document.write_text("no marks")
    with pytest.raises(SystemExit, match="it has no <!-- fuzz -->"):
        run.record("| table |")


def test_a_result_is_found_again_by_what_identifies_its_run(tmp_path: Path) -> None:
    path = tmp_path / "results"
    run: dict[str, Any] = {"seed": 1, "server": "redis-7.0", "faults": ["move"]}
    assert Results(path).find(run) is None
    for seed in (1, 2):
        Results(path).add({**run, "seed": seed}, {"lost": seed, "run": "of the result itself"})
    assert Results(path).find(run) == {"lost": 1}
    assert Results(path).find({**run, "seed": 2}) == {"lost": 2}
    assert Results(path).find({**run, "seed": 3}) is None
    Results(None).add(run, {"lost": 1})
    assert Results(None).find(run) is None


WORK = """
import argparse, os, sys
from pathlib import Path
from laboratory import Run
from laboratory.__main__ import conduct

def work(this):
    {work}
    return "done"

this = Run("fuzz", [], argparse.Namespace(results=Path("unused")), Path())
sys.exit(conduct(work, this))
"""


@pytest.mark.parametrize(
    ("work", "status", "printed"),
    [
        ("this.judge('right', True)", 0, "right\nfuzz: done; 0 wrong; 0 s\n"),
        ("this.judge('not', False, seed=1)", 1, f"not\n  repeat with: {REPEAT} fuzz\nfuzz: done; 1 wrong; 0 s\n"),
        ("os.kill(os.getpid(), 2)", 1, "fuzz: stopped; the same command continues; 0 wrong; 0 s\n"),
        ("os.kill(os.getpid(), 15)", 1, "fuzz: stopped; the same command continues; 0 wrong; 0 s\n"),
    ],
)
def test_the_exit_status_says_whether_something_was_wrong_or_stopped(work: str, status: int, printed: str) -> None:
    command = [sys.executable, "-c", WORK.format(work=work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.sub(r"\d+ s$", "0 s", done.stdout, flags=re.MULTILINE) == printed, done.stderr
    assert done.returncode == status


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["threads", "--first", "3"], "--first: an execution of threads depends on all before it; --decisions repeats"),
        (["read", "--decisions", "3"], "--decisions: read is not a target in Rust; --first repeats an execution of it"),
    ],
)
def test_an_option_that_a_target_of_the_fuzzing_does_not_have_is_refused(words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "laboratory", "fuzz", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)


def test_the_fuzzing_passes_its_numbers_to_the_rust_tests(tmp_path: Path) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\necho $HEADRACE_FUZZ_SEED $HEADRACE_FUZZ_FIRST $HEADRACE_FUZZ_EXECUTIONS\n")
    cargo.chmod(0o755)
    words = ["fuzz", "scanner", "--seed", "5", "--first", "3", "--executions", "2"]
    command = [sys.executable, "-m", "laboratory", *words]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "5 3 2" in done.stdout.splitlines()


def test_a_wrong_name_or_option_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    for words in (["nothing"], ["fuzz", "scanner", "--executions", "many"], ["fuzz", "scanner", "--execution", "3"]):
        command = [sys.executable, "-m", "laboratory", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "error: " in done.stderr
    assert list(tmp_path.iterdir()) == []
