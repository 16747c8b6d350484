"""`headrace.spark.write` in real Spark: one action, and its summary."""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace import ConfigError, DeliveryError, Endpoint, RetryPolicy, SchemaError
from headrace.spark import write
from headrace.testing import LocalServer
from support.datasource import connections, messages
from support.patience import NEVER, PATIENCE
from support.spark import WORKER_PASSWORD, worker_password

Connect = Callable[..., redis.Redis]
SECRET = "canary-hunter2"


def mixed(spark: SparkSession, client: redis.Redis) -> DataFrame:
    """A hundred rows in two partitions: five have no payload, and one has a key that is no stream."""
    client.set("text", "not a stream")
    return messages(spark, 100).selectExpr(
        "message_id",
        "if(message_id % 20 = 7, NULL, payload) AS payload",
        "if(message_id = 60, 'text', NULL) AS stream_key",
    )


def payloads(client: redis.Redis, key: str = "events") -> list[bytes]:
    entries: Any = client.xrange(key)
    return [fields[b"payload"] for _, fields in entries]


# --- the summary ------------------------------------------------------------------------------------------------------


def test_every_row_is_written_once_and_counted(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    summary = write(messages(spark, 25_000), endpoint)
    assert (summary.rows, summary.delivered, summary.failed, summary.failed_by_code) == (25_000, 25_000, 0, {})
    assert (summary.deduplicated, summary.possible_duplicates, summary.retries, summary.partitions) == (0, 0, 0, 2)
    assert (summary.first_failures, summary.failures) == ((), None)
    assert 25_000 * 50 < summary.bytes_sent < 25_000 * 200
    assert summary.rows_per_second == pytest.approx(25_000 / summary.seconds)
    written = payloads(client)
    assert sorted(written) == sorted(b"p%d" % n for n in range(25_000))
    for partition in (range(12_500), range(12_500, 25_000)):
        in_order = {b"p%d" % n: None for n in partition}
        assert [payload for payload in written if payload in in_order] == list(in_order)
    assert "25,000 rows delivered, 0 failed, " in str(summary)
    assert str(summary) in repr(summary)


def test_all_fields_are_taken_from_a_map(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "map(concat('f', id % 7), binary(string(id)), 'other', X'00') AS fields"
    )
    first, again = (write(frame, endpoint, fields_from="fields", txn_app_id="copy", txn_version=1) for _ in range(2))
    assert (first.delivered, first.deduplicated) == (1_000, 0)
    assert (again.delivered, again.deduplicated) == (1_000, 1_000)
    entries: Any = client.xrange("events")
    found = sorted((list(fields.items()) for _, fields in entries), key=lambda fields: int(fields[0][1]))
    assert found == [[(b"f%d" % (n % 7), b"%d" % n), (b"other", b"\x00")] for n in range(1_000)]


def test_failures_raise_after_all_other_rows_are_written(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="headrace"), pytest.raises(DeliveryError) as caught:
        write(mixed(spark, client), endpoint)
    error = caught.value
    assert (error.delivered, error.failed, error.failed_by_code) == (94, 6, {"NULL_PAYLOAD": 5, "WRONGTYPE": 1})
    assert str(error).startswith(
        f"6 of 100 rows were not written to {endpoint} (NULL_PAYLOAD 5, WRONGTYPE 1)\n"
        "  row 7 of partition 0, message ID '7': NULL_PAYLOAD (permanent, written: no)"
    )
    assert [failure.message_id for failure in error.failures] == ["7", "27", "47", "60", "67", "87"]
    assert pickle.loads(pickle.dumps(error)).failures == error.failures
    assert client.xlen("events") == 94
    record, *others = [record for record in caplog.records if record.name == "headrace.spark"]
    assert record.levelno == logging.INFO  # the exception replaces the warning
    assert "94 rows delivered, 6 failed (NULL_PAYLOAD 5, WRONGTYPE 1)" in record.getMessage()
    assert not others


def test_failures_are_returned_on_request(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    summary = write(mixed(spark, client), endpoint, failures=True)
    assert (summary.rows, summary.delivered, summary.failed) == (100, 94, 6)
    assert summary.failures is not None
    assert summary.failures.schema.simpleString() == (
        "struct<partition:int,ordinal:bigint,message_id:string,kind:string,code:string,message:string,written:string>"
    )
    rows = [tuple(row[name] for name in row.__fields__ if name != "message") for row in summary.failures.collect()]
    assert rows == [
        *[(0, n, str(n), "permanent", "NULL_PAYLOAD", "no") for n in (7, 27, 47)],
        (1, 10, "60", "permanent", "WRONGTYPE", "no"),
        *[(1, n - 50, str(n), "permanent", "NULL_PAYLOAD", "no") for n in (67, 87)],
    ]
    assert summary.failures.where("code = 'WRONGTYPE'").orderBy("message_id").count() == 1
    assert client.xlen("events") == 94  # none of this wrote anything


def test_failures_are_limited_and_their_counts_are_complete(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint
) -> None:
    nulls = spark.range(0, 75_000, 1, 3).selectExpr("cast(NULL AS string) AS payload")
    summary = write(nulls, endpoint, failures=True, failures_per_partition=7)
    assert summary.failed_by_code == {"NULL_PAYLOAD": 75_000}
    assert summary.failures is not None
    rows = [(row.partition, row.ordinal, row.message_id) for row in summary.failures.collect()]
    assert rows == [(partition, n, str(n)) for partition in range(3) for n in range(7)]
    assert len(summary.first_failures) == 10
    summary = write(nulls, endpoint, failures=True, failures_per_partition=0)
    assert summary.failures is not None
    assert (summary.failed, summary.failures.count()) == (75_000, 0)


def test_no_rows_and_empty_partitions(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    before = connections(client)
    summary = write(messages(spark, 0), endpoint, failures=True)
    assert (summary.rows, summary.rows_per_second) == (0, 0)
    assert summary.failures is not None
    assert summary.failures.collect() == []
    assert connections(client) == before
    summary = write(messages(spark, 3, 8), endpoint)
    assert (summary.delivered, summary.partitions) == (3, 8)


def test_rows_are_written_once_after_a_shuffle(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = (
        messages(spark, 1_000, 4)
        .groupBy((sf.col("message_id") % 10).alias("n"))
        .agg(sf.max("payload").alias("payload"))
    )
    assert write(frame, endpoint, message_id="n").delivered == 10
    assert write(frame.orderBy("n"), endpoint, message_id="n").delivered == 10
    assert client.xlen("events") == 20


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_unused_columns_are_refused(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = messages(spark, 2, 1).withColumn("left", sf.lit(1))
    with pytest.raises(SchemaError, match="'left'"):
        write(frame, endpoint)
    assert write(frame, endpoint, ignore_columns=["left"]).delivered == 2
    assert write(frame, endpoint, json=["payload", "left"]).delivered == 2
    assert write(frame, endpoint, fields=["payload", "left"], ignore_columns="*", ts_field=None).delivered == 2
    assert payloads(client) == [b"p0", b"p1", b'{"payload":"p0","left":1}', b'{"payload":"p1","left":1}', b"p0", b"p1"]


def test_several_rows_share_an_entry(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    assert write(messages(spark, 25), endpoint, rows_per_entry=10).delivered == 25
    assert client.xlen("events") == 4


# --- unavailable servers, tasks that run again ------------------------------------------------------------------------


def test_an_unreachable_server_fails_the_write_after_the_retry_deadline(spark: SparkSession, closed_port: int) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=closed_port, stream_key="events")
    with pytest.raises(DeliveryError, match="30,000 of 30,000 rows were not written") as caught:
        write(messages(spark, 30_000), endpoint, retry=RetryPolicy(deadline=0.2))
    assert caught.value.failed_by_code == {"CONNECT": 30_000}


def restart_after(count: int, server: LocalServer) -> None:
    """Restart a server that is down when this many tasks wait for it; their connections end without a reply."""
    path = Path(server.unix_socket)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE)
        waiting = [listener.accept()[0] for _ in range(count)]
    path.unlink()
    for connection in waiting:
        connection.close()
    server.restart()


def test_rows_are_delivered_after_a_server_restart(
    spark: SparkSession, any_server: LocalServer, client: redis.Redis
) -> None:
    endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key="events", connect_timeout=NEVER)
    write(messages(spark, 10), endpoint)
    any_server.kill()
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart_after, 2, any_server)
        summary = write(messages(spark, 1_000), endpoint)
        restarted.result()
    assert summary.delivered == 1_000
    assert summary.retries >= 1_000
    assert summary.retry_wait_seconds > 0
    assert f"{summary.retry_wait_seconds:.1f} s of retry waits" in str(summary)
    assert {b"p%d" % n for n in range(1_000)} <= set(payloads(client))


def test_a_repeated_write_is_deduplicated(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    first = write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=3)
    assert (first.delivered, first.deduplicated) == (1_000, 0)
    again = write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=3)
    assert (again.delivered, again.deduplicated, again.possible_duplicates) == (1_000, 1_000, 0)
    older = write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=2)
    assert older.deduplicated == 1_000
    assert client.xlen("events") == 1_000
    assert write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=4).deduplicated == 0
    assert client.xlen("events") == 2_000


