"""A Spark stream from Parquet into Redis: the cost of the default, exactly once, compared with `exactly_once="off"`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benches.driver import Record, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.spark_session import payload_rows, start_spark
from benches.tables import SERVER_CPU, Bench, Column
from benches.turns import ROUNDS, ROWS, Contender, Turn
from pyspark.sql import SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer
from support import Program

NOTHING, OFF, DEFAULT = "no-op sink", 'exactly_once="off"', "default (exactly once)"
#: Rounds that are not measured: the JVM compiles hot code for some seconds.
WARM_UP_ROUNDS = 1
#: The format of each sink, and its options.
SINKS: dict[str, tuple[str, dict[str, str]]] = {
    NOTHING: ("noop", {}),
    OFF: ("redis_streams", {"exactly_once": "off"}),
    DEFAULT: ("redis_streams", {}),
}

SECONDS = Column.per_row("seconds per million", "seconds", 1e6)
BENCH = Bench(
    "spark_stream",
    "Spark local[2], a stream from Parquet: XADD MAXLEN ~ 100,000 with a payload of 120 bytes, over TCP",
    columns=(SECONDS, SERVER_CPU),
    ratios=((DEFAULT, OFF), (DEFAULT, NOTHING)),
    compared=(SECONDS,),
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with start_spark() as spark:
        yield spark


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("parquet") / "rows")
    payload_rows(spark, ROWS).write.parquet(path)
    return path


_folders = count()


@pytest.mark.parametrize(
    ("number", "program", "contender"),
    interleaved([newest_program()], [Contender(name, "") for name in SINKS], title, ROUNDS + WARM_UP_ROUNDS),
)
def test_spark_stream(
    number: int,
    program: Program,
    contender: Contender,
    spark: SparkSession,
    parquet: str,
    tmp_path: Path,
    server_of: Callable[[Program], LocalServer],
    record: Record,
    benchmark: BenchmarkFixture,
) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    server = server_of(program)
    format_, options = SINKS[contender.name]
    if format_ != "noop":
        address = {"host": str(server.host), "port": str(server.port), "stream_key": "bench", "maxlen": "100000"}
        options = {**options, **address, "payload": "payload"}

    def run() -> None:
        checkpoint = tmp_path / f"checkpoint-{next(_folders)}"
        stream = spark.readStream.schema("payload string").parquet(parquet).writeStream.format(format_)
        started = stream.options(**options).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = started.start()
        query.awaitTermination()
        assert query.exception() is None
        shutil.rmtree(checkpoint)

    with ServerWatch(server) as watch:
        watch.fresh()
        before = watch.cpu()
        benchmark.pedantic(run)  # type: ignore[no-untyped-call]
        server_cpu = watch.cpu() - before
        if format_ != "noop":
            assert watch.entries_added("bench") == ROWS
    assert benchmark.stats is not None
    if number <= WARM_UP_ROUNDS:
        return
    figures: dict[str, Any] = {"seconds": benchmark.stats.stats.total, "server_cpu": server_cpu}
    turn = Turn(BENCH.name, title(program), contender.name, number - WARM_UP_ROUNDS, ROWS, figures)
    record(BENCH, turn)
    benchmark.group = f"{BENCH.name}: {title(program)}"
    benchmark.extra_info |= {"contender": contender.name, "round": turn.number, "rows": ROWS, **figures}
