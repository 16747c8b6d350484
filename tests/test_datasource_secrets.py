"""A password among the options: where Spark shows it, and where it does not. In a process of its own, which logs.

Looked at are the logs of driver and workers (INFO) with their tracebacks (and local variables, where Spark has them),
errors, EXPLAIN in each of its forms, SHOW CREATE TABLE and DESCRIBE, progress and `explain` of a streaming query, the
event log, the checkpoint, and the pages and the REST API of the web UI.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from headrace import Endpoint
from headrace.server import LocalServer
from headrace.spark import write, xadd

SECRET = "canary-hunter2"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", ["password", "password_env"])
def test_no_secret_is_shown(start_server: Callable[..., LocalServer], tmp_path: Path, way: str) -> None:
    server = start_server(config={"requirepass": SECRET})
    (tmp_path / "events").mkdir()
    program = [sys.executable, __file__, server.unix_socket, str(tmp_path), way]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=230, check=False, env={**os.environ, "REDIS_SECRET": SECRET}
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-5_000:]
    for text in (
        "== Physical Plan ==",
        "== Optimized Logical Plan ==",
        "Generated code:",
        "CREATE TABLE spark_catalog.default.orders",
        "there is no option 'portt'",
        "DB index is out of range",
        "MapInArrow",
        "SchemaError",
    ):
        assert text in shown
    assert SECRET not in shown
    for place, telling in (
        ("events", "SparkListenerSQLExecutionStart"),
        ("checkpoint", "nextBatchWatermarkMs"),
        ("ui", "AppendData"),
    ):
        files = [path for path in (tmp_path / place).rglob("*") if path.is_file()]
        texts = [(path.name, path.read_text(errors="replace")) for path in files]
        assert any(telling in text for _, text in texts), place
        for name, text in texts:
            found = [line for line in text.splitlines() if SECRET in line]
            assert not found, (place, name, [line[:300] for line in found])


def main(unix_socket: str, folder: str, way: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
        .config("spark.local.dir", folder)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        # Spark 4.3 shows the local variables in tracebacks.
        .config("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    lines = Path(folder, "lines")
    lines.mkdir()
    (lines / "one.txt").write_text("a\nb\nc")
    options = {"unix_socket": unix_socket, "stream_key": "events", way: SECRET if way == "password" else "REDIS_SECRET"}
    write_in_every_way(spark, options, folder)
    look_at_ui(str(spark.sparkContext.uiWebUrl), Path(folder, "ui"))
    spark.stop()


def write_in_every_way(spark: SparkSession, options: dict[str, Any], folder: str) -> None:
    frame = spark.range(100).selectExpr("string(id) AS payload")

    frame.write.format("redis_streams").mode("append").options(**options).save()
    for wrong in ({"portt": "1"}, {"db": "99"}):
        try:
            frame.write.format("redis_streams").mode("append").options(**options, **wrong).save()
        except (AnalysisException, PythonException) as error:
            print(error)

    endpoint = Endpoint(**options)
    print(write(frame, endpoint, progress=False))
    for column in ("payload", "nope"):
        outcomes = frame.mapInArrow(xadd(endpoint, payload=column), xadd.schema)
        outcomes.explain(extended=True)
        try:
            print(outcomes.collect()[0])
        except PythonException as error:
            print(error)

    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW events USING redis_streams OPTIONS ({given})")
    spark.sql(f"CREATE TABLE orders (payload STRING) USING redis_streams OPTIONS ({given})")
    for form in ("EXTENDED", "FORMATTED", "COST", "CODEGEN"):
        spark.sql(f"EXPLAIN {form} INSERT INTO events SELECT 'x'").show(truncate=False)
    spark.sql(f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW others USING redis_streams OPTIONS ({given})").show(
        truncate=False
    )
    spark.sql("INSERT INTO events SELECT 'x'")
    for statement in (
        "DESCRIBE EXTENDED events",
        "DESCRIBE EXTENDED orders",
        "SHOW CREATE TABLE orders",
        "SHOW CREATE TABLE events",
        "SHOW TBLPROPERTIES orders",
        "INSERT INTO orders SELECT 'x'",  # Spark keeps no options of such a table
    ):
        try:
            spark.sql(statement).show(truncate=False)
        except (AnalysisException, PythonException) as error:
            print(error)

    for more in ({}, {"portt": "1"}):
        lines = spark.readStream.text(f"{folder}/lines").writeStream.format("redis_streams").trigger(availableNow=True)
        given_too = {"checkpointLocation": f"{folder}/checkpoint", "exactly_once": "off", **options, **more}
        query = lines.options(**given_too).start()
        try:
            query.awaitTermination()
            query.explain(extended=True)
            print(query.lastProgress)
        except StreamingQueryException as error:
            print(error)


def look_at_ui(url: str, folder: Path) -> None:
    """Keep every page that the UI leads to, and what its REST API says."""
    folder.mkdir()
    links = ["/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/"]
    (application,) = json.loads(urlopen(f"{url}/api/v1/applications").read())
    rest = f"/api/v1/applications/{application['id']}"
    links += [f"{rest}/{part}" for part in ("jobs", "stages?details=true", "environment")]
    queries = f"{rest}/sql?details=true&planDescription=true&length=1000"
    links += [queries, *(f"/SQL/execution/?id={query['id']}" for query in json.loads(urlopen(url + queries).read()))]
    seen = set()
    while links:
        link = links.pop()
        if link in seen:
            continue
        seen.add(link)
        page = urlopen(url + link).read().decode()
        Path(folder, f"{len(seen)}.txt").write_text(f"{link}\n{page}")
        links += [
            html.unescape(found) for found in re.findall(r'href="(/(?:SQL|StreamingQuery)/[^"]*\?id=[^"]*)"', page)
        ]


if __name__ == "__main__":
    main(*sys.argv[1:])
