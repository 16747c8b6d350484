"""`headrace.spark.xadd` in real Spark: `mapInArrow`, Python workers, their connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

import headrace
from headrace import ConfigError, Endpoint
from headrace.spark import xadd
from headrace.testing import LocalServer
from support.datasource import assert_workers_keep_connections, connections
from support.marks import thorough
from support.spark import WORKER_PASSWORD, WORKER_VARIABLE

Connect = Callable[..., redis.Redis]
SECRET = "canary-hunter2"


def messages(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Rows with an `id` that counts from 0, and the payload `p<id>`."""
    return spark.range(0, rows, 1, partitions).select("id", sf.concat(sf.lit("p"), "id").alias("payload"))


def write(frame: DataFrame, endpoint: Endpoint, **options: Any) -> list[Row]:
    return frame.mapInArrow(xadd(endpoint, **options), xadd.schema).collect()


def stored(client: redis.Redis, key: str = "events") -> dict[str, dict[bytes, bytes]]:
    """The entries of the stream, by entry ID."""
    entries: Any = client.xrange(key)
    return {entry_id.decode(): fields for entry_id, fields in entries}


def payloads(client: redis.Redis, key: str = "events") -> list[bytes]:
    return [fields[b"payload"] for fields in stored(client, key).values()]


def position(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_each_row_has_one_outcome_in_order_across_record_batches(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint
) -> None:
    rows = write(messages(spark, 25_000), endpoint, message_id="id")  # 10,000 and 2,500 rows in each partition
    assert [row.message_id for row in rows] == [str(n) for n in range(25_000)]
    entries = stored(client)
    assert [entries.pop(row.entry_id)[b"payload"] for row in rows] == [b"p%d" % n for n in range(25_000)]
    assert not entries
    for partition in (rows[:12_500], rows[12_500:]):
        order = [position(row.entry_id) for row in partition]
        assert order == sorted(order)
    assert {row[2:] for row in rows} == {(None, None, None, None)}


def test_outcomes_have_the_declared_schema(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    outcomes = messages(spark, 3, 1).mapInArrow(xadd(endpoint), xadd.schema)
    assert outcomes.schema == StructType.fromDDL(xadd.schema)
    assert outcomes.columns == ["message_id", "entry_id", "kind", "code", "message", "written"]
    rows = outcomes.collect()
    # Spark matches columns by position: a wrong order would show here.
    assert [row.entry_id for row in rows] == list(stored(client))
    assert [row.message_id for row in rows] == ["0", "1", "2"]  # without message_id=, the ordinal


def test_rows_that_cannot_be_written_fail_alone(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    client.set("text", "not a stream")
    frame = spark.createDataFrame(
        [("a", "one", None), ("b", None, None), ("c", "three", "text"), ("d", "four", "other"), ("e", "five", "")],
        "id string, payload string, key string",
    ).coalesce(1)
    rows = write(frame, endpoint, message_id="id", stream_key="key")
    assert [row.message_id for row in rows] == ["a", "b", "c", "d", "e"]
    assert [(row.kind, row.code, row.written) for row in rows] == [
        (None, None, None),
        ("permanent", "NULL_PAYLOAD", "no"),
        ("permanent", "WRONGTYPE", "no"),
        (None, None, None),
        ("permanent", "BAD_STREAM_KEY", "no"),
    ]
    assert all((row.entry_id is None) == (row.code is not None) == (row.message is not None) for row in rows)
    assert payloads(client) == [b"one"]
    assert payloads(client, "other") == [b"four"]


def test_only_failed_omits_delivered_rows(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = spark.range(0, 25_000, 1, 2).selectExpr("id", "if(id % 10000 = 7, NULL, string(id)) AS payload")
    rows = write(frame, endpoint, message_id="id", only_failed=True)
    assert [(row.message_id, row.code) for row in rows] == [(n, "NULL_PAYLOAD") for n in ("7", "10007", "20007")]
    assert client.xlen("events") == 25_000 - 3


def test_several_rows_share_an_entry(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    rows = write(messages(spark, 25), endpoint, message_id="id", rows_per_entry=10)
    assert [row.message_id for row in rows] == [str(n) for n in range(25)]
    entries = {entry_id: headrace.unpack(fields) for entry_id, fields in stored(client).items()}
    assert sorted(map(len, entries.values())) == [2, 3, 10, 10]
    of_entries = {payload: entry_id for entry_id, payloads in entries.items() for payload in payloads}
    assert {b"p%d" % n: row.entry_id for n, row in enumerate(rows)} == of_entries

    client.delete("events")
    rows = write(messages(spark, 25), endpoint, message_id="id", arrow_ipc=True, codec="zstd")
    tables = [pa.table(headrace.unpack_arrow(fields)) for fields in stored(client).values()]
    assert sorted(table.num_rows for table in tables) == [12, 13]
    assert len({row.entry_id for row in rows}) == 2
    ids = pa.concat_tables(tables)["id"].to_pylist()
    assert sorted(ids) == list(range(25))


def test_an_unreachable_server_fails_the_rows_but_not_the_job(spark: SparkSession, closed_port: int) -> None:
    rows = write(messages(spark, 30_000), Endpoint(host="127.0.0.1", port=closed_port, stream_key="events"))
    assert Counter((row.kind, row.code, row.written) for row in rows) == {("retryable", "CONNECT", "no"): 30_000}


def test_observe_counts_outcomes_in_the_same_pass(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    observation = Observation("outcomes")
    frame = messages(spark, 1_000).withColumn("payload", sf.expr("if(id % 10 = 0, null, payload)"))
    outcomes = frame.mapInArrow(xadd(endpoint), xadd.schema)
    observed = outcomes.observe(observation, sf.count("*").alias("rows"), sf.count("code").alias("failed"))
    observed.write.format("noop").mode("overwrite").save()
    assert observation.get == {"rows": 1_000, "failed": 100}
    assert client.xlen("events") == 900


def test_group_by_writes_once(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    # `show` has a limit, but after the shuffle of the counts.
    messages(spark, 1_000, 4).mapInArrow(xadd(endpoint), xadd.schema).groupBy("kind", "code").count().show()
    assert "|NULL|NULL| 1000|" in capsys.readouterr().out
    assert client.xlen("events") == 1_000


# --- layouts ----------------------------------------------------------------------------------------------------------

EVERY_TYPE = """
    select id, id % 2 = 0 as bool,
        cast(id as byte) as byte, cast(id as short) as short, cast(id as int) as int, id * 3000000000 as long,
        cast(id / 3 as float) as float, id / 7 as double, 1e300 as huge, 1e-7 as tiny, 100.0d as whole,
        if(id = 0, double('NaN'), double('-Infinity')) as odd,
        cast(id / 8 as decimal(10, 3)) as decimal, cast(-id as decimal(38, 0)) as big,
        concat('ü"\\\\/\n\u0001', id) as text, cast(repeat('b', cast(id as int)) as binary) as bytes,
        date '2026-04-14' + cast(id as int) as day, timestamp_ntz '2026-04-14 12:00:00.5' as local,
        timestamp '2026-04-14 12:00:00' as second, timestamp '2026-04-14 12:00:00.120' as milli,
        timestamp '1969-07-20 20:17:40.123456' as micro,
        named_struct('a', id, 'b', cast(null as string)) as struct, array(id, null, 2) as list,
        map('k', id, 'n', null) as map, array(named_struct('x', array('y'))) as nested,
        if(id = 1, null, 'there') as sometimes, cast(null as int) as never
    from range(0, 4, 1, 2)
"""


@pytest.mark.parametrize("zone", ["America/St_Johns", *thorough("UTC", "Europe/Berlin", "+05:30")])
def test_json_matches_to_json(spark: SparkSession, client: redis.Redis, endpoint: Endpoint, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.sql(EVERY_TYPE)
        expected = [row.json for row in frame.select(sf.to_json(sf.struct("*")).alias("json")).collect()]
        outcomes = write(frame, endpoint, json=True)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(expected) == 4
    assert '"text":"ü' in expected[0]
    entries = stored(client)
    assert [entries[row.entry_id][b"payload"].decode() for row in outcomes] == expected


def test_json_contains_only_the_named_columns(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    write(messages(spark, 2, 1), endpoint, json=["payload"], message_id="id")
    assert payloads(client) == [b'{"payload":"p0"}', b'{"payload":"p1"}']


def test_each_named_column_becomes_a_field(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = spark.createDataFrame(
        [(7, "seven", True, 0.5), (8, None, None, None), (None, None, None, None)],
        "n long, text string, flag boolean, x double",
    ).coalesce(1)
    rows = write(frame, endpoint, fields=["n", "text", "flag", "x"], ts_field=None)
    assert [row.code for row in rows] == [None, None, "EMPTY"]
    assert list(stored(client).values()) == [
        {b"n": b"7", b"text": b"seven", b"flag": b"true", b"x": b"0.5"},
        {b"n": b"8"},
    ]


def test_all_fields_are_taken_from_a_column(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = spark.createDataFrame(
        [({"a": "1"}, [("a", b"1"), ("a", b"\xff")]), ({}, []), (None, None), ({"b": "2", "a": None}, [("b", None)])],
        "m map<string, string>, items array<struct<name: string, value: binary>>",
    ).coalesce(1)
    rows = write(frame, endpoint, fields_from="m")
    assert [row.code for row in rows] == [None, "EMPTY", "EMPTY", None]
    assert list(stored(client).values()) == [{b"a": b"1"}, {b"b": b"2"}]
    rows = write(frame, endpoint, fields_from="items", ts_field="at")
    assert [row.code for row in rows] == [None, "EMPTY", "EMPTY", "EMPTY"]
    *_, last = stored(client).values()
    assert list(last) == [b"a", b"at"]
    assert last[b"a"] == b"\xff", "the last of two"


def test_each_row_can_set_its_stream_key_and_entry_id(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint
) -> None:
    frame = messages(spark, 6, 1).selectExpr(
        "payload",
        "case id % 3 when 0 then 'a' when 1 then 'b' end as key",
        "case id when 0 then '5-1' when 1 then 'wrong' end as entry_id",
    )
    rows = write(frame, endpoint, stream_key="key", entry_id="entry_id")
    assert [row.code for row in rows] == [None, "BAD_ENTRY_ID", None, None, None, None]
    assert rows[0].entry_id == "5-1"
    assert (payloads(client, "a"), payloads(client, "b"), payloads(client)) == ([b"p0", b"p3"], [b"p4"], [b"p2", b"p5"])
    assert [list(stored(client, key)) for key in "ab"] == [["5-1", rows[3].entry_id], [rows[4].entry_id]]


def test_binary_payloads(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    frame = spark.createDataFrame([(bytearray(b"\x00\xff\r\n"),)], "body binary")
    assert write(frame, endpoint, payload="body")[0].code is None
    assert payloads(client) == [b"\x00\xff\r\n"]


def test_large_arrow_types(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        rows = write(messages(spark, 3, 1), endpoint, message_id="payload")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert [row.message_id for row in rows] == ["p0", "p1", "p2"]
    assert payloads(client) == [b"p0", b"p1", b"p2"]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"payload": "pay_load"}, 'no column "pay_load"'),
        ({"payload": "list"}, "list"),
        *thorough(
            ({"message_id": "nope"}, 'no column "nope"'),
            ({"stream_key": "nope"}, 'no column "nope"'),
            ({"fields": ["id", "nope"]}, 'no column "nope"'),
        ),
    ],
)
def test_an_invalid_column_fails_the_job_before_anything_is_sent(
    spark: SparkSession, client: redis.Redis, endpoint: Endpoint, options: dict[str, Any], text: str
) -> None:
    frame = messages(spark, 25_000).withColumn("list", sf.array("id"))
    with pytest.raises(PythonException, match=f"SchemaError.*{text}"):
        write(frame, endpoint, **options)
    assert client.dbsize() == 0


def test_an_invalid_option_of_the_dispatcher_fails_on_the_driver(client: redis.Redis, endpoint: Endpoint) -> None:
    before = connections(client)
    with pytest.raises(ConfigError, match="window_max_entries"):
        xadd(endpoint, window_max_entrys=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="classify"):
        xadd(endpoint, classify="lax")  # type: ignore[arg-type]
    assert connections(client) == before


# --- partitions -------------------------------------------------------------------------------------------------------


def test_empty_partitions(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    rows = write(messages(spark, 3, 8), endpoint)
    assert [row.message_id for row in rows] == ["0", "0", "0"]  # ordinals of each partition
    assert sorted(payloads(client)) == [b"p0", b"p1", b"p2"]


def test_no_connection_is_made_without_rows(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    before = connections(client)
    assert write(messages(spark, 0), endpoint) == []
    assert connections(client) == before


def test_a_downstream_limit_ends_the_write_early(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    outcomes = messages(spark, 500_000, 1).mapInArrow(xadd(endpoint), xadd.schema)
    assert len(outcomes.limit(5).collect()) == 5
    written = client.xlen("events")
    assert 5 <= written < 500_000
    # The worker, or its successor, stays usable.
    assert {row.code for row in write(messages(spark, 1_000), endpoint)} == {None}


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_worker_keeps_its_connection(spark: SparkSession, client: redis.Redis, endpoint: Endpoint) -> None:
    def save() -> None:
        assert {row.code for row in write(messages(spark, 100), endpoint)} == {None}

    assert_workers_keep_connections(client, save)
    assert client.xlen("events") == 1_500


def test_a_connection_that_was_lost_between_two_jobs_is_replaced(
    spark: SparkSession, any_server: LocalServer, client: redis.Redis, endpoint: Endpoint
) -> None:
    for _ in range(3):
        assert {row.code for row in write(messages(spark, 1_000), endpoint)} == {None}
        assert client.client_kill_filter(_type="normal", skipme=True)
    assert client.xlen("events") == 3_000
    any_server.restart()
    assert {row.code for row in write(messages(spark, 1_000), endpoint)} == {None}


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_only_the_workers_need_to_know_the_password(
    spark: SparkSession, start_server: Callable[..., LocalServer], connect: Connect
) -> None:
    server = start_server(config={"requirepass": WORKER_PASSWORD})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="events", password_env=WORKER_VARIABLE)
    assert {row.code for row in write(messages(spark, 100), endpoint)} == {None}
    assert connect(server, password=WORKER_PASSWORD).xlen("events") == 100


def test_plans_outcomes_and_exceptions_show_no_password(
    spark: SparkSession,
    start_server: Callable[..., LocalServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start_server(config={"requirepass": "another"})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="events", password=SECRET)
    outcomes = messages(spark, 2).mapInArrow(xadd(endpoint), xadd.schema)
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        outcomes.explain(mode)
    rows = outcomes.collect()
    assert {(row.kind, row.code) for row in rows} == {("permanent", "WRONGPASS")}
    spark.conf.set("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")  # Spark 4.3
    try:
        with pytest.raises(PythonException) as caught:
            write(messages(spark, 2), endpoint, payload="nope")
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled")
    plan = outcomes._jdf.queryExecution().toString()
    texts = [capsys.readouterr().out, str(rows), str(outcomes), plan, str(caught.value), repr(xadd(endpoint))]
    assert "MapInArrow" in plan
    assert "SchemaError" in texts[-2]
    for text in texts:
        assert SECRET not in text
