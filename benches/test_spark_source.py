"""A stream into Spark with `spark.read`: headrace with one to eight partitions, ready batches, and redis-py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from benches.driver import Record, interleaved
from benches.filled import FIELDS, FilledWatch
from benches.servers import newest_program, title
from benches.spark_session import SparkProcesses, start_spark
from benches.spark_sources import ReadyBatches, RedisPy
from benches.tables import RATE, SERVER_CPU, Bench, Column
from benches.turns import ROUNDS, ROWS, Contender, Target, Turn
from pyspark.sql import SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer
from support import Program

#: redis-py gets the rows divided by this number.
SLOW_PART = 5
#: Rounds that are not measured: the JVM compiles hot code for some seconds.
WARM_UP_ROUNDS = 1


@dataclass(frozen=True)
class Source:
    """A format, its number of partitions, and its part of the rows."""

    format: str
    partitions: int
    part: int = 1


READY = "floor: ready batches, 2 partitions"
REDIS_PY = "redis-py with hiredis, 2 partitions"


def headrace(partitions: int) -> str:
    return f"headrace, {partitions} partition{'s' if partitions > 1 else ''}"


SOURCES = {
    READY: Source("ready_batches", 2),
    **{headrace(number): Source("redis_streams", number) for number in (1, 2, 4, 8)},
    REDIS_PY: Source("redis_py", 2, SLOW_PART),
}
WORKERS_CPU = Column.per_row("Python workers, s per million", "workers_cpu", 1e6)
BENCH = Bench(
    "spark_source",
    "Spark local[2]: a stream into the sink `noop`, over TCP on this machine",
    columns=(RATE, Column.per_row("JVM, CPU s per million", "jvm_cpu", 1e6), WORKERS_CPU, SERVER_CPU),
    ratios=(
        (headrace(2), READY),
        (headrace(2), headrace(1)),
        *((headrace(number), headrace(2)) for number in (4, 8)),
        (REDIS_PY, headrace(2)),
    ),
    compared=(RATE, WORKERS_CPU),
)

Group = tuple[Program, int]
GROUPS: list[Group] = [(newest_program(), fields) for fields in FIELDS]


def name_of(group: Group) -> str:
    program, fields = group
    return f"{title(program)}, {fields} fields"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with start_spark() as spark:
        for source in (ReadyBatches, RedisPy):
            spark.dataSource.register(source)
        yield spark


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "group", "contender"),
    interleaved(GROUPS, [Contender(name, "") for name in SOURCES], name_of, ROUNDS + WARM_UP_ROUNDS),
)
def test_spark_source(
    number: int,
    group: Group,
    contender: Contender,
    spark: SparkSession,
    server_of: Callable[[Program], LocalServer],
    record: Record,
    benchmark: BenchmarkFixture,
) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    program, fields = group
    server, source = server_of(program), SOURCES[contender.name]
    target = replace(Target.at(server, ROWS), stream_key=f"fields-{fields}")
    rows = ROWS // source.part
    options = {
        "host": target.host, "port": str(target.port), "stream_key": target.stream_key, "rows": str(rows),
        "partitions": str(source.partitions),
    }  # fmt: skip
    if source.format == "redis_streams":
        del options["rows"], options["partitions"]
        options["min_partitions"] = str(source.partitions)
    schema = ", ".join(f"{name} STRING" for name in FIELDS[fields])
    processes = SparkProcesses(spark)

    def run() -> None:
        frame.load().write.format("noop").mode("overwrite").save()

    with FilledWatch(server) as watch:
        watch.fill(target, fields)
        if source.format == "redis_py":
            options["borders"] = ",".join(watch.borders(target.stream_key, rows, source.partitions))
        frame = spark.read.format(source.format).schema(schema).options(**options)
        if number == 1:
            assert frame.load().count() == rows
        processes.collect_garbage()
        watch.fresh()
        before = processes.jvm_cpu(), processes.workers_cpu(), watch.cpu()
        benchmark.pedantic(run)  # type: ignore[no-untyped-call]
        after = processes.jvm_cpu(), processes.workers_cpu(), watch.cpu()
    if number <= WARM_UP_ROUNDS:
        return
    assert benchmark.stats is not None
    jvm, workers, of_server = (now - then for now, then in zip(after, before, strict=True))
    seconds = benchmark.stats.stats.total
    figures = {"seconds": seconds, "jvm_cpu": jvm, "workers_cpu": workers, "server_cpu": of_server}
    turn = Turn(BENCH.name, name_of(group), contender.name, number - WARM_UP_ROUNDS, rows, figures)
    record(BENCH, turn)
    benchmark.group = f"{BENCH.name}: {name_of(group)}"
    benchmark.extra_info |= {"contender": contender.name, "round": turn.number, "rows": rows, **figures}
