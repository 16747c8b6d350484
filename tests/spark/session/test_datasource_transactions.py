"""`txn_app_id` and `txn_version`: a batch write that runs again writes nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from headrace.testing import LocalServer
from support import Program
from support.datasource import messages, payloads, save
from support.fixture_types import StartServer
from support.processes import wait_until

Connect = Callable[..., redis.Redis]


def test_a_repeated_write_is_deduplicated(
    spark: SparkSession, start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program)
    client = connect(server)
    frame = messages(spark, 2_000)
    expected = sorted(f"p{n}" for n in range(2_000))
    for _ in range(2):
        save(frame, server, txn_app_id="job", txn_version=3)
        assert sorted(payloads(client)) == expected
    # An older version is deduplicated; a newer one, or one of another application, is not.
    save(frame, server, txn_app_id="job", txn_version=2)
    assert client.xlen("events") == 2_000
    save(frame, server, txn_app_id="job", txn_version=4)
    assert client.xlen("events") == 4_000
    save(frame, server, txn_app_id="another", txn_version=3)
    assert client.xlen("events") == 6_000


@pytest.mark.needs("idmp")
def test_deduplication_outlives_idmp_duration(spark: SparkSession, any_server: LocalServer, connect: Connect) -> None:
    """Redis 8.6 remembers a producer's IDs for IDMP-DURATION: a write that runs again after that writes nothing."""
    client: Any = connect(any_server)

    def probe() -> Any:
        return client.execute_command("XADD", "probe", "IDMP", "producer", "1", "*", "field", "value")

    frame = messages(spark, 2_000)
    save(frame, any_server, txn_app_id="job", txn_version=3)
    client.xadd("probe", {"field": "value"})
    for key in ("events", "probe"):
        client.execute_command("XCFGSET", key, "IDMP-DURATION", 1)
    first = probe()
    assert probe() == first
    wait_until(lambda: probe() != first)
    save(frame, any_server, txn_app_id="job", txn_version=3)
    assert client.xlen("events") == 2_000


def test_a_failed_write_continues(spark: SparkSession, any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    client.set("text", "not a stream")
    frame = messages(spark, 1_000).withColumn("stream_key", sf.expr("if(message_id = 700, 'text', null)"))
    with pytest.raises(PythonException, match="row 200 of partition 1, message ID '700': WRONGTYPE"):
        save(frame, any_server, txn_app_id="job", txn_version=1)
    client.delete("text")
    save(frame, any_server, txn_app_id="job", txn_version=1)
    assert sorted(payloads(client)) == sorted(f"p{n}" for n in range(1_000) if n != 700)
    assert payloads(client, "text") == ["p700"]
