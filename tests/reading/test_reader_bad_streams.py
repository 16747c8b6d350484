"""One stream that cannot be read does not stop the others of a reader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import CommandError, ConfigError, Endpoint, HeadraceError, Reader, StreamReplacedError
from headrace.testing import LocalServer
from support.bad_streams import STREAMS, Change, allow, delete, fill, forbid, overwrite, recreate, rewrite
from support.patience import PATIENCE
from support.processes import wait_until

pytestmark = pytest.mark.needs("redis-7.0")

CHANGES = [
    (delete, StreamReplacedError, "stream b is not the one that was read before: it was deleted"),
    (recreate, StreamReplacedError, "stream b is not the one that was read before: its last entry is older"),
    (overwrite, CommandError, "stream b: [A-Z ]+ was refused: WRONGTYPE"),
    (forbid, CommandError, "stream b: [A-Z ]+ was refused: NOPERM"),
]
REFUSALS = CHANGES[2:]
#: The server is not asked about each of many streams in every request: one that was deleted has to have entries again.
REWRITTEN = (rewrite, StreamReplacedError, "stream b is not the one that was read before: fewer entries were ever")


@pytest.fixture
def client(server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    client = connect(server)
    fill(client, STREAMS)
    allow(client)
    return client


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return Endpoint.from_url(server.url, stream_key="a", username="limited", password="secret")


class Reading:
    """What a reader returns and raises."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.entries: Counter[bytes] = Counter()
        self.errors: list[HeadraceError] = []

    def once(self, timeout: float = 0.01) -> bool:
        try:
            batch = self.reader.read(timeout)
        except HeadraceError as error:
            self.errors.append(error)
            return True
        if batch is not None:
            self.entries[batch.stream] += batch.num_rows
        return batch is not None

    def until(self, **entries: int) -> None:
        expected = {name.encode(): count for name, count in entries.items()}
        wait_until(lambda: self.once() is not None and all(self.entries[k] >= n for k, n in expected.items()))
        assert self.entries == Counter(expected)

    def rest(self) -> None:
        """Read on until the reader is finished."""
        while self.once(PATIENCE):
            pass
        assert self.reader.is_finished


@pytest.mark.parametrize(
    ("change", "kind", "message", "more"),
    [*((*change, 0) for change in CHANGES), *((*change, 10) for change in [REWRITTEN, *REFUSALS])],
)
def test_a_bad_stream_is_reported_once_and_the_others_go_on(
    endpoint: Endpoint, client: redis.Redis, change: Change, kind: Any, message: str, more: int
) -> None:
    streams = [*STREAMS, *(f"d{number}" for number in range(more))]
    with Reader(endpoint, streams, block=0.05) as reader:
        reading = Reading(reader)
        reading.until(a=5, b=5, c=5)
        before = json.loads(reader.position)["streams"]["b"]
        change(client)
        for _ in range(3):
            fill(client, ["a", "c"])
            reading.until(a=reading.entries[b"a"] + 5, b=5, c=reading.entries[b"c"] + 5)
        wait_until(lambda: reading.once() is not None and reading.errors != [])
        assert json.loads(reader.position)["streams"]["b"] == before
        assert not reader.is_finished
    with pytest.raises(kind, match=message):
        raise reading.errors[0]
    (error,) = reading.errors
    assert getattr(error, "stream", None) == b"b"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("change", "kind", "message"), REFUSALS)
def test_a_reader_with_an_end_ends_without_a_stream_that_is_refused(
    endpoint: Endpoint, client: redis.Redis, change: Change, kind: Any, message: str, reverse: bool
) -> None:
    way: dict[str, Any] = {"reverse": True} if reverse else {"end": "latest"}
    change(client)
    with Reader(endpoint, STREAMS, **way) as reader:
        reading = Reading(reader)
        reading.rest()
        position = reader.position
    assert reading.entries == {b"a": 5, b"c": 5}
    (error,) = reading.errors
    with pytest.raises(kind, match=message):
        raise error
    client.delete("b")
    allow(client)
    fill(client, ["b"], 7)
    with Reader(endpoint, STREAMS, start=position, **way) as reader:
        reading = Reading(reader)
        reading.rest()
    assert (reading.entries, reading.errors) == ({b"b": 7}, [])


