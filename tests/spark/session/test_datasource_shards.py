"""Shards in Spark: the option of the data source, the functions, and the column of their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from headrace import ConfigError, Dispatcher, Endpoint
from headrace.spark import shard, write, xadd, xadd_udf
from headrace.testing import LocalServer
from support.pipelines import endpoint_to
from support.shards import shard_of

SHARDS = 6
KEYS = [f"customer {number}" for number in range(20)]


def where(server: LocalServer) -> dict[str, str]:
    return {"unix_socket": str(server.unix_socket), "stream_key": "orders", "shards": str(SHARDS)}


def endpoint(server: LocalServer) -> Endpoint:
    return endpoint_to(server, stream_key="orders", shards=SHARDS)


def orders(spark: SparkSession) -> Any:
    rows = [(f"{number}", KEYS[number * 7 % 20]) for number in range(400)]
    return spark.createDataFrame(rows, "payload string, customer string")


def check(client: Any, *, times: int = 1) -> None:
    """Each row is in the shard of its key, `times` times."""
    for number in range(SHARDS):
        found = sorted(int(fields[b"payload"]) for _, fields in client.xrange(f"orders:{number}"))
        wanted = [row for row in range(400) if shard_of(KEYS[row * 7 % 20].encode(), SHARDS) == number]
        assert found == sorted(wanted * times), number


def test_the_data_source_writes_each_row_to_the_shard_of_its_key(
    spark: SparkSession, any_server: LocalServer, connect: Any
) -> None:
    """Again with the same transaction, which writes nothing, whatever the partitions."""
    options = {
        **where(any_server),
        "shard_key": "customer",
        "payload": "payload",
        "txn_app_id": "app",
        "txn_version": "1",
    }
    rows = orders(spark).repartitionByRange(3, "payload").cache()
    for _ in range(2):
        rows.write.format("redis_streams").mode("append").options(**options).save()
    check(connect(any_server))


def test_the_shard_key_stays_in_the_entry(spark: SparkSession, any_server: LocalServer, connect: Any) -> None:
    rows = orders(spark).withColumnRenamed("payload", "number")
    rows.write.format("redis_streams").mode("append").options(**where(any_server), shard_key="customer").save()
    client = connect(any_server)
    entries = [fields for number in range(SHARDS) for _, fields in client.xrange(f"orders:{number}")]
    assert len(entries) == 400
    assert all(b'"customer":"customer ' in fields[b"payload"] for fields in entries)


def test_functions_write_each_row_to_the_shard_of_its_key(
    spark: SparkSession, any_server: LocalServer, connect: Any
) -> None:
    rows = orders(spark)
    to = endpoint(any_server)
    write(rows, to, payload="payload", shard_key="customer")
    outcomes = rows.mapInArrow(xadd(to, payload="payload", shard_key="customer"), xadd.schema)
    assert outcomes.filter("code is not null").count() == 0
    named: Any = xadd_udf(to)
    sent = named(functions.col("payload"), shard_key=functions.col("customer"))
    assert rows.select(sent.alias("outcome")).filter("outcome.code is not null").count() == 0
    check(connect(any_server), times=3)


@pytest.mark.parametrize("hashed", ["murmur2", "crc32"])
def test_the_shard_function_returns_the_shard_of_each_key(spark: SparkSession, hashed: Any) -> None:
    rows = spark.createDataFrame([(key, n) for n, key in enumerate([*KEYS, None])], "customer string, number long")
    numbers = rows.select(
        "customer", "number", shard("customer", SHARDS, hashed).alias("of_text"),
        shard(functions.col("number"), SHARDS, hashed).alias("of_integer"),
    )  # fmt: skip
    for row in numbers.collect():
        wanted = None if row.customer is None else shard_of(row.customer.encode(), SHARDS, hashed)
        assert row.of_text == wanted
        assert row.of_integer == shard_of(str(row.number).encode(), SHARDS, hashed)


def test_the_source_reads_all_shards(spark: SparkSession, any_server: LocalServer, tmp_path: Path) -> None:
    where_to = where(any_server)
    rows = orders(spark)
    rows.write.format("redis_streams").mode("append").options(
        **where_to, shard_key="customer", fields="payload"
    ).option("ignore_columns", "*").save()
    read = spark.read.format("redis_streams").schema("payload string").options(**where_to).load()
    assert sorted(int(row.payload) for row in read.collect()) == list(range(400))
    stream = spark.readStream.format("redis_streams").schema("payload string").options(**where_to, starting="earliest")
    query = stream.load().writeStream.format("memory").queryName("of_shards").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert sorted(int(row.payload) for row in spark.table("of_shards").collect()) == list(range(400))


@pytest.mark.thorough
def test_the_group_is_created_in_each_shard(
    spark: SparkSession, any_server: LocalServer, connect: Any, tmp_path: Path
) -> None:
    """Also where the names of shards have braces, which the name of a sharded stream may not have."""
    spread = {**where(any_server), "shard_names": "spread"}
    rows = orders(spark)
    columns = {"shard_key": "customer", "fields": "payload", "ignore_columns": "*"}
    rows.write.format("redis_streams").mode("append").options(**spread, **columns).save()
    reading = {**spread, "starting": "earliest", "commit_group": "spark"}
    stream = spark.readStream.format("redis_streams").schema("payload string").options(**reading).load()
    for _ in range(2):
        # The second one commits what the first one read.
        query = stream.writeStream.format("noop").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
        rows.write.format("redis_streams").mode("append").options(**spread, **columns).save()
    client = connect(any_server)
    keys = list(client.scan_iter(_type="stream"))
    assert len(keys) == SHARDS
    for key in keys:
        (group,) = client.xinfo_groups(key)
        assert group["name"] == b"spark"


def test_dead_letters_name_the_stream_of_the_shard(spark: SparkSession, any_server: LocalServer, connect: Any) -> None:
    """Also of rows without a key, and where a task goes on with the connection of the one before."""
    client = connect(any_server)
    with Dispatcher(endpoint(any_server)) as dispatcher:
        dispatcher.produce(b"first")
        assert dispatcher.flush().ok
    client.set("orders:2", "no stream")
    rows = [(f"{number}", KEYS[number % 20] if number % 2 else None) for number in range(61)]
    columns = {"shard_key": "customer", "payload": "payload", "on_failure": "dead_letter", "dead_letter_key": "dead"}
    for _ in range(2):
        data = spark.createDataFrame(rows, "payload string, customer string").coalesce(1)
        data.write.format("redis_streams").mode("append").options(**where(any_server), **columns).save()
    letters = [fields for _, fields in client.xrange("dead")]
    assert {(fields[b"stream_key"], fields[b"code"]) for fields in letters} == {(b"orders:2", b"WRONGTYPE")}
    keyed = [(int(fields[b"payload"]), fields[b"shard_key"]) for fields in letters if b"shard_key" in fields]
    theirs = [(row, key.encode()) for row, (_, key) in enumerate(rows) if key and shard_of(key.encode(), SHARDS) == 2]
    assert keyed == theirs * 2
    # They take turns by their numbers, which a task goes on with if it has the connection of the one before.
    assert len(letters) - len(keyed) in range(8, 24)


def test_the_source_finds_the_shards(spark: SparkSession, any_server: LocalServer) -> None:
    with Dispatcher(endpoint(any_server)) as dispatcher:
        for row in range(100):
            dispatcher.produce(b"%d" % row)
        assert dispatcher.flush().ok
    options = {"unix_socket": str(any_server.unix_socket), "find_shards": "true"}
    read = spark.read.format("redis_streams").schema("payload string").options(**options)
    assert sorted(int(row.payload) for row in read.option("stream_key", "orders").load().collect()) == list(range(100))
    with pytest.raises(PySparkException, match="the stream 'other' has no shards"):
        read.option("stream_key", "other").load().collect()
    with pytest.raises(PySparkException, match="find_shards needs stream_key"):
        spark.read.format("redis_streams").options(**options, stream_keys="orders").load()


@pytest.mark.thorough
def test_the_source_refuses_another_number_of_shards(spark: SparkSession, any_server: LocalServer) -> None:
    with Dispatcher(endpoint(any_server)) as dispatcher:
        dispatcher.produce(b"1")
    other = {**where(any_server), "shards": "5"}
    with pytest.raises(PySparkException, match="has 6 shards"):
        spark.read.format("redis_streams").schema("payload string").options(**other).load().collect()
    keys = {"unix_socket": str(any_server.unix_socket), "stream_keys": "a,b", "shards": "5"}
    with pytest.raises(PySparkException, match="shards needs stream_key"):
        spark.read.format("redis_streams").schema("payload string").options(**keys).load().collect()


def test_invalid_arguments_of_the_shard_function_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="shards must be an integer from 1 to 1024, got 0"):
        shard("customer", 0)
    with pytest.raises(ConfigError, match="shard_hash must be one of 'murmur2', 'crc32', got 'md5'"):
        shard("customer", 6, "md5")  # type: ignore[arg-type]
