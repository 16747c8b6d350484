"""The memory of a producer: the same for twenty times the rows.

Every figure is the peak of a separate process; in Spark, that of its Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benches.driver import Record, TakeTurn
from benches.servers import ServerWatch, newest_program
from benches.spark_jobs import PAYLOAD, headrace_xadd
from benches.spark_session import SparkProcesses, payload_rows, start_spark
from benches.tables import MEANINGFUL_ROWS, RATE, Bench, Column
from benches.turns import ROWS, Contender, Target, Turn
from pyspark.sql import SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer
from support import Program

TIMES = 20
#: The factor by which the peak may be higher.
TOLERANCE = 1.1

CONTENDERS = (
    Contender("headrace produce_batch, poll() after each", "benches.memory_runs:produce_batch"),
    Contender("headrace produce_batch, one reader of all rows", "benches.memory_runs:reader"),
    Contender(
        "headrace produce, poll() after 10,000 calls",
        "benches.contenders.headrace_:produce",
        {"message_ids": True, "endpoint_options": {"trim_every": 100}},
    ),
)
SPARK = "headrace.spark.xadd, a Python worker"

BENCH = Bench(
    "memory",
    f"memory: the same work with {TIMES} times the rows",
    columns=(
        Column.figure("peak memory of the process, MB", "peak_rss", 1e-6, ",.1f"),
        Column.figure("before the first row, MB", "rss", 1e-6, ",.1f"),
        RATE,
    ),
    compared=(Column.figure("peak memory", "peak_rss"),),
    flat="rows",
)

#: The peaks, by the contender's name and the number of rows.
Peaks = dict[tuple[str, int], float]


@pytest.fixture(scope="module")
def peaks() -> Peaks:
    return {}


def turns(*contenders: Any) -> list[Any]:
    both = [(contender, rows) for contender in contenders for rows in (ROWS, TIMES * ROWS)]
    return [pytest.param(*turn, id=f"{getattr(turn[0], 'name', turn[0])}, {turn[1]:,} rows") for turn in both]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("contender", "rows"), turns(*CONTENDERS))
def test_memory(
    contender: Contender,
    rows: int,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
    peaks: Peaks,
) -> None:
    server = server_of(newest_program())
    with ServerWatch(server) as watch:
        target = Target(rows, unix_socket=server.unix_socket)
        turn = take_turn(BENCH, contender, target, group=f"{rows:,}", number=1, watch=watch)
    if "peak_rss" not in turn.figures:
        pytest.skip("the peak memory of a process is available on Linux only")
    check(peaks, turn)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with start_spark() as spark:
        yield spark


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "rows"), turns(SPARK))
def test_memory_in_spark(
    name: str,
    rows: int,
    spark: SparkSession,
    server_of: Callable[[Program], LocalServer],
    record: Record,
    benchmark: BenchmarkFixture,
    peaks: Peaks,
) -> None:
    """The workers persist from one job to the next, so the second peak is the higher one of both jobs."""
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    server = server_of(newest_program())
    target = Target.at(server, rows)
    frame = payload_rows(spark, rows)
    with ServerWatch(server) as watch:
        watch.fresh()
        assert benchmark.pedantic(headrace_xadd, (frame, PAYLOAD, target)) == rows  # type: ignore[no-untyped-call]
        assert watch.entries_added(target.stream_key) == rows
    assert benchmark.stats is not None
    peak = float(SparkProcesses(spark).peak_memory_of_workers())
    turn = Turn(BENCH.name, f"{rows:,}", name, 1, rows, {"seconds": benchmark.stats.stats.total, "peak_rss": peak})
    record(BENCH, turn)
    benchmark.extra_info |= {"contender": name, "rows": rows, **turn.figures}
    check(peaks, turn)


def check(peaks: Peaks, turn: Turn) -> None:
    """Check that the peak is close to that with fewer rows, unless those were too few to fill the buffers."""
    peaks[turn.contender, turn.rows] = turn.figures["peak_rss"]
    fewer = peaks.get((turn.contender, turn.rows // TIMES))
    if fewer is not None and turn.rows >= TIMES * MEANINGFUL_ROWS:
        assert turn.figures["peak_rss"] <= TOLERANCE * fewer, f"{turn.figures['peak_rss']:,.0f} instead of {fewer:,.0f}"
