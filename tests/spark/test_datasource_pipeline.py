"""A declarative pipeline of Spark 4.1 and newer that reads a stream into a table, and writes the table to a stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads
from support.programs import run_file
from support.source import add

pytestmark = pytest.mark.thorough

Connect = Callable[..., redis.Redis]


def test_a_pipeline_reads_and_writes_each_entry_once(any_server: LocalServer, connect: Connect, tmp_path: Path) -> None:
    client = connect(any_server)
    arguments = (any_server.unix_socket, str(tmp_path))
    # SPARK_TESTING lets its server take a free port: another test may run one as well.
    done = run_file(__file__, *arguments, SPARK_LOCAL_DIRS=str(tmp_path), SPARK_TESTING="1")
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    assert sorted(map(int, payloads(client, "copy"))) == list(range(200))


def main(unix_socket: str, folder: str) -> None:
    from pyspark import pipelines
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    spark = (
        builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )

    def numbers() -> Any:
        reader = spark.readStream.format("redis_streams").schema("n long")
        return reader.options(unix_socket=unix_socket, stream_key="events", starting="earliest").load()

    def copy() -> Any:
        return spark.readStream.table("numbers").selectExpr("string(n) AS payload")

    client = redis.Redis(unix_socket_path=unix_socket)
    # The second run goes on where the first one ended. The commands are those of `spark-pipelines run`.
    for first in (0, 100):
        add(client, "events", range(first, first + 100))
        graph = create_dataflow_graph(spark, None, None, {})
        with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
            pipelines.table(numbers)
            pipelines.create_sink("copies", "redis_streams", {"unix_socket": unix_socket, "stream_key": "copy"})
            pipelines.append_flow(target="copies")(copy)
        storage = f"file://{folder}/storage"
        run = start_run(
            spark, graph, full_refresh=None, full_refresh_all=False, refresh=None, dry=False, storage=storage
        )
        handle_pipeline_events(run)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
