"""Rows from Spark into a stream: headrace compared with Spark alone, the server alone, and redis-py.

Spark's rows are in its memory before the clock starts. The cost of headrace is its figure minus those of
a mapInArrow that does nothing and of a server that receives prepared bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from benches.driver import Record
from benches.servers import ServerWatch, programs, title
from benches.spark_jobs import (
    PAYLOAD,
    TYPED_FIELDS,
    Job,
    Rows,
    count_only,
    headrace_xadd,
    headrace_xadd_only_failed,
    redis_py,
)
from benches.spark_session import SparkProcesses, in_memory, payload_rows, start_spark, typed_rows
from benches.tables import SERVER_CPU, Bench, Column
from benches.turns import ROUNDS, ROWS, Contender, Figures, Target, Turn
from benches.worker import Worker
from pyspark.sql import DataFrame
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer
from support import Program

#: redis-py gets the rows divided by this number.
SLOW_PART = 5
#: Rounds that are not measured: the JVM compiles hot code for some seconds.
WARM_UP_ROUNDS = 2

NOTHING, SERVER_ALONE = "Spark alone: mapInArrow that counts", "server alone: prepared bytes"
HEADRACE, ONLY_FAILED = "headrace.spark.xadd", "headrace.spark.xadd, only_failed"
REDIS_PY = "redis-py with hiredis in mapInArrow"
#: The order of the turns: in each round, headrace follows what it is compared with.
JOBS: dict[str, Job | None] = {
    NOTHING: count_only,
    SERVER_ALONE: None,
    HEADRACE: headrace_xadd,
    ONLY_FAILED: headrace_xadd_only_failed,
    REDIS_PY: redis_py,
}
FLOOR = {
    rows: Contender(SERVER_ALONE, "benches.prepared_bytes:prepare", {"window": 4_000, "typed": rows is TYPED_FIELDS})
    for rows in (PAYLOAD, TYPED_FIELDS)
}

SECONDS = Column.per_row("seconds per million", "seconds", 1e6)
CPU = Column("CPU of all, s per million", lambda turn: all_cpu(turn) / turn.rows * 1e6)
BENCH = Bench(
    "spark",
    "Spark local[2], two partitions: mapInArrow, XADD MAXLEN ~ 100,000 over TCP on this machine",
    columns=(
        SECONDS,
        CPU,
        Column.per_row("JVM", "jvm_cpu", 1e6),
        Column.per_row("Python workers", "workers_cpu", 1e6),
        SERVER_CPU,
        Column.figure("seconds: times the larger of the two alone", "over_larger"),
        Column.figure("CPU: more than the two alone, s per million", "cpu_beyond", 1e6),
        Column.figure("of it JVM and workers", "own_cpu_beyond", 1e6),
    ),
    ratios=((HEADRACE, REDIS_PY), (ONLY_FAILED, NOTHING), (ONLY_FAILED, SERVER_ALONE), (ONLY_FAILED, REDIS_PY)),
    compared=(SECONDS, CPU),
)


def all_cpu(turn: Turn) -> float:
    return sum(turn.figures.get(name, 0.0) for name in ("jvm_cpu", "workers_cpu", "server_cpu"))


@dataclass
class Session:
    """Spark, the rows in its memory, and the turns of this round."""

    processes: SparkProcesses
    frames: dict[tuple[str, int], DataFrame]
    alone: dict[tuple[str, str], Turn]

    def frame(self, rows: Rows, count: int) -> DataFrame:
        return self.frames[rows.name, count]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with start_spark() as spark:
        kinds = {PAYLOAD.name: payload_rows, TYPED_FIELDS.name: typed_rows}
        counts = {ROWS, ROWS // SLOW_PART}
        frames = {(name, count): in_memory(make(spark, count)) for name, make in kinds.items() for count in counts}
        yield Session(SparkProcesses(spark), frames, {})


def turns() -> Iterator[Any]:
    servers = [program for program in programs() if program.is_redis]
    for number in range(1 - WARM_UP_ROUNDS, ROUNDS + 1):
        for program in servers if number > 0 else servers[:1]:
            for rows in (PAYLOAD, TYPED_FIELDS):
                for name in JOBS:
                    text = f"round {number} of {ROUNDS}, {title(program)}, {rows.name}, {name}"
                    yield pytest.param(number, program, rows, name, id=text)


@pytest.mark.parametrize(("number", "program", "rows", "name"), [*turns()])
def test_spark(
    number: int,
    program: Program,
    rows: Rows,
    name: str,
    session: Session,
    server_of: Callable[[Program], LocalServer],
    record: Record,
    benchmark: BenchmarkFixture,
) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    server = server_of(program)
    job = JOBS[name]
    with ServerWatch(server) as watch:
        if job is None:
            target = Target.at(server, ROWS)
            with Worker(FLOOR[rows], target) as worker:
                figures = measured(benchmark, session, watch, lambda: worker.go().rows, ROWS)
        else:
            count = ROWS // SLOW_PART if name == REDIS_PY else ROWS
            target = Target(count, server.host or "", server.port or 0, batch=1)
            frame = session.frame(rows, count)
            figures = measured(benchmark, session, watch, lambda: job(frame, rows, target), count)
        if job is not count_only:
            assert watch.entries_added(target.stream_key) == target.rows
    if number < 1:
        return
    group = f"{title(program)}, {rows.name}"
    turn = Turn(BENCH.name, group, name, number, target.rows, figures)
    session.alone[group, name] = turn
    if name in (HEADRACE, ONLY_FAILED):
        figures |= beyond(turn, session.alone[group, NOTHING], session.alone[group, SERVER_ALONE])
    record(BENCH, turn)
    benchmark.group = f"{BENCH.name}: {group}"
    benchmark.extra_info |= {"contender": name, "round": number, "rows": target.rows, **figures}


def measured(
    benchmark: BenchmarkFixture, session: Session, watch: ServerWatch, job: Callable[[], int], rows: int
) -> Figures:
    """Run a job, and return the resources that all its processes used."""
    processes = session.processes
    processes.collect_garbage()
    watch.fresh()

    def cpu() -> Figures:
        return {
            "jvm_cpu": processes.jvm_cpu(),
            "workers_cpu": processes.workers_cpu(),
            "server_cpu": watch.cpu(),
        }

    before = cpu()
    assert benchmark.pedantic(job) == rows  # type: ignore[no-untyped-call]
    after = cpu()
    assert benchmark.stats is not None
    return {"seconds": benchmark.stats.stats.total, **{name: after[name] - before[name] for name in before}}


def beyond(turn: Turn, nothing: Turn, server_alone: Turn) -> Figures:
    """Return the cost of a turn above its lower bound, for the same number of rows."""
    larger = max(nothing.figures["seconds"], server_alone.figures["seconds"])
    server_cpu = turn.figures["server_cpu"] - server_alone.figures["server_cpu"]
    own_cpu = all_cpu(turn) - turn.figures["server_cpu"] - all_cpu(nothing)
    return {
        "over_larger": turn.figures["seconds"] / larger,
        "cpu_beyond": (own_cpu + server_cpu) / turn.rows,
        "own_cpu_beyond": own_cpu / turn.rows,
    }
