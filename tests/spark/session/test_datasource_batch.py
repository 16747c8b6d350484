"""`df.write.format("redis_streams")` in real Spark, and from SQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import headrace
from headrace.spark import register
from headrace.testing import LocalServer
from support.datasource import (
    assert_workers_keep_connections,
    connections,
    messages,
    payloads,
    save,
    stored,
    to,
    writer,
)

Connect = Callable[..., redis.Redis]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_every_row_is_in_the_stream(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    frame = messages(spark, 25_000)
    save(frame, any_server)
    assert sorted(payloads(client)) == sorted(row.payload for row in frame.collect())
    assert {tuple(fields) for fields in stored(client).values()} == {("payload", "ts")}
    for partition in (range(12_500), range(12_500, 25_000)):
        mine = {f"p{n}" for n in partition}
        assert [p for p in payloads(client) if p in mine] == [f"p{n}" for n in partition]


def test_each_action_writes_once(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    save(messages(spark, 1_000).orderBy(sf.desc("message_id")), any_server)
    assert client.xlen("events") == 1_000
    save(messages(spark, 1_000).limit(10), any_server)
    assert client.xlen("events") == 1_010


def test_columns_of_every_type_are_written_as_json(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    frame = spark.sql("""
        select id, cast(id / 8 as decimal(10, 3)) as price, timestamp '2026-04-14 12:00:00.120' as at, 1.0e10d as big,
            named_struct('a', id, 'b', cast(null as string)) as struct, array(id, null) as list, map('k', id) as map,
            if(id = 1, null, 'ü"') as text, cast('bytes' as binary) as bytes, date '2026-04-14' as day
        from range(3)
    """)
    save(frame, any_server)
    expected = [row.json for row in frame.select(sf.to_json(sf.struct("*")).alias("json")).collect()]
    assert len(expected) == 3
    assert sorted(payloads(client)) == sorted(expected)


def test_column_names_determine_their_roles(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    frame = spark.createDataFrame(
        [("a", "one", None, "5-1"), ("b", "two", "other", "6-1"), ("c", "three", "other", "7-1")],
        "message_id string, body string, stream_key string, entry_id string",
    ).coalesce(1)
    save(frame, any_server, entry_id="entry_id")
    assert [fields["payload"] for fields in stored(client).values()] == [b"one"]
    assert list(stored(client)) == ["5-1"]
    assert [(entry_id, fields["payload"]) for entry_id, fields in stored(client, "other").items()] == [
        ("6-1", b"two"),
        ("7-1", b"three"),
    ]


def test_each_named_column_becomes_a_field(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    frame = spark.createDataFrame([(7, "seven", True, 1)], "n long, text string, flag boolean, other int")
    save(frame, any_server, fields="flag, n,text", ignore_columns="other", ts_field="")
    assert list(stored(client).values()) == [{"flag": b"true", "n": b"7", "text": b"seven"}]


@pytest.mark.parametrize(
    ("exactly_once", "options"), [("off", {}), ("script", {"txn_app_id": "copy", "txn_version": 1})]
)
def test_all_fields_are_taken_from_a_map(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer, exactly_once: str, options: dict[str, Any]
) -> None:
    rows = [("1-1", {"a": b"\xff\x00", "b": b""}), ("2-1", {"ä": b"\r\n"}), ("3-1", {"a": b"2", "c": None})]
    frame = spark.createDataFrame(rows, "entry_id string, fields map<string, binary>").coalesce(1)
    save(frame, any_server, fields_from="fields", entry_id="entry_id", exactly_once=exactly_once, **options)
    assert stored(client) == {"1-1": {"a": b"\xff\x00", "b": b""}, "2-1": {"ä": b"\r\n"}, "3-1": {"a": b"2"}}


def test_a_row_without_fields_becomes_a_dead_letter(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    frame = spark.createDataFrame([({"a": "1"},), (None,), ({},)], "m map<string, string>").coalesce(1)
    save(frame, any_server, fields_from="m", on_failure="dead_letter", dead_letter_key="dead")
    assert list(stored(client).values()) == [{"a": b"1"}]
    letters = list(stored(client, "dead").values())
    assert [letter["code"] for letter in letters] == [b"EMPTY", b"EMPTY"]
    [row] = pa.ipc.open_stream(letters[1]["row"]).read_all().to_pylist()
    assert row == {"m": []}


def test_several_rows_share_an_entry(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    save(messages(spark, 25, 1), any_server, rows_per_entry=10)
    entries = [headrace.unpack(fields) for fields in stored(client).values()]
    assert [len(entry) for entry in entries] == [10, 10, 5]
    assert [payload for entry in entries for payload in entry] == [b"p%d" % n for n in range(25)]

    save(
        messages(spark, 25, 1), any_server, arrow_ipc=True, codec="zstd", stream_key="tables", ignore_columns="payload"
    )
    tables = [pa.table(headrace.unpack_arrow(fields)) for fields in stored(client, "tables").values()]
    assert [table.column_names for table in tables] == [["message_id"]]
    assert tables[0]["message_id"].to_pylist() == list(range(25))


def test_trimming(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    save(messages(spark, 1_000), any_server, maxlen=10, maxlen_approximate="false")
    assert client.xlen("events") == 10


def test_an_empty_dataframe_writes_no_entry(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    before = connections(client)
    save(messages(spark, 0), any_server)
    assert connections(client) == before
    save(messages(spark, 3, 8), any_server)
    assert sorted(payloads(client)) == ["p0", "p1", "p2"]
    assert 1 <= connections(client) - before <= 3


def test_a_worker_keeps_its_connection(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    assert_workers_keep_connections(client, lambda: save(messages(spark, 100), any_server))
    assert client.xlen("events") == 1_500


def test_option_names_are_case_insensitive(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    options = {name.upper(): value for name, value in to(any_server, maxlen=10, ignore_columns="message_id").items()}
    writer(messages(spark, 10), options).save()
    assert client.xlen("events") == 10


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strem_key": "x"}, "unknown option 'strem_key'; did you mean 'stream_key'?"),
        ({"port": "6380"}, "port cannot be used with unix_socket"),
        ({"stream_key": ""}, "stream_key must be"),
        ({"window_max_entries": "0"}, "window_max_entries must be an integer of at least 1, got '0'"),
        ({"payload": "body"}, "payload names an unknown column 'body'"),
        ({"json": "payload"}, "would not be written: 'flag'"),
        ({"message_id": "flag", "ignore_columns": "message_id"}, 'column "flag" cannot hold message IDs'),
        ({"on_failure": "dead_letter"}, "dead_letter_key is missing"),
        ({"checkpointLocation": "/tmp/x"}, "unknown option 'checkpointLocation'"),
    ],
)
def test_invalid_options_are_reported_before_any_task_starts(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer, options: dict[str, str], text: str
) -> None:
    frame = messages(spark, 10).withColumn("flag", sf.lit(True))
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup()
    with pytest.raises(AnalysisException) as caught:
        save(frame, any_server, **options)
    assert text in str(caught.value)
    assert client.dbsize() == 0
    assert spark.sparkContext.statusTracker().getJobIdsForGroup() == jobs


def test_modes_other_than_append_are_refused(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    frame = messages(spark, 10)
    with pytest.raises(AnalysisException, match=r"mode\('append'\)"):
        writer(frame, to(any_server)).mode("overwrite").save()
    # Spark's own error text: it does not ask the data source.
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            frame.write.format("redis_streams").options(**to(any_server)).mode(mode).save()
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("redis_streams").options(**to(any_server)).save()
    with pytest.raises(AnalysisException, match="save\\(\\) and start\\(\\) take no path"):
        writer(frame, to(any_server)).save("orders")
    assert client.dbsize() == 0


def test_a_wrong_password_fails_the_job(spark: SparkSession, start_server: Callable[..., LocalServer]) -> None:
    server = start_server(config={"requirepass": "right"})
    with pytest.raises(PythonException, match=r"WRONGPASS.*\n(.*\n)*.*check username and the password"):
        save(messages(spark, 10), server, password="wrong")


# --- SQL and names ----------------------------------------------------------------------------------------------------


def options_in_sql(options: dict[str, Any]) -> str:
    return "OPTIONS (" + ", ".join(f"{name} '{value}'" for name, value in options.items()) + ")"


def test_sql(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    options = options_in_sql(to(any_server))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events (payload STRING) USING redis_streams {options}")
    spark.sql("INSERT INTO events VALUES ('one'), ('two')")
    spark.sql("INSERT INTO events SELECT string(id) FROM range(3, 5, 1, 1)")
    assert sorted(payloads(client)) == ["3", "4", "one", "two"]

    options = options_in_sql(to(any_server, message_id="id", stream_key="orders"))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders (id BIGINT, total DECIMAL(9, 2)) USING redis_streams {options}")
    spark.sql("INSERT INTO orders VALUES (1, 9.5)")
    spark.sql("INSERT INTO orders (total, id) VALUES (4, 2)")
    assert payloads(client, "orders") == ['{"id":1,"total":9.50}', '{"id":2,"total":4.00}']

    options = options_in_sql(to(any_server, fields_from="fields", entry_id="entry_id", stream_key="copies"))
    columns = "(entry_id STRING, fields MAP<STRING, BINARY>)"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW copies {columns} USING redis_streams {options}")
    spark.sql("INSERT INTO copies VALUES ('5-1', map('a', X'FF', 'b', X''))")
    assert stored(client, "copies") == {"5-1": {"a": b"\xff", "b": b""}}


def test_mistakes_in_sql_are_reported(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    def create(columns: str = "", **options: str) -> None:
        given = options_in_sql(to(any_server, **options))
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW wrong {columns} USING redis_streams {given}")

    with pytest.raises(AnalysisException, match="unknown option 'maxlenn'; did you mean 'maxlen'"):
        create(maxlenn="5")
    create()
    with pytest.raises(AnalysisException, match="these are the columns of a read"):
        spark.sql("INSERT INTO wrong SELECT * FROM wrong")
    create("(payload STRING, extra INT)")
    with pytest.raises(AnalysisException, match="would not be written: 'extra'"):
        spark.sql("INSERT INTO wrong VALUES ('x', 1)")
    create("(payload STRING)")
    with pytest.raises(AnalysisException, match=r"mode\('append'\)"):
        spark.sql("INSERT OVERWRITE wrong VALUES ('x')")
    assert client.dbsize() == 0


def test_the_format_can_be_registered_by_hand(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    """In a new session: Spark already knows the format, and uses the registered class from then on."""
    session = spark.newSession()
    register(session)
    save(messages(session, 10), any_server)
    assert client.xlen("events") == 10


def test_a_thread_that_calls_register_finds_the_format(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    def write(key: str) -> None:
        save(messages(spark, 10), any_server, stream_key=key)

    with ThreadPoolExecutor(2, initializer=register, initargs=(spark,)) as pool:
        list(pool.map(write, ("one", "two", "three")))
    assert [client.xlen(key) for key in ("one", "two", "three")] == [10, 10, 10]


def test_register_sets_only_the_active_session_of_the_calling_thread(spark: SparkSession) -> None:
    def active() -> bool:
        jvm: Any = spark._jvm
        return bool(jvm.org.apache.spark.sql.SparkSession.getActiveSession().isDefined())

    def before_and_after() -> tuple[bool, bool]:
        before = active()
        register(spark.newSession())
        return before, active()

    with ThreadPoolExecutor(1) as registered, ThreadPoolExecutor(1) as other:
        assert registered.submit(before_and_after).result() == (False, True)
        assert not other.submit(active).result()
