"""The driver of a streaming query: the process that is killed. It runs the queries that it reads from standard input.

Each line of input is a `Query` as JSON; to the file descriptor of its first argument it writes a line of JSON per
event. The second one is the number of cores. It restarts a failed query from its checkpoint, as a supervisor would. It
ends at once when its input ends, because its parent is gone then.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from .traps import TrappedPlain, TrappedRedisStreams

#: How often one driver restarts a query before it gives up.
MAX_FAILURES = 10

# A driver lives for seconds: the JVM's second compiler would not help it, and without it starts in half the CPU time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


@dataclasses.dataclass(frozen=True)
class Query:
    """A stream: `source` and `sink` are formats of Spark, with their options.

    Rows have one text column, `payload`; `columns` are the expressions of the columns that are written.
    """

    source: str
    source_options: dict[str, str]
    checkpoint: str
    record_batch: int
    sink: str
    options: dict[str, str]
    columns: list[str] = dataclasses.field(default_factory=lambda: ["payload"])


def start_spark(cores: str) -> SparkSession:
    options: dict[str, str | int | float | bool | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.local.dir": str(Path.cwd()),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        # As large as a file of any size, so that no two files share a partition; none is split, being below 128 MiB.
        "spark.sql.files.openCostInBytes": 128 << 20,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    # A task may fail eight times, because several faults may hit it.
    spark = SparkSession.builder.master(f"local[{cores},8]").config(map=options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for source in (TrappedPlain, TrappedRedisStreams):
        spark.dataSource.register(source)
    return spark


def run(spark: SparkSession, query: Query) -> None:
    """Run a query once over all available rows, in several micro-batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", query.record_batch)
    source = spark.readStream.format(query.source).schema("payload string").options(**query.source_options)
    frame = source.load().selectExpr(*query.columns)
    writer = frame.writeStream.format(query.sink).options(**query.options)
    started = writer.option("checkpointLocation", query.checkpoint).trigger(availableNow=True).start()
    started.awaitTermination()


def _in_short(error: str) -> str:
    """The texts of the exceptions in a Spark error, without tracebacks and plan."""
    lines = [line.strip() for line in error.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b", line)]
    return "; ".join(dict.fromkeys(lines)) or error[:500]


def _read(commands: queue.SimpleQueue[str]) -> None:
    for command in sys.stdin:
        commands.put(command)
    os._exit(0)  # the JVM ends with this process, because its standard input is a pipe from it


def main() -> None:
    events = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def tell(event: str, **more: Any) -> None:
        print(json.dumps({"event": event, **more}), file=events)

    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=[commands], daemon=True).start()
    spark = start_spark(sys.argv[2])
    tell("ready")
    while True:
        query = Query(**json.loads(commands.get()))
        for _ in range(MAX_FAILURES):
            tell("started")
            try:
                run(spark, query)
            except Exception as error:
                print(error, file=sys.stderr)
                tell("failed", error=_in_short(str(error)))
                time.sleep(0.2)
            else:
                tell("finished")
                break
        else:
            tell("gave up")


if __name__ == "__main__":
    main()
