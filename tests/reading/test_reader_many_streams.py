"""A reader of many streams asks about some of them at a time, and knows what it holds of all of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
import redis

from headrace import Endpoint, Reader
from headrace.testing import LocalServer
from support.patience import PATIENCE

pytestmark = pytest.mark.needs("redis-7.0")

#: More than one request for pages names.
STREAMS = [f"device:{number}" for number in range(300)]


@pytest.fixture
def client(server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    return connect(server)


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return Endpoint.from_url(server.url, stream_key=STREAMS[0])


def add(client: redis.Redis, number: int, size: int = 1, streams: Iterable[str] = STREAMS) -> None:
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xadd(stream, {"n": "x" * size}, id=f"{number}-1")
    pipeline.execute()


def test_the_batches_that_wait_for_more_have_batch_bytes_together(endpoint: Endpoint, client: redis.Redis) -> None:
    """Also while other streams are still behind: the largest are returned before their linger is over."""
    add(client, 1, size=1_000)
    began = time.monotonic()
    with Reader(endpoint, STREAMS, linger=60, batch_bytes=20_000) as reader:
        assert reader.read(PATIENCE) is not None
        # One request describes all streams, and each of the next five gets pages of 64 of them.
        assert reader.stats().requests < 6
        for _ in range(len(STREAMS) - 21):
            assert reader.read(PATIENCE) is not None
    assert time.monotonic() - began < 60


def test_a_loss_in_one_stream_is_exact_and_told_before_its_next_batch(endpoint: Endpoint, client: redis.Redis) -> None:
    for number in range(1, 4):
        add(client, number)
    with Reader(endpoint, STREAMS, end="latest") as reader:
        position = list(reader)[-1].position
    for number in range(4, 40):
        add(client, number)
    client.xtrim(STREAMS[150], minid="20-1", approximate=False)
    read: Counter[str] = Counter()
    with Reader(endpoint, STREAMS, start=position, end="latest", on_loss="report", batch_rows=10) as reader:
        for batch in reader:
            read[batch.stream.decode()] += batch.num_rows
            assert batch.lost == (16 if batch.stream.decode() == STREAMS[150] and batch.first_id == "20-1" else 0)
        assert reader.lost == 16
        assert json.loads(reader.position)["streams"][STREAMS[150]]["n"] == 39
    assert read == {stream: 20 if stream == STREAMS[150] else 36 for stream in STREAMS}


def test_each_entry_is_read_once_while_pages_of_some_streams_follow_pages_of_others(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    """Long and short streams, and a batch that is full in the middle of them."""
    added: Counter[str] = Counter()
    for number in range(1, 60):
        some = STREAMS[:: 1 + number // 3]
        add(client, number, streams=some)
        added.update(some)
    read: Counter[str] = Counter()
    with Reader(endpoint, STREAMS, batch_rows=25, linger=0.2, block=0.2) as reader:
        while sum(read.values()) < sum(added.values()):
            batch = reader.read(PATIENCE)
            assert batch is not None
            assert batch.num_rows <= 25
            read[batch.stream.decode()] += batch.num_rows
    assert read == added
