"""Runs all parts of the tests, whatever fails, and ends with one line for each failure and the numbers of all.

    tools/run_tests.py          every behaviour once
    tools/run_tests.py --all    each test on every server, and those that are marked `thorough`
    tools/run_tests.py --wheel PYTHON [TESTS]   the Python tests without Spark, on the wheel of an environment

Exits with 1 if a test failed or a part did not end well, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
#: The processes of pytest. Three for each of two processors: many tests wait, those with clusters most of their time.
WORKERS = 6


@dataclass
class Results:
    """What became of the tests of one part."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    #: Of each failure the name, and the command that repeats it.
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def fail(self, name: str, repeat: str) -> None:
        """Count a failure."""
        self.counts["failed"] += 1
        self.failures.append((name, repeat))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="each server, and the tests marked `thorough`")
    parser.add_argument("--wheel", metavar="PYTHON", help="of an environment that has a wheel and no Spark")
    parser.add_argument("tests", nargs="*", help="files and folders; default: all")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts in the background ignore the first
        signal.signal(number, signal.default_int_handler)
    pytest = [given.wheel or ".venv/bin/python", "-m", "pytest", *["--all"] * given.all]
    pytest += [f"--ignore={path}" for path in of_spark()] if given.wheel else []
    results: list[Results] = []
    is_stopped = False
    try:
        if not given.wheel:
            with compiled(pytest):
                run_rust(start("Rust", results), given.all)
        run_pytest(start("Python", results), pytest, given.tests)
    except KeyboardInterrupt:
        is_stopped = True
    return 130 if report(results, is_stopped) else 1 if any(each.failures for each in results) else 0


def of_spark() -> list[Path]:
    """The folders and files of tests that need Spark, or packages that only the project's own environment has."""
    files = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^from headrace\.spark", path.read_text(), re.MULTILINE)
    ]
    return [
        Path("tests/docs"),
        Path("tests/spark"),
        Path("tests/spark_kills"),
        *(path.relative_to(ROOT) for path in files),
    ]


def start(name: str, results: list[Results]) -> Results:
    print(f"-- tests: {name}", flush=True)
    results.append(Results(name))
    return results[-1]


def report(results: Iterable[Results], is_stopped: bool) -> bool:
    """Print the failures and the numbers. Returns whether the run was stopped."""
    total: Counter[str] = Counter()
    print("-- tests: results")
    for each in results:
        for name, repeat in each.failures:
            print(f"FAILED {name}\n    {repeat}")
    for each in results:
        total += each.counts
        print(f"{each.name}: {each.seconds:,.0f} s, {numbers(each.counts)}")
    if is_stopped:
        print("stopped before the end")
    print(numbers(total), flush=True)
    return is_stopped


def numbers(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped"))


@contextlib.contextmanager
def compiled(pytest: Sequence[str]) -> Iterator[None]:
    """Compile the modules of the tests meanwhile, if that is due. Otherwise each process of pytest does it."""
    if any((ROOT / "tests").glob("__pycache__/*-pytest-*.pyc")):
        yield
        return
    with subprocess.Popen([*pytest, "--quiet", "--collect-only"], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.wait()


def run_rust(results: Results, is_all: bool) -> None:
    """Run the tests of the crates. Their output is shown, and read: it says what failed in lines of fixed forms."""
    began = time.monotonic()
    command = ["tools/rust_tests.sh", *["--all"] * is_all]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                read_rust(results, line, "HEADRACE_TEST_ALL=1 " * is_all)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            results.seconds = time.monotonic() - began
    if process.returncode and not results.failures:
        results.fail(f"{command[0]} ended with status {process.returncode}", " ".join(command))


def read_rust(results: Results, line: str, variables: str = "") -> None:
    """Count what a line of `cargo nextest` or of `cargo test` says, with the variables of its environment."""
    if found := re.match(r"\s+Summary \[.*\].* tests run: (\d+) passed.*?(?:, (\d+) skipped)?$", line):
        results.counts.update(passed=int(found[1]), skipped=int(found[2] or 0))
    elif found := re.match(r"test result: .* (\d+) passed; \d+ failed; (\d+) ignored", line):
        results.counts.update(passed=int(found[1]), skipped=int(found[2]))
    elif (found := re.match(r"\s+(?:FAIL|SIG\w+|TIMEOUT|ABORT) \[.*\] .*?\S+ (\S+::\S+|\S+)$", line)) or (
        found := re.match(r"test (\S+) .*\.\.\. FAILED$", line)
    ):
        name = found[1]
        if name not in [each for each, _ in results.failures]:  # nextest names them again at the end
            results.fail(name, f"{variables}cargo test --profile quick --package headrace-core -- --exact {name}")


def run_pytest(results: Results, pytest: Sequence[str], paths: Sequence[str], workers: int = WORKERS) -> None:
    """Run tests in several processes; each file, and what shares a cluster, in one of them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "results.xml"
        spread = [
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "--max-worker-restart",
            "0",
            f"--numprocesses={workers}",
        ]
        command = [*pytest, "--quiet", *spread, "-o", "junit_family=xunit1", f"--junitxml={written}", *paths]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            results.seconds = time.monotonic() - began
            if written.exists():
                read_junit(results, written, pytest)
    # 1: tests failed. All others, such as 5 (no tests), are no result of a test.
    if process.returncode not in (0, 1) or (process.returncode and not results.failures):
        results.fail(f"pytest ended with status {process.returncode}", " ".join([*pytest, *paths]))


def read_junit(results: Results, written: Path, pytest: Sequence[str]) -> None:
    for case in ElementTree.parse(written).iter("testcase"):
        outcome = {each.tag for each in case} & {"failure", "error", "skipped"}
        if outcome <= {"skipped"}:
            results.counts["skipped" if outcome else "passed"] += 1
            continue
        name = "::".join(filter(None, [case.get("file"), *classes_of(case), case.get("name")]))
        results.fail(name, f"{' '.join(pytest)} '{name}'")


def classes_of(case: ElementTree.Element) -> list[str]:
    """Return the classes that a test is in. `classname` begins with the module, whose folders it separates by dots."""
    module = case.get("file", "").removesuffix(".py").replace("/", ".")
    return case.get("classname", "").removeprefix(module).split(".")[1:]


if __name__ == "__main__":
    sys.exit(main())
