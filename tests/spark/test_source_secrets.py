"""A password among the options of a read that fails, or that shows its lag in a group. In a process of its own.

Looked at are errors, plans, SQL's descriptions of a view, progress, the log, the event log and the checkpoint.
tests/spark/test_datasource_secrets.py looks at the web UI and the processes as well.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.spark.source.stream import HAS_LIMITS
from headrace.testing import LocalServer
from support.programs import run_file

pytestmark = pytest.mark.thorough

SECRET = "canary-hunter2"

#: What fails, and words of its error.
FAILURES = {
    "a password in the URL": "must not hold a password",
    "a wrong password": "WRONGPASS",
    "an unknown option": "unknown option 'startin'",
    "an unreachable server": "nowhere.sock",
    "entries that were trimmed": "DataLossError",
    "a group with consumers": "commit_group='busy'",
}


def test_failing_reads_show_no_secret(start_server: Callable[..., LocalServer], tmp_path: Path) -> None:
    server = start_server(config={"requirepass": SECRET})
    (tmp_path / "events").mkdir()
    done = run_file(__file__, server.unix_socket, str(tmp_path))
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-5_000:]
    for failure, words in FAILURES.items():
        (line,) = [text for text in printed.split("\n=== ") if text.startswith(f"{failure}\n")]
        assert words in line, (failure, line[:3_000])
    kept = [path for place in ("events", "checkpoint") for path in (tmp_path / place).rglob("*") if path.is_file()]
    texts = {"printed": printed} | {str(path): path.read_text(errors="replace") for path in kept}
    for word in ("numInputRows", "SparkListenerSQLExecutionStart", '"streams": {', "== Physical Plan =="):
        assert any(word in text for text in texts.values()), word
    found = {place: text[max(0, text.find(SECRET) - 200) :][:400] for place, text in texts.items() if SECRET in text}
    assert not found, found


def main(unix_socket: str, folder: str) -> None:
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
        .config("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")
        .getOrCreate()
    )
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.INFO)  # it logs every call to Java, with the options
    client = redis.Redis(unix_socket_path=unix_socket, password=SECRET)
    for key in ("events", "busy"):
        for number in range(1, 11):
            client.xadd(key, {"payload": "x"}, id=f"{number}-0")
    client.xgroup_create("busy", "busy", "0")
    client.xreadgroup("busy", "a-consumer", {"busy": ">"}, count=1)
    options = {"unix_socket": unix_socket, "stream_key": "events", "password": SECRET, "starting": "earliest"}
    describe(spark, options)
    capped = {**options, "max_entries_per_trigger": "5", "commit_group": "lag"}
    if not HAS_LIMITS:
        capped["available_now"] = "true"
    stream(spark, capped, f"{folder}/checkpoint/lag")
    for number in range(11, 21):
        client.xadd("events", {"payload": "x"}, id=f"{number}-0")
    client.xtrim("events", maxlen=3, approximate=False)
    url = {"url": f"redis://:{SECRET}@127.0.0.1", "stream_key": "events"}
    fail("a password in the URL", spark, url, f"{folder}/checkpoint/url")
    fail("a wrong password", spark, {**options, "password": f"{SECRET}-not"}, f"{folder}/checkpoint/wrong")
    fail("an unknown option", spark, {**options, "startin": "x"}, f"{folder}/checkpoint/unknown")
    nowhere = {**options, "unix_socket": f"{folder}/nowhere.sock", "connect_timeout": "1"}
    fail("an unreachable server", spark, nowhere, f"{folder}/checkpoint/nowhere")
    fail("entries that were trimmed", spark, options, f"{folder}/checkpoint/lag")
    busy = {**options, "stream_key": "busy", "commit_group": "busy"}
    fail("a group with consumers", spark, busy, f"{folder}/checkpoint/busy")
    spark.stop()


def describe(spark: SparkSession, options: dict[str, str]) -> None:
    """Print what SQL and EXPLAIN show of a read."""
    frame = spark.read.format("redis_streams").schema("payload string").options(**options).load()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW entries (payload STRING) USING redis_streams OPTIONS ({given})")
    for statement in ("DESCRIBE EXTENDED entries", "SHOW CREATE TABLE entries", "SELECT * FROM entries"):
        try:
            spark.sql(statement).show(truncate=False)
        except PySparkException as error:
            print(error)


def stream(spark: SparkSession, options: dict[str, Any], checkpoint: str) -> None:
    """Run a query until nothing is left, and print its progress and plan."""
    entries = spark.readStream.format("redis_streams").options(**options).load()
    sink = entries.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress, query.status)


def fail(what: str, spark: SparkSession, options: dict[str, Any], checkpoint: str) -> None:
    """Print the error of a query that must fail, under a heading."""
    print(f"\n=== {what}")
    try:
        stream(spark, options, checkpoint)
    except PySparkException as error:
        print(error)
    print("\n=== ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
