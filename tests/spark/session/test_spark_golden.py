"""Dead letters of the Spark writer, beside the golden file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import SparkSession

import headrace
from compatibility.golden import NEWEST, bytes_of, read
from compatibility.spark_letters import NAME, spark_dead_letters
from headrace.testing import LocalServer


@pytest.mark.thorough
def test_dead_letters_are_written_as_before(spark: SparkSession, any_server: LocalServer, client: redis.Redis) -> None:
    found, golden = spark_dead_letters(spark, any_server, client), read(NEWEST, NAME)
    # The bytes of Arrow depend on its version.
    assert [row_of(found["row"]), row_of(golden["row"])] == [[{"nested": {"a": 1}}]] * 2
    assert found == golden


def row_of(letter: list[list[str]]) -> Any:
    """Take the row out of a dead letter."""
    row = next(field for field in letter if field[0] == "row")
    letter[letter.index(row)] = ["row", ""]
    return pa.table(headrace.unpack_arrow({b"row": bytes_of(row[1])}, "row")).to_pylist()
