"""`spark.read.format("redis_streams")` in real Spark, and SELECT from SQL views."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.testing import LocalServer
from support.datasource import save, to
from support.source import add


def read(spark: SparkSession, server: LocalServer, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.format("redis_streams").options(**to(server, **options)).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def test_entries_are_read_unchanged(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    client.xadd("events", {"a": b"\xff\x00", "b": ""}, id="1795324724029-361")
    client.xadd("events", {"a": "x"}, id=f"{2**64 - 1}-{2**64 - 2}")  # outside of Spark's timestamps
    frame = read(spark, any_server)
    assert frame.columns == ["stream", "entry_id", "timestamp", "fields"]
    rows = [row.asDict() for row in frame.withColumn("timestamp", sf.unix_millis("timestamp")).collect()]
    assert rows == [
        {
            "stream": "events",
            "entry_id": "1795324724029-361",
            "timestamp": 1795324724029,
            "fields": {"a": b"\xff\x00", "b": b""},
        },
        {"stream": "events", "entry_id": f"{2**64 - 1}-{2**64 - 2}", "timestamp": None, "fields": {"a": b"x"}},
    ]
    columns = "entry_seq decimal(20,0), a binary, row_in_entry int, stream string, entry_ms long"
    named = read(spark, any_server, columns, metadata="entry_ms,entry_seq,row_in_entry")
    first, last = (tuple(row) for row in named.collect())
    assert first == (361, b"\xff\x00", 0, None, 1795324724029)
    assert last == (2**64 - 2, b"x", 0, None, None)
    assert read(spark, any_server, "a binary", stream_key="nothing").collect() == []
    renamed = read(spark, any_server, metadata='{"entry_seq": "entry_id"}').drop("fields")
    assert (renamed.columns, renamed.collect()) == (["entry_id"], [(361,), (2**64 - 2,)])
    assert read(spark, any_server, fields="a,c", on_bad_field="null", starting="1795324724029-362").collect() == [
        ("x", None)
    ]


def test_streams_are_split_into_partitions_that_read_every_entry_once(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    add(client, "one", range(1_000))  # by time
    add(client, "two", range(1_000, 1_300), ids=lambda n: f"7-{n}")  # by sequence number
    add(client, "three", range(1_300, 1_303), ids=lambda n: f"{n}-0")
    frame = read(spark, any_server, "n long", stream_key="one", min_partitions=5)
    assert frame.rdd.getNumPartitions() == 5
    options: dict[str, Any] = {"unix_socket": any_server.unix_socket, "min_partitions": 8, "batch_rows": 100}
    for streams in ({"stream_keys": "one,two,three"}, {"stream_pattern": "[ot]*"}):
        several = spark.read.schema("n long").format("redis_streams").options(**options, **streams).load()
        assert numbers(several) == list(range(1_303))
        assert 3 < several.rdd.getNumPartitions() <= 8


def test_starting_and_ending_options_bound_a_read(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    add(client, "events", range(1, 101), ids=lambda n: f"{n * 10}-{n}")

    def found(**options: Any) -> list[int]:
        return numbers(read(spark, any_server, "n long", min_partitions=3, **options))

    assert found(starting="20-2", ending="40-4") == [2, 3, 4]
    assert found(starting="20-3", ending="40-3") == [3]
    assert found(starting_timestamp=985) == [99, 100]
    assert found(starting='{"events": "latest"}') == []
    client.xtrim("events", maxlen=30, approximate=False)
    assert found(ending_timestamp="1970-01-01T00:00:00.719Z") == [71]
    with pytest.raises(AnalysisException, match="starting_timestamp=1001 is after the newest entry"):
        found(starting_timestamp=1001)


def test_rows_are_read_back_as_written_in_each_layout(spark: SparkSession, any_server: LocalServer) -> None:
    """In each layout, with columns that are named as metadata is."""
    frame = spark.sql("""
        select id, cast(id / 8 as decimal(10, 3)) as price, timestamp '2026-04-14 12:00:00.120' as timestamp,
            date '2026-04-14' as day, cast('bytes' as binary) as bytes, id = 1 as flag, 'ü"' as stream,
            if(id = 1, null, concat('entry ', id)) as entry_id, cast(id as double) / 3 as third
        from range(0, 5, 1, 2)
    """)
    names = ", ".join(frame.columns)
    schema = ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)
    expected = sorted(frame.collect())
    layouts: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "fields": ({"fields": names}, {}),
        "json": ({"json": "true", "rows_per_entry": "2"}, {"unpack": "json"}),
        "arrow": ({"arrow_ipc": "true", "codec": "zstd"}, {"unpack": "arrow_ipc"}),
    }
    for key, (written, given) in layouts.items():
        save(frame, any_server, stream_key=key, **written)
        back = read(spark, any_server, schema, stream_key=key, **given)
        assert sorted(back.collect()) == expected, key
        assert back.dtypes == frame.dtypes


def test_entries_are_copied(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    add(client, "events", range(5))
    copy = read(spark, any_server)
    save(copy, any_server, stream_key="copy", fields_from="fields", ignore_columns="*", entry_id="entry_id")
    assert client.xrange("copy") == client.xrange("events")


def test_all_fields_of_an_entry_are_read_in_order(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    raw: Any = client  # a dict has no name twice
    raw.execute_command("XADD", "events", "1-0", "a", b"\xff", "b", "2", "a", "3")
    frame = read(spark, any_server, fields_as="list")
    assert frame.select("fields").dtypes == [("fields", "array<struct<name:string,value:binary>>")]
    (row,) = frame.collect()
    assert [tuple(pair) for pair in row.fields] == [("a", b"\xff"), ("b", b"2"), ("a", b"3")]
    save(frame, any_server, stream_key="copy", fields_from="fields", ignore_columns="*", entry_id="entry_id")
    assert raw.execute_command("XRANGE", "copy", "-", "+") == raw.execute_command("XRANGE", "events", "-", "+")
    (row,) = read(spark, any_server, fields="b", fields_as="list", on_bad_field="keep").collect()
    assert (row.raw, row.b) == (None, "2")
    typed = "b long, raw array<struct<name: string, value: binary>>"
    kept = {"fields_as": "list", "on_bad_field": "keep", "metadata": "raw"}
    assert read(spark, any_server, typed, **kept).collect() == [(2, None)]
    raw.execute_command("XADD", "events", "2-0", "b", "x", "b", "y")
    (row,) = read(spark, any_server, typed, **kept, starting="2-0").collect()
    assert (row.b, [tuple(pair) for pair in row.raw]) == (None, [("b", b"x"), ("b", b"y")])


def test_filters_are_correct_with_filter_pushdown_enabled(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    """Spark 4.1 to 4.3 reuse what was planned for the filters of one query in others of the same DataFrame."""
    add(client, "events", range(10))
    conf = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "true")
    try:
        frame = read(spark, any_server, "n long, entry_id string", metadata="entry_id")
        one = frame.where(frame.entry_id == "1795324724032-0")
        assert numbers(one) == [3]
        assert numbers(frame) == list(range(10))
        assert numbers(one.union(frame.where("n > 7"))) == [3, 8, 9]
    finally:
        spark.conf.unset(conf)


def test_sql(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    def create(name: str, columns: str = "", **options: Any) -> None:
        given = ", ".join(f"{option} '{value}'" for option, value in to(any_server, **options).items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} {columns} USING redis_streams OPTIONS ({given})")

    # One view for both directions.
    create("both", "(id BIGINT, total DECIMAL(9, 2))", fields="id,total", unpack="json", maxlen=10)
    with pytest.raises(AnalysisException, match="fields and a schema are mutually exclusive"):
        spark.sql("SELECT * FROM both").collect()
    create("both", "(id BIGINT, total DECIMAL(9, 2))", unpack="json", message_id="id")
    spark.sql("INSERT INTO both VALUES (1, 9.5), (2, null)")
    assert [str(row.total) for row in spark.sql("SELECT total FROM both ORDER BY id").collect()] == ["9.50", "None"]
    create("entries")
    (row,) = spark.sql("SELECT count(*) AS n, max(stream) AS stream FROM entries WHERE timestamp IS NOT NULL").collect()
    assert (row.n, row.stream) == (2, "events")
    create("named", fields="payload", metadata="entry_id")
    assert spark.sql("SELECT * FROM named").columns == ["entry_id", "payload"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startin": "latest"}, "unknown option 'startin'; did you mean 'starting'?"),
        ({"startingOffsets": "latest"}, "unknown option 'startingOffsets': here it is starting"),
        ({"starting": "newest"}, "starting must be 'earliest'"),
        ({"max_entries_per_trigger": "5"}, "max_entries_per_trigger is for spark.readStream"),
        ({"stream_key": "text"}, "the key 'text' does not hold a stream"),
        ({"stream_pattern": "nothing*"}, "matches no stream"),
    ],
)
def test_invalid_options_fail_the_read_before_a_task_starts(
    spark: SparkSession, any_server: LocalServer, text_key: None, options: dict[str, str], text: str
) -> None:
    given = to(any_server, **options)
    if "stream_pattern" in options:
        del given["stream_key"]
    with pytest.raises(PySparkException, match=text.replace("?", r"\?")) as caught:
        spark.read.format("redis_streams").options(**given).load().collect()
    assert "Job aborted" not in str(caught.value)


def test_a_bad_field_fails_the_read_or_becomes_null(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    client.xadd("events", {"n": "1"}, id="1-0")
    client.xadd("events", {"n": "one"}, id="2-0")
    with pytest.raises(PythonException, match=r"(?s)FieldError.*2-0.*on_bad_field='null' reads a null"):
        read(spark, any_server, "n long").collect()
    assert [row.n for row in read(spark, any_server, "n long", on_bad_field="null").collect()] == [1, None]


def test_entries_with_bad_fields_can_be_kept(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    client.xadd("events", {"n": "1"}, id="1-0")
    client.xadd("events", {"n": "x", "other": b"\xff"}, id="2-0")
    schema = "n long, raw map<string, binary>"
    frame = read(spark, any_server, schema, on_bad_field="keep", metadata="raw")
    kept = {"n": bytearray(b"x"), "other": bytearray(b"\xff")}
    assert [(row.n, row.raw) for row in frame.collect()] == [(1, None), (None, kept)]
    frame = read(spark, any_server, fields="n", on_bad_field="keep")
    assert frame.columns == ["raw", "n"]
    with pytest.raises(Exception, match="on_bad_field='keep' needs the column raw"):
        read(spark, any_server, "n long", on_bad_field="keep").collect()
