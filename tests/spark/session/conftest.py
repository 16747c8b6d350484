"""The Spark session of all tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.spark import start_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark session of the whole run."""
    with start_spark() as spark:
        yield spark


@pytest.fixture(autouse=True)
def _active(spark: SparkSession) -> None:
    """A test before this one may have called `register` with a session of its own, which is the active one then."""
    spark.createDataFrame([], "n INT")
