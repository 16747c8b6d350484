"""Spark `local[2]` for benchmarks: rows that are in memory before the clock starts, and what its processes use."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

#: Clock ticks per second, the unit of CPU times on Linux: a resolution of 10 ms.
TICKS = os.sysconf("SC_CLK_TCK")
PARTITIONS = 2
PAYLOAD_BYTES = 120


@contextmanager
def start_spark() -> Iterator[SparkSession]:
    """Start it on two threads, and stop it at the end of the block. This takes about five seconds."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options: dict[str, str | int | float | bool | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.local.dir": tempfile.gettempdir(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": PARTITIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark: SparkSession = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def payload_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Rows with a `payload` of `PAYLOAD_BYTES` bytes."""
    start = sf.format_string('{"order_id": %08d, "status": "shipped", "note": "', "id")
    return spark.range(0, rows, 1, PARTITIONS).select(
        sf.concat(sf.rpad(start, PAYLOAD_BYTES - 2, "x"), sf.lit('"}')).alias("payload")
    )


def typed_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Rows of six columns: int64, double, string, boolean, timestamp, decimal(18,2)."""
    number = sf.col("id")
    return spark.range(0, rows, 1, PARTITIONS).select(
        number.alias("order_id"),
        (number * 0.37).alias("weight"),
        sf.concat(sf.lit("customer-"), (number % 9973).cast("string")).alias("customer"),
        (number % 3 == 0).alias("express"),
        sf.timestamp_micros(sf.lit(1_776_124_800_000_000) + number * 1_234_567).alias("placed"),
        (number % 1_000_000 / sf.lit(100)).cast("decimal(18,2)").alias("total"),
    )


def in_memory(frame: DataFrame) -> DataFrame:
    """Return the same rows, computed once and kept."""
    cached = frame.cache()
    cached.count()
    return cached


class SparkProcesses:
    """The processes of a session: the JVM, and the Python workers below it, which persist from job to job."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._gateway.proc.pid
        self._collect = context._jvm.System.gc

    def collect_garbage(self) -> None:
        """Collect garbage in the JVM, so that a job does not pay for the previous one."""
        self._collect()

    def jvm_cpu(self) -> float:
        """CPU seconds of the JVM, including its compiler and garbage collector, without its children."""
        return stat(self._jvm).own_cpu

    def workers_cpu(self) -> float:
        """CPU seconds of all Python workers, including those that have ended."""
        return sum(found.own_cpu + found.ended_children_cpu for found in map(stat, self.workers()))

    def peak_memory_of_workers(self) -> int:
        """The peak memory of one worker, in bytes."""
        return max(peak_memory(pid) for pid in self.workers())

    def workers(self) -> list[int]:
        """The process IDs of the daemon that forks the workers, and of the workers."""
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                children.setdefault(stat(int(folder.name)).parent, []).append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
        found, waiting = [], [self._jvm]
        while waiting:
            of_one = children.get(waiting.pop(), [])
            found += of_one
            waiting += of_one
        return found


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used."""

    parent: int
    own_cpu: float
    ended_children_cpu: float


def stat(pid: int) -> Stat:
    """Read them: proc_pid_stat(5)."""
    # The name of the program, in parentheses, may contain anything; the third field follows it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, ended = fields[11:13], fields[13:15]
    return Stat(int(fields[1]), sum(map(int, own)) / TICKS, sum(map(int, ended)) / TICKS)


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    # A zombie process has none.
    return int(found[1]) * 1024 if found else 0
