"""The data source and the functions over Spark Connect: a server of its own, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads
from support.programs import run_file

pytestmark = pytest.mark.thorough

Connect = Callable[..., redis.Redis]


def test_every_way_to_write_works_with_spark_connect(any_server: LocalServer, connect: Connect, tmp_path: Path) -> None:
    client = connect(any_server)
    arguments = (any_server.unix_socket, str(tmp_path))
    # SPARK_TESTING lets its server take a free port: another test may run one as well.
    done = run_file(__file__, *arguments, SPARK_LOCAL_DIRS=str(tmp_path), SPARK_TESTING="1")
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    assert done.stdout.splitlines() == [
        "unknown option 'strem_key'; did you mean 'stream_key'?",
        "1 of 5 rows were not written",
        "10 delivered, 0 failed",
        "9 delivered, 1 failed",
        "10 outcomes",
        "10 entry IDs",
    ]
    for key in ("batch", "sql", "registered", "thread", "stream", "write", "xadd", "xadd_udf"):
        assert sorted(payloads(client, key)) == [f"p{n}" for n in range(10)], key


def main(unix_socket: str, folder: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from headrace import Endpoint
    from headrace.spark import register, write, xadd, xadd_udf

    builder: Any = SparkSession.builder
    spark = (
        builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )

    def to(key: str) -> dict[str, Any]:
        return {"unix_socket": unix_socket, "stream_key": key}

    frame = spark.range(0, 10, 1, 2).selectExpr("concat('p', id) AS payload")
    frame.write.format("redis_streams").mode("append").options(**to("batch")).save()

    options = f"OPTIONS (unix_socket '{unix_socket}', stream_key 'sql')"
    spark.sql(f"CREATE TEMPORARY VIEW orders (payload STRING) USING redis_streams {options}")
    spark.sql("INSERT INTO orders SELECT concat('p', id) FROM range(10)")

    lines = Path(folder, "lines")
    lines.mkdir()
    (lines / "one.txt").write_text("\n".join(f"p{n}" for n in range(10)))
    writer = spark.readStream.text(str(lines)).writeStream.format("redis_streams").trigger(availableNow=True)
    query = writer.options(**to("stream"), checkpointLocation=f"{folder}/checkpoint").start()
    query.awaitTermination(60)

    nulls = spark.range(0, 10, 1, 2).selectExpr("if(id = 7, null, 'x') AS payload")
    for rows, wrong in ((frame, {"strem_key": "x"}), (nulls, {})):
        try:
            rows.write.format("redis_streams").mode("append").options(**to("wrong"), **wrong).save()
        except PySparkException as error:
            texts = ("unknown option 'strem_key'; did you mean 'stream_key'?", "1 of 5 rows were not written")
            print(*[text for text in texts if text in str(error)])

    register(spark)
    frame.write.format("redis_streams").mode("append").options(**to("registered")).save()
    with ThreadPoolExecutor(1, initializer=register, initargs=(spark,)) as pool:
        pool.submit(frame.write.format("redis_streams").mode("append").options(**to("thread")).save).result()

    for rows, key in ((frame, "write"), (nulls, "wrong")):
        summary = write(rows, Endpoint(**to(key)), failures=True, progress=False)
        assert summary.failures is not None
        print(f"{summary.delivered} delivered, {summary.failures.count()} failed")
    outcomes = frame.mapInArrow(xadd(Endpoint(**to("xadd"))), xadd.schema)
    print(sum(row.entry_id is not None for row in outcomes.collect()), "outcomes")
    sent = frame.select(xadd_udf(Endpoint(**to("xadd_udf")))("payload").alias("outcome"))
    print(sum(row.outcome.entry_id is not None for row in sent.collect()), "entry IDs")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
