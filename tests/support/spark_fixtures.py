"""The fixtures of the Spark tests. A test file enables them by `pytest_plugins = ["support.spark_fixtures"]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from pyspark.sql import SparkSession

from headrace import Endpoint
from headrace.testing import LocalServer
from support.spark import start_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark session of the whole run."""
    with start_spark() as spark:
        yield spark


@pytest.fixture
def client(any_server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    """A redis-py client of `any_server`."""
    return connect(any_server)


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    """The stream `events` of `any_server`."""
    return Endpoint(unix_socket=any_server.unix_socket, stream_key="events")
