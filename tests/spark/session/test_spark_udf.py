"""`headrace.spark.xadd_udf` in real Spark: an outcome per row, as a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from headrace import ConfigError, Endpoint
from headrace.spark import column, xadd_udf
from headrace.testing import LocalServer
from support.datasource import assert_workers_keep_connections

Connect = Callable[..., redis.Redis]
Make = Callable[..., Any]
SECRET = "canary-hunter2"


@pytest.fixture(params=["arrow", "pandas"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make the function of Spark 4.1 and newer, and that of Spark 4.0."""
    if request.param == "arrow":
        return xadd_udf
    return lambda endpoint, **options: column._with_pandas(endpoint, options)


def messages(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Rows with an `id` that counts from 0, and the payload `p<id>`."""
    return spark.range(0, rows, 1, partitions).select("id", sf.concat(sf.lit("p"), "id").alias("payload"))


def stored(client: redis.Redis, key: str = "events") -> dict[str, bytes]:
    """The payloads in the stream, by entry ID."""
    entries: Any = client.xrange(key)
    return {entry_id.decode(): fields[b"payload"] for entry_id, fields in entries}


def test_xadd_udf_is_an_arrow_udf_where_spark_supports_them(endpoint: Endpoint, spark: SparkSession) -> None:
    function: Any = xadd_udf(endpoint)
    of_pandas_in_4_0 = PythonEvalType.SQL_SCALAR_PANDAS_UDF
    assert function.evalType == getattr(PythonEvalType, "SQL_SCALAR_ARROW_UDF", of_pandas_in_4_0)
    assert not function.deterministic
    of_pandas: Any = column._with_pandas(endpoint, {})
    assert of_pandas.evalType == PythonEvalType.SQL_SCALAR_PANDAS_UDF
    assert not of_pandas.deterministic


def test_each_row_has_one_outcome_across_record_batches(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make
) -> None:
    frame = messages(spark, 25_000).withColumn("outcome", make(endpoint)("payload"))
    assert frame.schema["outcome"].dataType == StructType.fromDDL(column.RETURN_TYPE)
    rows = frame.select("id", "outcome.*").collect()  # five fields of one call
    assert [row.id for row in rows] == list(range(25_000))
    entries = stored(client)
    assert [entries.pop(row.entry_id) for row in rows] == [b"p%d" % n for n in range(25_000)]
    assert not entries
    assert {row[2:] for row in rows} == {(None, None, None, None)}


def test_rows_that_cannot_be_written_fail_alone(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make
) -> None:
    client.set("text", "not a stream")
    frame = spark.createDataFrame(
        [(1, "one", None), (None, None, None), (3, "three", "text"), (4, "four", "other")],
        "id long, body string, key string",
    ).coalesce(1)
    outcome = make(endpoint)(sf.col("body"), message_id=sf.col("id"), stream_key=sf.col("key"))
    rows = frame.select(outcome.alias("outcome")).select("outcome.*").collect()
    assert [(row.kind, row.code, row.written) for row in rows] == [
        (None, None, None),
        ("permanent", "NULL_PAYLOAD", "no"),
        ("permanent", "WRONGTYPE", "no"),
        (None, None, None),
    ]
    assert all((row.entry_id is None) == (row.message is not None) for row in rows)
    assert stored(client) == {rows[0].entry_id: b"one"}
    assert stored(client, "other") == {rows[3].entry_id: b"four"}


def test_rows_of_nulls_fail_with_null_payload(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make
) -> None:
    frame = spark.createDataFrame([(None, None, None)] * 3, "id long, body string, key string")
    rows = frame.select(make(endpoint)("body", "id", "key").alias("outcome")).select("outcome.*").collect()
    assert [row.code for row in rows] == ["NULL_PAYLOAD"] * 3


def test_binary_payloads(spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make) -> None:
    frame = spark.createDataFrame([(bytearray(b"\x00\xff\r\n"),), (None,)], "body binary").coalesce(1)
    rows = frame.select(make(endpoint)("body").alias("outcome")).collect()
    assert [row.outcome.code for row in rows] == [None, "NULL_PAYLOAD"]
    assert stored(client) == {rows[0].outcome.entry_id: b"\x00\xff\r\n"}


def test_large_arrow_types(spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        rows = messages(spark, 3, 1).select(make(endpoint)("payload", "id").alias("outcome")).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert stored(client) == {row.outcome.entry_id: b"p%d" % n for n, row in enumerate(rows)}


def test_in_sql(spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make) -> None:
    spark.udf.register("xadd", make(endpoint))
    messages(spark, 4, 1).createOrReplaceTempView("orders")
    rows = spark.sql("SELECT id, xadd(payload, id, 'others') AS outcome FROM orders WHERE id > 1").collect()
    assert stored(client, "others") == {rows[0].outcome.entry_id: b"p2", rows[1].outcome.entry_id: b"p3"}


def test_dispatcher_options_are_applied(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    messages(spark, 1, 1).select(xadd_udf(endpoint, payload_field="body", ts_field=None)("payload")).collect()
    entries: Any = client.xrange("events")
    assert [fields for _, fields in entries] == [{b"body": b"p0"}]


# --- query plans ------------------------------------------------------------------------------------------------------


def test_a_filter_on_the_outcome_writes_once(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make
) -> None:
    frame = messages(spark, 1_000).withColumn("outcome", make(endpoint)("payload"))
    assert len(frame.where("outcome.entry_id IS NOT NULL").select("outcome.entry_id").collect()) == 1_000
    assert client.xlen("events") == 1_000  # one that Spark takes for deterministic is run twice


@pytest.mark.thorough
def test_the_documented_pitfalls_exist(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    def written(act: Callable[[DataFrame], object]) -> int:
        client.delete("events")
        act(messages(spark, 1_000).withColumn("outcome", xadd_udf(endpoint)("payload")))
        return int(client.xlen("events"))

    assert written(lambda frame: frame.count()) == 0
    assert written(lambda frame: frame.select("id").collect()) == 0
    assert written(lambda frame: frame.orderBy("outcome.entry_id").collect()) == 2_000
    assert 5 <= written(lambda frame: frame.limit(5).collect()) < 1_000

    def cached(frame: DataFrame) -> None:
        frame.cache()
        frame.orderBy("outcome.entry_id").collect()
        frame.where("outcome.code IS NULL").collect()
        frame.unpersist()

    assert written(cached) == 1_000


@pytest.mark.thorough
def test_a_worker_keeps_its_connection(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make
) -> None:
    assert_workers_keep_connections(client, lambda: messages(spark, 1_000).select(make(endpoint)("payload")).collect())
    assert client.xlen("events") == 15_000


# --- mistakes and secrets ---------------------------------------------------------------------------------------------


def test_an_invalid_option_fails_on_the_driver(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="window_max_entries"):
        xadd_udf(endpoint, window_max_entrys=5)  # type: ignore[call-arg]


def test_a_wrong_type_fails_the_job(spark: SparkSession, client: redis.Redis, endpoint: Endpoint, make: Make) -> None:
    with pytest.raises(PythonException, match=r"SchemaError.*payload"):
        messages(spark, 10).select(make(endpoint)("id")).collect()
    assert client.dbsize() == 0


def test_plans_outcomes_and_exceptions_show_no_password(
    spark: SparkSession, start_server: Callable[..., LocalServer], capsys: pytest.CaptureFixture[str], make: Make
) -> None:
    server = start_server(config={"requirepass": "another"})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="events", password=SECRET)
    function = make(endpoint)
    frame = messages(spark, 2).select("id", function("payload").alias("outcome"))
    for mode in ("extended", "formatted"):
        frame.explain(mode)
    rows = frame.collect()
    assert {row.outcome.code for row in rows} == {"WRONGPASS"}
    spark.conf.set("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")  # Spark 4.3
    try:
        with pytest.raises(PythonException) as caught:
            messages(spark, 2).select(function("id")).collect()
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled")
    texts = [capsys.readouterr().out, str(rows), str(frame), str(caught.value), repr(function)]
    assert "SchemaError" in texts[3]
    for text in texts:
        assert SECRET not in text