def test_the_next_call_writes_the_failed_rows(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = mixed(spark, client).selectExpr("message_id", "coalesce(payload, 'none') AS payload", "stream_key")
    first = write(frame, endpoint, failures=True, txn_app_id="job", txn_version=0)
    assert (first.delivered, first.failed_by_code) == (99, {"WRONGTYPE": 1})
    client.delete("text")
    second = write(frame, endpoint, txn_app_id="job", txn_version=0)
    assert (second.delivered, second.deduplicated) == (100, 99)
    assert (client.xlen("events"), payloads(client, "text")) == (99, [b"p60"])


def test_rows_refused_for_memory_are_written_by_the_next_call(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint
) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(DeliveryError) as caught:
        write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=0)
    assert caught.value.failed == 1_000
    assert "OOM" in caught.value.failed_by_code
    client.config_set("maxmemory", 0)
    summary = write(messages(spark, 1_000), endpoint, txn_app_id="job", txn_version=0)
    assert (summary.delivered, summary.deduplicated) == (1_000, 0)
    assert sorted(payloads(client)) == sorted(b"p%d" % n for n in range(1_000))


PROGRAM = """
    import time
    import redis
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from headrace import Endpoint
    from headrace.spark import write

    def once_more(batches):
        # The first tries of partition 1, which alone has rows, end when some of them are written.
        for n, batch in enumerate(batches):
            yield batch
            if n == 2 and TaskContext.get().attemptNumber() < 2:
                deadline = time.monotonic() + 300
                with redis.Redis(unix_socket_path={unix_socket!r}) as client:
                    while not client.xlen("events") and time.monotonic() < deadline:
                        time.sleep(0.01)
                raise RuntimeError("on purpose")

    spark = (
        SparkSession.builder.master("local[2,3]").config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false").config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(0, 2_000, 1, 2).where("id >= 1000").selectExpr("concat(id, repeat('.', 10000)) AS payload")
    frame = frame.mapInArrow(once_more, frame.schema)
    summary = write(frame, Endpoint(unix_socket={unix_socket!r}, stream_key="events"))
    print(summary.delivered, summary.possible_duplicates)
    spark.stop()
"""


