"""The laboratories that fuzz. Those of the core need only Rust: what needs packages is imported where it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from laboratory import FIRST, SEED, Option, Run, laboratory

from .programs import ROOT, compile_tests, follow, step

RUST = (
    "scanner",
    "control",
    "stream_reply",
    "encoder",
    "connections",
    "lanes",
    "session",
    "reading",
    "consuming",
    "leases",
)
#: The threads of a consumer, in orders that shuttle chooses.
THREADS, THREAD_TEST = "threads", "consumer::thread_tests::threads"
#: Findings that are printed; all are counted.
PRINTED = 20

#: Only leaks of our own count: what the tests' machinery leaves is "possibly lost".
VALGRIND = (
    "valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
)
#: Those with --skip start servers, or test the models of readers and consumers themselves.
CHECKED = (
    "fuzz_tests replies secret pem password xadd send_buffer "
    "--skip net::tests --skip secret::tests --skip on_servers --skip each_lie --skip runs_of_one_seed"
)

CRATE = Path("rust/headrace-fuzz")
#: The flags of cargo-fuzz, which would want a nightly compiler; what needs one is left out: sanitizers.
COVERAGE = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1" + "".join(
    f" -Cllvm-args=-sanitizer-coverage-{flag}"
    for flag in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
)
LIBFUZZER = (
    f"-dict={CRATE}/replies.dict -max_len=2048 -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=16 "
    "-print_final_stats=1 -verbosity=0"
)


@laboratory(
    Option("target", None, "what is fuzzed", str, [*RUST, THREADS, "arrow", "read"], is_argument=True),
    Option("executions", None, "executions; default: 1,000,000, of `read` 20,000", int),
    *(SEED, FIRST),
    Option("decisions", "", "repeats what a failure of a target in Rust printed: a shrunk execution, or a schedule"),
    Option("keep_going", False, "do not stop at the first finding of `arrow`; count them"),
)
def fuzz(this: Run) -> str:
    """Generate hostile bytes, servers, record batches and tables from a seed, and compare with slow models.

    `arrow` and `read` run in Python on the installed wheel. The others are Rust, compiled with assertions and overflow
    checks. Execution `n` depends only on the seed and `n`, of `threads` on all before it as well.
    """
    target, decisions = this.options.target, this.options.decisions
    executions = this.options.executions or (20_000 if target == "read" else 1_000_000)
    if target == THREADS and this.options.first:
        raise SystemExit("--first: an execution of threads depends on all before it; --decisions repeats a single one")
    if target in RUST or target == THREADS:
        features, test = ([], f"fuzz_tests::{target}::{target}") if target in RUST else (["shuttle"], THREAD_TEST)
        words = [*compile_tests("fuzz", *features), "--", "--exact", test, "--nocapture"]
        if follow(*words, **_numbers(this, executions, this.options.first), HEADRACE_FUZZ_DECISIONS=decisions):
            this.is_wrong("a check failed")  # the test has printed which, and how it is repeated
        return "1 execution" if decisions else f"{executions:,} executions"
    if decisions:
        raise SystemExit(f"--decisions: {target} is not a target in Rust; --first repeats an execution of it")
    return _arrow(this, executions) if target == "arrow" else _read(this, executions)


@laboratory(
    Option("executions", 500, "executions of each target"),
    SEED,
    Option("profile", "fuzz", "of cargo; `quick` is that of `make test`, ten times slower", None, ["fuzz", "quick"]),
)
def memcheck(this: Run) -> str:
    """Run a little of the fuzzing, and the tests of the code that handles secrets, under valgrind."""
    if not shutil.which("valgrind"):
        raise SystemExit("memcheck needs valgrind: install it with the system's package manager")
    cargo, *test = compile_tests(this.options.profile)
    runner = f'target."cfg(all())".runner = "{VALGRIND}"'
    words = [cargo, "--config", runner, *test, "--", "--test-threads", "1", *CHECKED.split()]
    if follow(*words, PROPTEST_CASES=4, **_numbers(this, this.options.executions)):
        this.is_wrong("valgrind found an error, or a test failed")
    return f"{this.options.executions} executions of each target"


@laboratory(
    Option("target", None, "what is fuzzed", str, ["scanner", "control"], is_argument=True),
    Option("seconds", 60, "seconds"),
)
def fuzz_coverage(this: Run) -> str:
    """Run two of the targets on bytes from libFuzzer, which keeps what reaches new code; needs a C++ compiler."""
    target, seconds = this.options.target, this.options.seconds
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target", "coverage")
    corpus = folder / f"corpus-{target}"
    corpus.mkdir(parents=True, exist_ok=True)
    rustc = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    host = rustc.partition("host: ")[2].split()[0]
    words: list[str | Path] = ["cargo", "build", "--release", "--manifest-path", CRATE / "Cargo.toml"]
    words += ["--target", host, "--target-dir", folder]
    step("Compiling for libFuzzer (the first time some minutes)", *words, RUSTFLAGS=COVERAGE)
    limits = [*LIBFUZZER.split(), f"-max_total_time={seconds}", f"-artifact_prefix={folder}/"]
    if follow(folder / host / "release" / target, corpus, *limits):
        this.is_wrong(f"a check failed: its input is in {folder}")
    return f"{seconds} s"


def _numbers(this: Run, executions: int, first: int = 0) -> dict[str, int]:
    numbers = {"EXECUTIONS": executions, "SEED": this.options.seed, "FIRST": first}
    return {f"HEADRACE_FUZZ_{name}": number for name, number in numbers.items()}


def _arrow(this: Run, executions: int) -> str:
    from arrow_fuzz.campaign import Results, run

    done = 0
    with this.progress(executions, "executions") as add:

        def tell(results: Results) -> None:
            nonlocal done
            add(results.executions - done)
            done = results.executions
            for finding in results.findings[this.wrong :]:
                if this.wrong >= PRINTED:
                    this.wrong += 1
                    continue
                text = f"{finding.number}: {finding.what}\n  {finding.execution}\n  {finding.details}"
                this.is_wrong(text, _alone(this, finding.number))

        results = run(this.options.seed, this.options.first, executions, this.options.keep_going, tell)
        tell(results)
    _show(this, results.counts)
    for what, count in Counter(finding.what for finding in results.findings).most_common():
        this.say(f"{count:>12,}  WRONG: {what}")
    return f"{results.executions:,} executions"


def _read(this: Run, executions: int) -> str:
    from headrace.testing import LocalServer
    from read_fuzz.campaign import run
    from support.servers import find_programs

    with LocalServer(max(find_programs()).path) as server, this.progress(executions, "tables") as add:
        counts, finding = run(server, this.options.seed, this.options.first, executions, lambda _: add(1))
    _show(this, counts)
    if finding:
        number, what = finding
        this.is_wrong(f"{number}: {what}", _alone(this, number))
        return f"{number + 1 - this.options.first:,} tables"
    return f"{executions:,} tables"


def _alone(this: Run, number: int) -> str:
    return this.repeat(executions=1, seed=this.options.seed, first=number)


def _show(this: Run, counts: Mapping[str, int]) -> None:
    for name, count in sorted(counts.items()):
        this.say(f"{count:>12,}  {name}")
