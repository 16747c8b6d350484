"""`exactly_once_key="message_id"`: rows are deduplicated by message ID, in whatever partition they come again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from headrace import ConfigError, Endpoint
from headrace.spark import write
from headrace.testing import LocalServer
from support.datasource import messages, payloads, save, to

Connect = Callable[..., redis.Redis]

pytestmark = pytest.mark.needs("idmp")

KEYED: dict[str, Any] = {"exactly_once": "idmp", "exactly_once_key": "message_id"}
EXPECTED = sorted(f"p{n}" for n in range(2_000))


def test_a_write_repeated_in_other_partitions_and_order_is_deduplicated(
    spark: SparkSession, server: LocalServer, connect: Connect
) -> None:
    client = connect(server)
    for frame in (messages(spark, 1_500), messages(spark, 2_000).orderBy("message_id", ascending=False).repartition(3)):
        save(frame, server, txn_app_id="job", txn_version=3, **KEYED)
    assert sorted(payloads(client)) == EXPECTED
    endpoint = to(server)
    summary = write(messages(spark, 2_000, 5), Endpoint(**endpoint), txn_app_id="job", txn_version=3, **KEYED)
    assert summary.delivered == 2_000
    assert sorted(payloads(client)) == EXPECTED
    save(messages(spark, 10), server, txn_app_id="job", txn_version=4, **KEYED)
    assert client.xlen("events") == 2_010


@pytest.mark.thorough
def test_a_replayed_micro_batch_is_deduplicated(
    spark: SparkSession, server: LocalServer, connect: Connect, tmp_path: Path
) -> None:
    """Its commit is removed, as if the driver had died before it; the rows come back in other partitions."""
    client, checkpoint = connect(server), tmp_path / "checkpoint"
    messages(spark, 2_000, 4).write.parquet(str(tmp_path / "rows"))

    def run(partitions: int) -> None:
        rows = spark.readStream.schema("message_id long, payload string").parquet(str(tmp_path / "rows"))
        query = rows.repartition(partitions).writeStream.format("redis_streams").options(**to(server, **KEYED))
        query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run(2)
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    run(3)
    assert sorted(payloads(client)) == EXPECTED


def test_keyed_writes_check_their_requirements(spark: SparkSession, server: LocalServer) -> None:
    with pytest.raises(Exception, match="exactly_once_key 'message_id' needs message_id"):
        save(spark.range(3).selectExpr("'x' AS payload"), server, txn_app_id="job", txn_version=1, **KEYED)
    twice = spark.range(2).selectExpr("1 AS message_id", "'x' AS payload").coalesce(1)
    with pytest.raises(PythonException, match="DUPLICATE_ID"):
        save(twice, server, txn_app_id="job", txn_version=1, **KEYED)
    with pytest.raises(ConfigError, match="exactly_once needs txn_app_id and txn_version"):
        write(messages(spark, 1), Endpoint(**to(server)), **KEYED)
