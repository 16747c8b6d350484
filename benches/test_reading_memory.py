"""The memory of a reader, of Spark's workers and of the server: with more entries, and with larger ones."""

from __future__ import annotations

from typing import Any

import pytest
from benches.driver import Record, TakeTurn
from benches.filled import FilledWatch, append
from benches.readers import READER
from benches.servers import newest_program
from benches.spark_session import SparkProcesses, start_spark
from benches.tables import MEANINGFUL_ROWS, RATE, Bench, Column
from benches.turns import ROWS, Figures, Target, Turn
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.testing import LocalServer

#: With 20 the server takes 2 GB.
TIMES = 20
SPARK = "headrace in Spark, a Python worker"
#: The factor by which the peak of the process may be higher.
TOLERANCE = 1.1

BENCH = Bench(
    "reading_memory",
    "memory: a reader of many entries, and of entries that become larger",
    columns=(
        Column.figure("peak memory of the process, MB", "peak_rss", 1e-6, ",.1f"),
        Column.figure("before the first entry, MB", "rss", 1e-6, ",.1f"),
        Column.figure("server's peak above the stream, MB", "server_peak", 1e-6, ",.1f"),
        RATE,
    ),
    compared=(),
    flat="entries",
)

#: The parts of a stream: numbers of entries, and the bytes of their payload.
Parts = tuple[tuple[int, int], ...]
MANY: list[Parts] = [((ROWS, 40),), ((TIMES * ROWS, 40),)]
#: When the first large entry arrives, the reader has requested a page sized for the small ones.
GROWING: Parts = ((100_000, 100), (40, 5_000_000))


class MemoryWatch(FilledWatch):
    """A `Watch` with the figure `server_peak`: the most memory of the server in a turn, above what it had before.

    No command resets the peak that a server reports, so each turn needs a new server.
    """

    _figure = "used_memory"

    def totals(self) -> Figures:
        memory: dict[str, Any] = self._client.info("memory")
        figure, self._figure = self._figure, "used_memory_peak"  # the second call is the one after the turn
        return {**super().totals(), "server_peak": float(memory[figure])}


def name_of(parts: Parts) -> str:
    return ", then ".join(f"{rows:,} of {size:,} bytes" for rows, size in parts)


Peaks = dict[tuple[str, Parts], float]


@pytest.fixture(scope="module")
def peaks() -> Peaks:
    return {}


def fill(server: LocalServer, parts: Parts) -> None:
    for count, size in parts:
        batch = min(count, 10_000) if size < 1_000 else 4
        append(Target.at(server, count, payload_bytes=size, batch=batch), 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("parts", [*MANY, GROWING], ids=name_of)
def test_reading_memory(parts: Parts, take_turn: TakeTurn, peaks: Peaks) -> None:
    rows = sum(count for count, _ in parts)
    with LocalServer(newest_program().path, transport="tcp") as server, MemoryWatch(server) as watch:
        fill(server, parts)
        target = Target.at(server, rows, batch=20)
        turn = take_turn(BENCH, READER, target, group=name_of(parts), number=1, watch=watch, warm_up=False)
    if "peak_rss" not in turn.figures:
        pytest.skip("the peak memory of a process is available on Linux only")
    check(peaks, parts, turn)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("parts", [*MANY, GROWING], ids=name_of)
def test_reading_memory_in_spark(parts: Parts, record: Record, benchmark: BenchmarkFixture, peaks: Peaks) -> None:
    """Each turn has its own workers, because workers persist from one job to the next."""
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    rows = sum(count for count, _ in parts)
    with LocalServer(newest_program().path, transport="tcp") as server, start_spark() as spark:
        fill(server, parts)
        options = {"host": str(server.host), "port": str(server.port), "stream_key": "bench", "min_partitions": "2"}
        frame = spark.read.format("redis_streams").schema("payload BINARY, ts STRING").options(**options).load()
        saved = frame.write.format("noop").mode("overwrite").save
        benchmark.pedantic(saved)  # type: ignore[no-untyped-call]
        peak = float(SparkProcesses(spark).peak_memory_of_workers())
    assert benchmark.stats is not None
    turn = Turn(BENCH.name, name_of(parts), SPARK, 1, rows, {"seconds": benchmark.stats.stats.total, "peak_rss": peak})
    record(BENCH, turn)
    benchmark.extra_info |= {"contender": SPARK, "rows": rows, **turn.figures}
    check(peaks, parts, turn)


def check(peaks: Peaks, parts: Parts, turn: Turn) -> None:
    """Check that the peak is close to that with fewer entries, unless those were too few to fill the buffers."""
    peak = peaks[turn.contender, parts] = turn.figures["peak_rss"]
    fewer = peaks.get((turn.contender, MANY[0]))
    if parts == MANY[1] and fewer is not None and ROWS >= MEANINGFUL_ROWS:
        assert peak <= TOLERANCE * fewer, f"{peak:,.0f} instead of {fewer:,.0f}"
