"""Writes dead letters with Spark, and shows them as golden files do."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from headrace.testing import LocalServer
from support.datasource import save

from .golden import show_fields

__all__ = ["NAME", "spark_dead_letters"]

#: The golden file.
NAME = "spark_dead_letters"


def spark_dead_letters(spark: SparkSession, server: LocalServer, client: Any) -> dict[str, Any]:
    """The dead letters of a row with a payload, and of one without, which have a message and an entry ID."""
    client.set("text", "not a stream")
    columns = ["'text' AS stream_key", "'5-1' AS entry_id", "cast(17 AS bigint) AS message_id"]
    policy = {"on_failure": "dead_letter", "dead_letter_key": "dead"}
    found: dict[str, Any] = {}
    for name, column, options in (
        ("payload", "'one' AS payload", {}),
        ("row", "named_struct('a', 1) AS nested", {"json": "nested"}),
    ):
        save(spark.range(0, 1, 1, 1).selectExpr(column, *columns), server, entry_id="entry_id", **policy, **options)
        ((_, fields),) = client.xrange("dead")
        assert fields.pop(b"message")  # its text may change
        found[name] = show_fields(fields)
        client.delete("dead")
    return found
