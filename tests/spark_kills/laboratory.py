"""The laboratory of Spark streams: many runs, and their results in a table."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pyspark

from laboratory import KEEP, RESULTS, SEED, SERVERS, Option, Run, laboratory, list_of
from support.servers import Program, program_named

from .plan import OF_CLUSTERS, OF_FILES, OF_STREAMS, make_plan, make_source_plan
from .pool import Pool
from .results import Result, table
from .run import CORES, RECORD_BATCH, SOURCES, TOPOLOGIES, HungError, Setting, run


@laboratory(
    Option("runs", 9, "runs; the seeds count up, and the servers take turns"),
    *(SEED, SERVERS, RESULTS, KEEP),
    Option("rows", 200_000, "rows of a run"),
    Option("source", "files", "what the query reads", choices=SOURCES),
    Option("topology", "single", "of the servers that rows go to", choices=TOPOLOGIES),
    Option("wait_replicas", "half", "`all` in which runs on clusters", choices=["half", "all", "none"]),
    Option("faults", None, "kinds of faults; default: all that there are", list_of),
    Option("exactly_once", "auto", "of the sink; `off` counts duplicates", choices=["auto", "script", "off"]),
    Option("sink", "redis_streams", "`plain`: one without any care", choices=["redis_streams", "plain"]),
    Option("timeout", 240.0, "seconds without progress after which a run never ends"),
)
def spark_kills(this: Run) -> str:
    """Kill drivers, workers and servers while Spark streams run, and look for each row at the end.

    On a quiet machine a run takes half a minute, on a busy one several.
    """
    options = this.options
    if options.topology == "cluster" and (options.sink, options.source) != ("redis_streams", "files"):
        raise SystemExit("--topology cluster takes --sink redis_streams and --source files")
    programs = [program_named(name) for name in options.servers]
    results: list[Result] = []
    try:
        with Pool(this.folder, CORES[options.source]) as pool, this.progress(options.runs, "runs") as add:
            for seed in range(options.seed, options.seed + options.runs):
                result = _result(this, seed, programs[seed % len(programs)], pool)
                results.append(result)
                server = result.run["server"]
                again: dict[str, Any] = {"runs": 1, "seed": seed, "servers": [server], "keep": True}
                if "wait_replicas" in result.run:
                    again["wait_replicas"] = result.run["wait_replicas"] or "none"
                text = f"{len(results)} of {options.runs}, seed {seed}, {server}: {result}"
                this.judge(text, result.well, **again)
                add(1)
    finally:
        this.say(table(results))
    return f"{len(results)} runs"


def _result(this: Run, seed: int, program: Program, pool: Pool) -> Result:
    """Do one run, unless it was done before."""
    options = this.options
    is_cluster = options.topology == "cluster"
    every = OF_CLUSTERS if is_cluster else OF_FILES if options.source == "files" else OF_STREAMS
    faults = options.faults or every
    # The servers alternate by the seed, so both halves of the runs include all of them.
    waits = {"all": True, "none": False}.get(options.wait_replicas, seed // len(options.servers) % 2 == 1)
    wait_replicas = "all" if is_cluster and waits else ""
    sink, source, exactly_once = options.sink, options.source, options.exactly_once
    names: dict[str, Any] = {"seed": seed, "server": program.label, "spark": pyspark.__version__, "sink": sink}
    names |= {"exactly_once": "off" if sink == "plain" else exactly_once, "rows": options.rows, "source": source}
    names |= {"faults": sorted(faults)}
    if is_cluster:
        names |= {"topology": "cluster", "wait_replicas": wait_replicas}
    if kept := this.results.find(names):
        return Result(names, **kept)
    plan = (make_plan if source == "files" else make_source_plan)(seed, options.rows, RECORD_BATCH, faults)
    setting = Setting(sink, exactly_once, options.timeout, source, options.topology, wait_replicas)
    own = this.folder / f"run-{seed}"
    try:
        result = Result.of(names, run(plan, program, setting, pool, own))
    except HungError as error:
        result = Result.hung(names, str(error))
    if result.well and not options.keep:
        shutil.rmtree(own)
    this.results.add(names, dataclasses.asdict(result))
    return result
