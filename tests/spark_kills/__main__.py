"""Runs of `spark_kills`, one after the other. Exits with 1 if one lost, duplicated or reordered a row, or hung."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyspark

from support.servers import Program, program_named

from .plan import OF_CLUSTERS, OF_FILES, OF_STREAMS, Kind, Plan, make_plan, make_source_plan
from .pool import Pool
from .results import Result, append, read, table
from .run import CORES, RECORD_BATCH, SOURCES, TOPOLOGIES, HungError, Setting, run


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.topology == "cluster" and (arguments.sink, arguments.source) != ("redis_streams", "files"):
        parser.error("a cluster takes the sink redis_streams and the source files")
    programs = [program_named(name) for name in arguments.servers]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that drivers and servers are ended
    folder = Path(tempfile.mkdtemp(prefix="hr-kills-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # the files of Spark and the servers are deleted with it
    kept = read(arguments.results) if arguments.results else []
    results: list[Result] = []
    try:
        with Pool(folder, CORES[arguments.source]) as pool:
            for number in range(arguments.runs):
                seed = arguments.seed + number
                result = _one(arguments, seed, programs[seed % len(programs)], kept, pool, folder)
                print(f"{number + 1} of {arguments.runs}, seed {seed}, {result.run['server']}: {result}", flush=True)
                if not result.well:
                    print(f"  repeat with: {_again(arguments, result)}", flush=True)
                results.append(result)
    except KeyboardInterrupt:
        print("stopped; the same command with --results continues" if arguments.results else "stopped")
    finally:
        wrong = [result for result in results if not result.well]
        if arguments.keep or wrong:
            print(f"files: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    print(f"{len(results)} runs, {len(wrong)} of them wrong")
    return 1 if wrong or len(results) < arguments.runs else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark_kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; later runs count up")
    parser.add_argument("--servers", type=_list, default=["7.0", "8.6", "valkey"], help="used in turn, by seed")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a run")
    parser.add_argument("--source", default="files", choices=SOURCES, help="what the query reads")
    parser.add_argument("--topology", default="single", choices=TOPOLOGIES, help="of the servers that rows go to")
    parser.add_argument(
        "--wait-replicas", default="half", choices=["half", "all", "none"], help="`all` in which runs on clusters"
    )
    parser.add_argument("--faults", type=_list, help="kinds of faults; default: all that there are")
    parser.add_argument("--exactly-once", default="auto", choices=["auto", "script", "off"])
    parser.add_argument("--sink", default="redis_streams", choices=["redis_streams", "plain"])
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of a run")
    parser.add_argument("--results", type=Path, help="a file for the results; runs in it are not repeated")
    parser.add_argument("--keep", action="store_true", help="keep the logs of the drivers even if all runs pass")
    return parser


def _list(text: str) -> list[str]:
    return text.split(",")


def _one(
    arguments: argparse.Namespace, seed: int, program: Program, kept: list[Result], pool: Pool, folder: Path
) -> Result:
    """Do one run, unless it was done before."""
    faults = arguments.faults or _faults(arguments)
    # The servers alternate by the seed, so both halves of the runs include all of them.
    waits = {"all": True, "none": False}.get(arguments.wait_replicas, seed // len(arguments.servers) % 2 == 1)
    names: dict[str, Any] = {
        "seed": seed,
        "server": program.label,
        "spark": pyspark.__version__,
        "sink": arguments.sink,
        "exactly_once": "off" if arguments.sink == "plain" else arguments.exactly_once,
        "rows": arguments.rows,
        "source": arguments.source,
        "faults": sorted(faults),
    }
    if arguments.topology == "cluster":
        names |= {"topology": "cluster", "wait_replicas": "all" if waits else ""}
    for result in kept:
        if result.run == names:
            return result
    draw = make_plan if arguments.source == "files" else make_source_plan
    plan = draw(seed, arguments.rows, RECORD_BATCH, faults)
    setting = Setting(
        arguments.sink,
        arguments.exactly_once,
        arguments.timeout,
        arguments.source,
        arguments.topology,
        names.get("wait_replicas", ""),
    )
    if sys.stdout.isatty():
        print(_announcement(plan, program), end="\r", flush=True)
    own = folder / f"run-{seed}-{time.time_ns()}"
    try:
        outcome = run(plan, program, setting, pool, own)
    except HungError as error:
        result = Result.hung(names, str(error))
    else:
        result = Result.of(names, outcome)
        if result.well and not arguments.keep:
            shutil.rmtree(own)
    if arguments.results:
        append(arguments.results, result)
    return result


def _faults(arguments: argparse.Namespace) -> tuple[Kind, ...]:
    if arguments.topology == "cluster":
        return OF_CLUSTERS
    return OF_FILES if arguments.source == "files" else OF_STREAMS


def _announcement(plan: Plan, program: Program) -> str:
    rows, faults = plan.rows, len(plan.strikes) + len(plan.traps)
    return f"seed {plan.seed}, {program.label}: {rows.count:,} rows in {rows.batches} batches, {faults} faults …"


def _again(arguments: argparse.Namespace, result: Result) -> str:
    """The command that repeats this run."""
    words = ["PYTHONPATH=tests", "python", "-m", "spark_kills", "--runs", "1", "--keep"]
    for name in ("rows", "sink", "source"):
        words += [f"--{name}", str(result.run[name])]
    words += ["--seed", str(result.run["seed"]), "--servers", result.run["server"]]
    if "topology" in result.run:
        words += ["--topology", result.run["topology"], "--wait-replicas", result.run["wait_replicas"] or "none"]
    words += ["--exactly-once", arguments.exactly_once, "--faults", ",".join(result.run["faults"])]
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
