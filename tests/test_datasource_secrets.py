"""A password among the options: where Spark shows it, and where it does not. In a process of its own, which logs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from headrace.server import LocalServer

SECRET = "canary-hunter2"


@pytest.mark.parametrize("way", ["password", "password_env"])
def test_no_secret_is_shown(start_server: Callable[..., LocalServer], tmp_path: Path, way: str) -> None:
    server = start_server(config={"requirepass": SECRET})
    events = tmp_path / "events"
    events.mkdir()
    program = [sys.executable, __file__, server.unix_socket, str(tmp_path), way]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=110, check=False, env={**os.environ, "REDIS_SECRET": SECRET}
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-5_000:]
    for text in (
        "== Physical Plan ==",
        "there is no option 'portt'",
        "DB index is out of range",
        "SQL tab:",
    ):
        assert text in shown
    assert SECRET not in shown
    places = {
        place: [path for path in (tmp_path / place).rglob("*") if path.is_file()] for place in ("events", "checkpoint")
    }
    for place, files in places.items():
        assert files, place
        for path in files:
            found = [line for line in path.read_text(errors="replace").splitlines() if SECRET in line]
            assert not found, (place, path.name, [line[:300] for line in found])


def main(unix_socket: str, folder: str, way: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
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
    secret = {"password": SECRET} if way == "password" else {"password_env": "REDIS_SECRET"}
    options = {"unix_socket": unix_socket, "stream_key": "events", **secret}
    frame = spark.range(100).selectExpr("string(id) AS payload")

    frame.write.format("redis_streams").mode("append").options(**options).save()
    for wrong in ({"portt": "1"}, {"db": "99"}):
        try:
            frame.write.format("redis_streams").mode("append").options(**options, **wrong).save()
        except (AnalysisException, PythonException) as error:
            print(error)

    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW events USING redis_streams OPTIONS ({given})")
    spark.sql("EXPLAIN EXTENDED INSERT INTO events SELECT 'x'").show(truncate=False)
    spark.sql("INSERT INTO events SELECT 'x'")
    spark.sql("DESCRIBE EXTENDED events").show(truncate=False)

    lines = Path(folder, "lines")
    lines.mkdir()
    (lines / "one.txt").write_text("a\nb\nc")
    for more in ({}, {"portt": "1"}):
        write = spark.readStream.text(str(lines)).writeStream.format("redis_streams").trigger(availableNow=True)
        given_too = {"checkpointLocation": f"{folder}/checkpoint", "exactly_once": "off", **options, **more}
        query = write.options(**given_too).start()
        try:
            query.awaitTermination()
            query.explain(extended=True)
            print(query.lastProgress)
        except StreamingQueryException as error:
            print(error)

    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for number in range(executions.size()):
        execution = executions.apply(number)
        print("SQL tab:", execution.description(), execution.details(), execution.physicalPlanDescription())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