@pytest.mark.thorough
def test_rows_of_a_task_that_ran_again_may_be_duplicated(
    any_server: LocalServer, client: redis.Redis, tmp_path: Path
) -> None:
    # Spark retries a task only under `local[n,tries]`, unlike the Spark of the other tests.
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(unix_socket=str(any_server.unix_socket))))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1000", "2000"]), done.stderr
    written = [int(payload.rstrip(b".")) for payload in payloads(client)]
    assert set(written) == set(range(1_000, 2_000))
    assert len(written) > 1_000


# --- mistakes and secrets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"txn_app_id": "job"}, ConfigError, "txn_app_id needs txn_version"),
        ({"txn_version": 1}, ConfigError, "txn_version needs txn_app_id"),
        ({"txn_app_id": "", "txn_version": 1}, ConfigError, "txn_app_id must be"),
        ({"txn_app_id": "job", "txn_version": -1}, ConfigError, "txn_version must be an integer of at least 0, got -1"),
        ({"txn_app_id": "job", "txn_version": "1"}, ConfigError, "txn_version must be"),
        ({"txn_app_id": "job", "txn_version": 1, "exactly_once": "off"}, ConfigError, "are mutually exclusive"),
        ({"exactly_once": "script"}, ConfigError, "exactly_once needs txn_app_id"),
        (
            {"failures_per_partition": -1},
            ConfigError,
            "failures_per_partition must be an integer of at least 0, got -1",
        ),
        ({"window_max_entrys": 5}, ConfigError, "window_max_entries"),
        ({"retry": 5}, ConfigError, "retry must be a RetryPolicy"),
        ({"payload": "pay_load"}, ConfigError, "'pay_load'"),
        ({"fields": ["message_id", "nope"]}, ConfigError, "'nope'"),
        ({"payload": "message_id", "ignore_columns": "*"}, SchemaError, "message_id"),
    ],
)
def test_invalid_options_are_reported_before_any_connection_is_made(
    spark: SparkSession,
    client: redis.Redis,
    endpoint: Endpoint,
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    before = connections(client)
    with pytest.raises(error, match=text):
        write(messages(spark, 10), endpoint, **options)
    assert connections(client) == before


@pytest.mark.parametrize("password", [worker_password, lambda: WORKER_PASSWORD], ids=["by its name", "by its code"])
def test_a_password_callable_runs_in_the_worker(
    spark: SparkSession, start_server: Callable[..., LocalServer], password: Callable[[], str]
) -> None:
    """Spark pickles with cloudpickle, which takes a lambda too."""
    server = start_server(config={"requirepass": WORKER_PASSWORD})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="events", password=password)
    assert write(messages(spark, 10), endpoint).delivered == 10


def test_summaries_logs_and_errors_show_no_password(
    spark: SparkSession,
    start_server: Callable[..., LocalServer],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = start_server(config={"requirepass": "another"})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="events", password=SECRET)
    with caplog.at_level("DEBUG"):
        summary = write(messages(spark, 10), endpoint, failures=True, progress=True)
        with pytest.raises(DeliveryError) as caught:
            write(messages(spark, 10), endpoint)
    assert summary.failed_by_code == {"WRONGPASS": 10}
    assert summary.failures is not None
    texts = [repr(summary), str(summary.failures.collect()), caplog.text, str(caught.value), *capfd.readouterr()]
    assert "WRONGPASS" in caplog.text
    for text in texts:
        assert SECRET not in text