@pytest.mark.parametrize("streams", [["b", "a", "c"], STREAMS, ["a", "c", "b"]], ids=" ".join)
@pytest.mark.parametrize(
    ("change", "kind", "message", "reverse"), [*((*one, False) for one in CHANGES), *((*one, True) for one in REFUSALS)]
)
def test_a_reader_starts_at_a_position_although_one_of_its_streams_is_bad_by_now(
    endpoint: Endpoint,
    client: redis.Redis,
    streams: list[str],
    change: Change,
    kind: Any,
    message: str,
    reverse: bool,
) -> None:
    """Also if the error of that stream is there before the others have begun."""
    way: dict[str, Any] = {"reverse": True} if reverse else {"end": "latest"}
    with Reader(endpoint, streams, **way) as reader:
        Reading(reader).rest()
    change(client)
    fill(client, ["a", "c"])
    with Reader(endpoint, streams, start=reader.position, **way) as reader:
        reading = Reading(reader)
        reading.rest()
    assert reading.entries == ({} if reverse else {b"a": 5, b"c": 5})
    (error,) = reading.errors
    with pytest.raises(kind, match=message):
        raise error


def test_a_stream_is_read_on_when_the_server_no_longer_refuses_it(endpoint: Endpoint, client: redis.Redis) -> None:
    with Reader(endpoint, STREAMS, block=0.05) as reader:
        reading = Reading(reader)
        reading.until(a=5, b=5, c=5)
        forbid(client)
        wait_until(lambda: reading.once() is not None and reading.errors != [])
        fill(client, STREAMS)
        reading.until(a=10, b=5, c=10)
        allow(client)
        reading.until(a=10, b=10, c=10)
        assert len(reading.errors) == 1


def test_a_stream_that_was_refused_at_first_begins_where_it_was_asked_for(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    """Its position is that of the start meanwhile, so that a restart begins there as well."""
    client.xadd("b", {"n": 1}, id=f"{2**62}-0")
    forbid(client)
    with Reader(endpoint, STREAMS, start=str(2**62), block=0.05) as reader:
        reading = Reading(reader)
        assert reading.once(PATIENCE)
        assert [error.stream for error in reading.errors if isinstance(error, CommandError)] == [b"b"]
        position = reader.position
        allow(client)
        reading.until(b=1)
    with Reader(endpoint, STREAMS, start=position, end="latest") as reader:
        reading = Reading(reader)
        reading.rest()
    assert reading.entries == {b"b": 1}


def test_all_entries_of_a_stream_in_place_of_another_type_are_new(endpoint: Endpoint, client: redis.Redis) -> None:
    overwrite(client)
    with Reader(endpoint, STREAMS, start="latest", block=0.05) as reader:
        client.delete("b")
        fill(client, ["b"])
        Reading(reader).until(b=5)


@pytest.mark.parametrize(("change", "kind", "message"), CHANGES)
def test_a_reader_without_another_stream_raises_at_each_call(
    endpoint: Endpoint, client: redis.Redis, change: Change, kind: Any, message: str
) -> None:
    with Reader(endpoint, ["b"], block=0.05) as reader:
        assert reader.read(PATIENCE) is not None
        change(client)
        for _ in range(3):
            with pytest.raises(kind, match=message):
                reader.read(PATIENCE)
        assert not reader.is_finished


@pytest.mark.parametrize(("change", "kind", "message"), CHANGES)
def test_a_dropped_stream_is_not_read_any_longer(
    endpoint: Endpoint, client: redis.Redis, change: Change, kind: Any, message: str
) -> None:
    with Reader(endpoint, STREAMS, block=0.05) as reader:
        reading = Reading(reader)
        reading.until(a=5, b=5, c=5)
        change(client)
        wait_until(lambda: reading.once() is not None and reading.errors != [])
        (error,) = reading.errors
        with pytest.raises(kind, match=message):
            raise error
        reader.drop_stream(error.stream)  # type: ignore[attr-defined]
        assert reader.streams == [b"a", b"c"]
        client.delete("b")
        allow(client)
        fill(client, STREAMS)
        reading.until(a=10, b=5, c=10)
        assert set(json.loads(reader.position)["streams"]) == {"a", "c"}
        with pytest.raises(ConfigError, match="stream must be one of the reader's streams, got 'b'"):
            reader.drop_stream("b")
    with Reader(endpoint, ["a", "c"], start=reader.position, end="latest") as reader:
        assert list(reader) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_batches_of_a_dropped_stream_are_dropped(endpoint: Endpoint, client: redis.Redis, reverse: bool) -> None:
    """They do not count for the limit."""
    way: dict[str, Any] = {"reverse": True} if reverse else {"end": "latest"}
    with Reader(endpoint, STREAMS, limit=10, batch_rows=2, **way) as reader:
        first = reader.read(PATIENCE)
        assert first is not None
        reader.drop_stream(first.stream)
        rest = list(reader)
        assert reader.is_finished
    assert first.stream not in {batch.stream for batch in rest}
    assert sum(batch.num_rows for batch in rest) == 8
    with Reader(endpoint, STREAMS, **way) as reader:
        for stream in STREAMS:
            reader.drop_stream(stream)
        assert reader.read() is None
        assert reader.is_finished
