"""What the tests of the data source share."""

from __future__ import annotations

from typing import Any

import redis
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sf

from headrace.server import LocalServer

Options = dict[str, Any]


def to(server: LocalServer, **options: object) -> Options:
    """Options that lead to the stream `events` of a server."""
    return {"unix_socket": server.unix_socket, "stream_key": "events", **options}


def writer(frame: DataFrame, options: Options) -> DataFrameWriter:
    return frame.write.format("redis_streams").mode("append").options(**options)


def save(frame: DataFrame, server: LocalServer, **options: object) -> None:
    writer(frame, to(server, **options)).save()


def messages(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Rows with a `message_id` that counts from 0, and the payload `p<message_id>`."""
    payload = sf.concat(sf.lit("p"), "id").alias("payload")
    return spark.range(0, rows, 1, partitions).select(sf.col("id").alias("message_id"), payload)


def stored(client: redis.Redis, key: str = "events") -> dict[str, dict[str, bytes]]:
    """What is in a stream, by entry ID and field."""
    entries: Any = client.xrange(key)
    return {entry_id.decode(): {name.decode(): value for name, value in fields.items()} for entry_id, fields in entries}


def payloads(client: redis.Redis, key: str = "events") -> list[str]:
    return [fields["payload"].decode() for fields in stored(client, key).values()]


def connections(client: redis.Redis) -> int:
    """How many connections the server ever had."""
    info: Any = client.info("stats")
    return int(info["total_connections_received"])
