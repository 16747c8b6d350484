"""Positions while no batch has reported a loss that is known: it is reported once, wherever a reader goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Endpoint, FieldError, Reader
from headrace.testing import LocalServer
from support.patience import PATIENCE

pytestmark = pytest.mark.needs("redis-7.0")

#: Behind the first entries of the stream that is trimmed to its last two: three are lost.
STARTS = {"trimmed": {"id": "5-0", "n": 5}, "whole": {"id": "0-0", "n": 0}}
#: Five entries are a batch; two wait for more.
OPTIONS: dict[str, Any] = {
    "start": json.dumps({"v": 1, "streams": STARTS}),
    "on_loss": "report",
    "batch_rows": 5,
    "linger": 30.0,
}


@pytest.fixture
def client(server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    client = connect(server)
    for number in range(1, 6):
        client.xadd("whole", {"n": number}, id=f"{number}-0")
    for number in range(1, 11):
        client.xadd("trimmed", {"n": "nine" if number == 9 else number}, id=f"{number}-0")
    return client


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return Endpoint.from_url(server.url, stream_key="whole")


def places(position: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(position)["streams"]
    return found


def lost_behind(endpoint: Endpoint, position: str) -> int:
    with Reader(endpoint, STARTS, start=position, end="latest", on_loss="report") as reader:
        return sum(batch.lost for batch in reader)


def test_the_position_of_a_batch_of_another_stream_is_before_the_loss(endpoint: Endpoint, client: redis.Redis) -> None:
    with Reader(endpoint, STARTS, **OPTIONS) as reader:
        client.xtrim("trimmed", maxlen=2, approximate=False)
        batch = reader.read(timeout=PATIENCE)
        assert batch is not None
        assert (batch.stream, batch.lost, reader.lost) == (b"whole", 0, 3)
    assert places(batch.position) == {"trimmed": {"id": "5-0", "n": 5}, "whole": {"id": "5-0", "n": 5}}
    assert lost_behind(endpoint, batch.position) == 3


def test_a_position_after_an_entry_that_does_not_fit_is_after_the_loss(endpoint: Endpoint, client: redis.Redis) -> None:
    """A position names the last entry: it cannot leave out what is missing before it. The reader still reports that."""
    schema = pa.schema({"n": pa.int64()})
    with Reader(endpoint, STARTS, schema=schema, **OPTIONS | {"linger": 0.0}) as reader:
        client.xtrim("trimmed", maxlen=2, approximate=False)
        with pytest.raises(FieldError) as raised:
            reader.read(timeout=PATIENCE)
        whole = reader.read(timeout=PATIENCE)
        rest = reader.read(timeout=PATIENCE)
    assert whole is not None
    assert rest is not None
    assert (whole.stream, whole.lost) == (b"whole", 0)
    assert (rest.first_id, rest.lost) == ("10-0", 3)
    assert places(raised.value.position)["trimmed"] == {"id": "9-0", "n": 9}
    assert places(whole.position)["trimmed"] == {"id": "9-0", "n": 9}


def test_the_position_of_a_reader_is_after_a_loss_that_no_batch_reports(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    with Reader(endpoint, STARTS, **OPTIONS | {"end": "10-0"}) as reader:
        client.xtrim("trimmed", maxlen=0, approximate=False)
        assert [batch.lost for batch in reader] == [0]
        assert reader.lost == 5
    assert lost_behind(endpoint, reader.position) == 0
