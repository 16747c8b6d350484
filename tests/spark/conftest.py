"""Fixtures of the Spark tests."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def text_key(client: redis.Redis) -> None:
    """The key `text` of `any_server`, which is no stream."""
    client.set("text", "not a stream")
