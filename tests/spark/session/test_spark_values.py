"""Values of Spark columns as JSON, beside what `to_json` writes for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace import Endpoint
from headrace.spark import xadd
from headrace.testing import LocalServer

Connect = Callable[..., redis.Redis]


@pytest.fixture
def check(any_server: LocalServer, connect: Connect) -> Callable[[DataFrame], None]:
    """Writes a frame as JSON and compares it with `to_json`."""

    def check(frame: DataFrame) -> None:
        endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key="events")
        frame.coalesce(1).mapInArrow(xadd(endpoint, json=True), xadd.schema).collect()
        entries: list[tuple[bytes, dict[bytes, bytes]]] = connect(any_server).xrange("events")  # type: ignore[assignment]
        expected = [row.json for row in frame.select(sf.to_json(sf.struct("*")).alias("json")).collect()]
        assert [fields[b"payload"].decode() for _, fields in entries] == expected

    return check


def test_invalid_utf8_matches_to_json(spark: SparkSession, check: Callable[[DataFrame], None]) -> None:
    chance = random.Random(11)
    # Bytes that begin or continue a character are frequent: so are characters that are cut, too long or surrogates.
    frequent = b'A"\n\x80\x9f\xa0\xbf\xc0\xc2\xe0\xe2\x82\xac\xed\xef\xf0\x90\xf4\x8f\xff'
    broken = [bytes(chance.choices(frequent, k=chance.randrange(10))) for _ in range(2000)]
    rows = spark.createDataFrame([(bytearray(one),) for one in broken], "bytes binary")
    text = sf.col("bytes").cast("string")
    check(rows.select(text.alias("text"), sf.array(text).alias("list"), sf.create_map(text, text).alias("map")))


def test_intervals_match_to_json(spark: SparkSession, check: Callable[[DataFrame], None]) -> None:
    micros = [0, 1, -1, -500_000, 93_784_500_000, -93_784_000_001, 2**63 - 1, 1 - 2**63, 86_400_000_000, 10_120_000]
    rows = spark.createDataFrame([(one,) for one in micros], "micros long")
    days = (sf.expr("interval '0 00:00:00.000001' day to second") * sf.col("micros")).alias("days")
    calendar = sf.expr("make_interval(micros % 7, micros % 13, 0, micros % 5, 0, 0, (micros % 100000007) / 1000000)")
    check(
        rows.select(
            days, sf.array(days).alias("list"), calendar.alias("calendar"), sf.create_map(days, days).alias("map")
        )
    )
