"""Writing to the node of a cluster that has the stream, and reading from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.testing import LocalCluster
from support.clusters import another_master
from support.servers import programs_with

pytestmark = pytest.mark.timeout(300)


def test_streams_that_move_and_fail_over(spark: SparkSession, tmp_path: Path) -> None:
    """Stream to stream, exactly once: micro-batches before and behind a moved slot and a failover."""
    with LocalCluster(max(programs_with(["redis"])).path) as cluster:
        options = {"nodes": ",".join(cluster.nodes), "stream_key": "in"}

        def write(first: int) -> None:
            frame = spark.range(first, first + 500, 1, 2).selectExpr("string(id) AS n")
            more = {"fields": "n", "wait_replicas": "1", "wait_timeout": "5", "retry_deadline": "60"}
            frame.write.format("redis_streams").mode("append").options(**options, **more).save()

        def copy() -> None:
            reading = {**options, "starting": "earliest"}
            entries = spark.readStream.format("redis_streams").schema("n string").options(**reading).load()
            out = {**options, "fields": "n", "stream_key": "out", "checkpointLocation": str(tmp_path / "checkpoint")}
            copied = entries.writeStream.format("redis_streams").options(**out)
            copied.trigger(availableNow=True).start().awaitTermination()

        write(0)
        copy()
        cluster.move_slot("in", another_master(cluster, "in"))
        write(500)
        cluster.fail_over("out")
        copy()
        reading = spark.read.format("redis_streams").schema("n string").option("url", cluster.url)
        found = reading.option("stream_key", "out").load()
        assert sorted(int(row.n) for row in found.collect()) == [*range(1_000)]


def test_what_needs_several_nodes_is_refused(spark: SparkSession) -> None:
    with LocalCluster(max(programs_with(["redis"])).path, replicas=0) as cluster:
        several = {"nodes": ",".join(cluster.nodes), "stream_keys": "s,t"}
        with pytest.raises(PySparkException, match="streams must be in one slot of the cluster: 's' is in slot"):
            spark.read.format("redis_streams").options(**several).load().collect()
