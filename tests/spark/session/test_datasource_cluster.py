"""Writing to the node of a cluster that has the stream, and reading from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession

from headrace.testing import LocalCluster
from support.clusters import another_master
from support.processes import wait_until
from support.servers import programs_with


def test_each_row_is_copied_once_across_a_moved_slot_and_a_failover(spark: SparkSession, tmp_path: Path) -> None:
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


KEYS = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(max(programs_with(["redis"])).path, replicas=0) as cluster:
        assert len({cluster.owner(key).port for key in KEYS}) == 3
        yield cluster


def add(cluster: LocalCluster, key: str, numbers: range) -> list[tuple[str, int]]:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        for number in numbers:
            client.xadd(key, {"n": number})
    return [(key, number) for number in numbers]


def reading(cluster: LocalCluster, keys: list[str], **more: str) -> dict[str, str]:
    nodes = ",".join(cluster.nodes)
    return {"nodes": nodes, "stream_keys": ",".join(keys), "starting": "earliest", "metadata": "stream", **more}


def rows_of(frame: DataFrame) -> list[tuple[str, int]]:
    """In the order of each stream."""
    rows = [(row.stream, int(row.n)) for row in frame.collect()]
    return sorted(rows, key=lambda row: row[0])


def test_a_batch_reads_streams_of_all_nodes(spark: SparkSession, three: LocalCluster) -> None:
    keys = [f"batch {key}" for key in KEYS]
    written = [row for number, key in enumerate(keys) for row in add(three, key, range(10 * number, 10 * number + 40))]
    frame = spark.read.format("redis_streams").schema("stream string, n string")
    # Cut into ranges, which the nodes are asked about.
    whole = frame.options(**reading(three, keys, min_partitions="12")).load()
    assert whole.rdd.getNumPartitions() >= 12
    assert rows_of(whole) == written


@pytest.mark.thorough
def test_a_query_reads_streams_of_all_nodes_while_slots_move(
    spark: SparkSession, three: LocalCluster, tmp_path: Path
) -> None:
    """The driver keeps its connections, and finds the streams where they are now; so does the group that shows it."""
    keys = [f"stream {key}" for key in KEYS]
    written = [row for key in keys for row in add(three, key, range(5))]
    found: list[tuple[str, int]] = []

    def keep(frame: DataFrame, _: int) -> None:
        found.extend(rows_of(frame))

    entries = spark.readStream.format("redis_streams").schema("stream string, n string")
    read = entries.options(**reading(three, keys, commit_group="shown")).load()
    query = read.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path)).start()

    def wait_for_all() -> None:
        wait_until(lambda: len(found) == len(written) or query.exception() is not None)
        assert query.exception() is None

    try:
        for first in (5, 10, 15):
            wait_for_all()
            three.move_slot(keys[first // 5], another_master(three, keys[first // 5]))
            written += [row for key in keys for row in add(three, key, range(first, first + 5))]
        wait_for_all()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted(found, key=lambda row: row[0]) == sorted(written, key=lambda row: row[0])
    for key in keys:
        with redis.Redis(port=three.owner(key).port or 0) as client:
            (group,) = client.xinfo_groups(key)
            assert (group["name"], group["entries-read"]) == (b"shown", 20)


@pytest.mark.thorough
def test_a_cluster_is_found_by_the_host_and_port_of_one_node(
    spark: SparkSession, three: LocalCluster, tmp_path: Path
) -> None:
    """Writer and source find the cluster by what the node says: rows of all nodes, in batches and as a stream."""
    keys = [f"auto {key}" for key in KEYS]
    node = {"host": "127.0.0.1", "port": str(three.servers[0].port)}
    named = f"element_at(split('{','.join(keys)}', ','), int(id % 6 + 1)) AS k"
    rows = spark.range(0, 600, 1, 3).selectExpr("string(id) AS n", named)
    writing = {**node, "fields": "n", "stream_key": keys[0], "stream_key_column": "k"}
    rows.write.format("redis_streams").mode("append").options(**writing).save()
    written = sorted((keys[n % 6], n) for n in range(600))
    wanted = {**node, "stream_keys": ",".join(keys), "starting": "earliest", "metadata": "stream"}
    frame = spark.read.format("redis_streams").schema("stream string, n string")
    assert sorted(rows_of(frame.options(**wanted, min_partitions="12").load())) == written
    entries = spark.readStream.format("redis_streams").schema("stream string, n string").options(**wanted).load()
    out = {**node, "fields": "stream,n", "stream_key": "auto out", "checkpointLocation": str(tmp_path)}
    query = entries.writeStream.format("redis_streams").options(**out).trigger(availableNow=True).start()
    query.awaitTermination()
    with redis.Redis(port=three.owner("auto out").port or 0) as client:
        copied = [(fields[b"stream"].decode(), int(fields[b"n"])) for _, fields in client.xrange("auto out")]
    assert sorted(copied) == written
