"""Writing to the master that sentinels name, and reading from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing import LocalSentinel
from support.servers import programs_with

pytestmark = pytest.mark.thorough


def test_each_row_is_copied_once_across_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    """Stream to stream, exactly once: one micro-batch before a failover, one behind it."""
    with LocalSentinel(max(programs_with(["redis"])).path) as group:
        options = {"nodes": ",".join(group.nodes), "sentinel_master": group.master_name, "stream_key": "in"}

        def write(first: int, replicas: int) -> None:
            frame = spark.range(first, first + 500, 1, 2).selectExpr("string(id) AS n")
            more = {"fields": "n", "wait_replicas": str(replicas), "wait_timeout": "5", "retry_deadline": "60"}
            frame.write.format("redis_streams").mode("append").options(**options, **more).save()

        def copy(replicas: int) -> None:
            reading = {**options, "starting": "earliest"}
            entries = spark.readStream.format("redis_streams").schema("n string").options(**reading).load()
            more = {"fields": "n", "wait_replicas": str(replicas), "wait_timeout": "5"}
            out = {**options, **more, "stream_key": "out", "checkpointLocation": str(tmp_path / "checkpoint")}
            copied = entries.writeStream.format("redis_streams").options(**out)
            copied.trigger(availableNow=True).start().awaitTermination()

        write(0, 2)
        copy(2)
        group.fail_over()
        # The old master is no replica yet.
        write(500, 1)
        copy(1)
        reading = spark.read.format("redis_streams").schema("n string").option("url", group.url)
        found = reading.option("stream_key", "out").load()
        assert sorted(int(row.n) for row in found.collect()) == [*range(1_000)]
