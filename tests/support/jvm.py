"""The options of Spark's JVMs, and the archive of Spark's classes from which they start in a fifth less processor time.

`PYTHONPATH=tests python -m support.jvm` makes the archive for the environment of this Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.patience import NEVER

#: Of the environment whose Spark it belongs to. A JVM that cannot use it, because it or Spark has changed, ignores it.
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

#: Less than half the processor time of a short run: no optimising compiler, a collector without threads, and classes
#: that are not verified when they are loaded.
_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
#: Limits of Spark that a busy machine exceeds: on the time between two heartbeats, and until a Python worker has
#: authenticated itself. The ten seconds until one connects are no option: see sitecustomize.py.
_LIMITS = ("spark.network.timeout", "spark.python.authenticate.socketTimeout")

JVM_OPTIONS = " ".join([_FAST, *(f"-D{name}={NEVER:.0f}s" for name in _LIMITS)])

#: A sixth less processor time: Spark interprets the expressions of a query instead of compiling them to Java classes.
_INTERPRETED = " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"


def options(*, is_interpreted: bool) -> str:
    """The options for `SPARK_SUBMIT_OPTS`. What Spark does with its own expressions is the same if interpreted."""
    shared = f" -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    return JVM_OPTIONS + _INTERPRETED * is_interpreted + shared * ARCHIVE.exists()


def main() -> None:
    """Run what most tests run, and keep the classes that it loaded."""
    from pyspark.sql import SparkSession

    written = ARCHIVE.with_suffix(".part")
    quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={written} {quiet}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(100).selectExpr("id", "CAST(id AS STRING) AS text", "array(id) AS list", "id % 3 AS part")
    rows.mapInArrow(lambda batches: batches, rows.schema).repartition(2, "part").groupBy("part").count().collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    written.replace(ARCHIVE)


if __name__ == "__main__":
    main()
