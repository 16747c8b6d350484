"""A password among the options: where Spark shows it, and where it does not. In a process of its own, which logs.

Looked at are the logs of driver and workers (Java's of level INFO, Python's of level DEBUG) with their tracebacks (and
local variables, where Spark has them), errors, EXPLAIN in each of its forms, SHOW CREATE TABLE and DESCRIBE, progress
and `explain` of a streaming query, the event log, the checkpoint, the pages and the REST API of the web UI, and the
command lines and environments of Java and of Python's workers. tests/endpoint/test_canary.py has the places without
Spark.
"""

from __future__ import annotations

import contextlib
import html
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from headrace import Endpoint
from headrace.spark import write, xadd
from headrace.testing import LocalServer
from support.programs import run_file

pytestmark = pytest.mark.thorough

SECRET = "canary-hunter2"

#: Each place to search (the program's output, or a folder that it fills), and a word that must be found there.
PLACES = {
    "physical plans": ("printed", "== Physical Plan =="),
    "logical plans": ("printed", "== Optimized Logical Plan =="),
    "parsed commands": ("printed", "== Parsed Logical Plan =="),
    "costs of plans": ("printed", "Statistics(sizeInBytes"),
    "generated code": ("printed", "Generated code:"),
    "plans of mapInArrow": ("printed", "MapInArrow"),
    "SHOW CREATE TABLE": ("printed", "CREATE TABLE spark_catalog.default.orders"),
    "DESCRIBE": ("printed", "# Detailed Table Information"),
    "errors of the driver": ("printed", "unknown option 'portt'"),
    "errors of a server": ("printed", "DB index is out of range"),
    "tracebacks of the workers": ("printed", "SchemaError"),
    "progress of a query": ("printed", '"numInputRows": 3'),
    "progress of a query that reads": ("printed", "read by a query:"),
    "errors of the reader": ("printed", "unknown option 'startin'"),
    "errors of a beginning": ("printed", "is after the newest entry"),
    "summaries of write": ("printed", "written by headrace.spark.write"),
    "Java's log": ("printed", "INFO DAGScheduler"),
    "Python's log": ("printed", "INFO:py4j.clientserver:"),
    "headrace's log": ("printed", "INFO:headrace.spark:"),
    "the event log": ("events", "SparkListenerSQLExecutionStart"),
    "the checkpoint": ("checkpoint", "nextBatchWatermarkMs"),
    "the offsets of a read": ("checkpoint", '"streams": {'),
    "the UI": ("ui", "AppendData"),
    "the UI's environment": ("ui", "/environment/"),
    "the REST API": ("ui", "/api/v1/applications/"),
    "command lines": ("processes", "pyspark.daemon"),
    "environments": ("processes", "SPARK_"),
}


#: Java's log. Of a session like this one Spark shows warnings only, whatever `setLogLevel` says, unless its own logger
#: has a level.
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


def password() -> str:
    """A password provider, called for each connection."""
    return os.environ["REDIS_SECRET"]


@pytest.mark.parametrize("way", ["password", "password_env"])
def test_no_secret_is_shown(start_server: Callable[..., LocalServer], tmp_path: Path, way: str) -> None:
    server = start_server(config={"requirepass": SECRET})
    (tmp_path / "events").mkdir()
    done = run_file(__file__, server.unix_socket, str(tmp_path), way, REDIS_SECRET=SECRET)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-5_000:]
    texts = {"printed": [shown]}
    for place in ("events", "checkpoint", "ui", "processes"):
        files = [path for path in (tmp_path / place).rglob("*") if path.is_file()]
        texts[place] = [f"{path.name}\n{path.read_text(errors='replace')}" for path in files]
    for place, (where, word) in PLACES.items():
        assert any(word in text for text in texts[where]), place
    for where, all_of_it in texts.items():
        found = [line[:300] for text in all_of_it for line in text.splitlines() if SECRET in line]
        assert not found, (where, found)
    print(f"{way}: {len(PLACES)} places of Spark looked at, 0 secrets found")


def main(unix_socket: str, folder: str, way: str) -> None:
    Path(folder, "log4j2.properties").write_text(LOG4J)
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
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties")
        .config("spark.local.dir", folder)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        # Spark 4.3 shows the local variables in tracebacks.
        .config("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    if way == "password":
        # It logs every call to Java, including those with options.
        logging.getLogger("py4j").setLevel(logging.INFO)
    lines = Path(folder, "lines")
    lines.mkdir()
    (lines / "one.txt").write_text("a\nb\nc")
    options = {"unix_socket": unix_socket, "stream_key": "events", way: SECRET if way == "password" else "REDIS_SECRET"}
    write_in_every_way(spark, options, folder)
    look_at_processes(Path(folder, "processes"))
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

    here = {name: options[name] for name in ("unix_socket", "stream_key")}
    endpoints = [Endpoint(**options), *([Endpoint(**here, password=password)] if "password_env" in options else [])]
    for endpoint in endpoints:
        print("written by headrace.spark.write:", write(frame, endpoint, progress=False))
        for column in ("payload", "nope"):
            outcomes = frame.mapInArrow(xadd(endpoint, payload=column), xadd.schema)
            outcomes.explain(extended=True)
            try:
                print(outcomes.collect()[0])
            except PythonException as error:
                print(error)

    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW events (payload STRING) USING redis_streams OPTIONS ({given})")
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

    for more in ({}, {"startin": "x"}, {"starting": "99999999999999-0"}):
        try:
            entries = spark.read.format("redis_streams").schema("payload string").options(**options, **more).load()
            entries.explain(extended=True)
            entries.collect()
            entries = (
                spark.readStream.format("redis_streams").options(**{"starting": "earliest", **options, **more}).load()
            )
            sink = entries.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint/of-a-read")
            query = sink.trigger(availableNow=True).start()
            query.awaitTermination()
            print("read by a query:", query.lastProgress)
        except (AnalysisException, PythonException, StreamingQueryException) as error:
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


def look_at_processes(folder: Path) -> None:
    """Keep the command lines of all processes below this one, and their environments without the variable itself."""
    folder.mkdir()
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in below:
        with contextlib.suppress(OSError):
            command, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            lines = [line for line in environment.split(b"\0") if not line.startswith(b"REDIS_SECRET=")]
            Path(folder, f"{pid}.txt").write_bytes(b"\n".join([command, *lines]))


def look_at_ui(url: str, folder: Path) -> None:
    """Save every page linked from the UI, and the replies of its REST API."""
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
