"""Positions say what was returned and reported, and a reader that goes on there finds the rest."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
import redis

from headrace import DataLossError, Endpoint, FieldError, Reader, StreamReplacedError
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


def test_an_entry_that_does_not_fit_reports_the_loss_before_it(endpoint: Endpoint, client: redis.Redis) -> None:
    """The position of the error names the entry: it cannot leave out what is missing before it."""
    schema = pa.schema({"n": pa.int64()})
    with Reader(endpoint, STARTS, schema=schema, **OPTIONS | {"linger": 0.0}) as reader:
        client.xtrim("trimmed", maxlen=2, approximate=False)
        with pytest.raises(
            FieldError, match="before this entry, 3 entries were trimmed before they were read"
        ) as raised:
            reader.read(timeout=PATIENCE)
        whole = reader.read(timeout=PATIENCE)
        rest = reader.read(timeout=PATIENCE)
    assert whole is not None
    assert rest is not None
    assert (raised.value.lost, raised.value.exact) == (3, True)
    assert (whole.stream, whole.lost) == (b"whole", 0)
    assert (rest.first_id, rest.lost) == ("10-0", 0)
    assert places(raised.value.position)["trimmed"] == {"id": "9-0", "n": 9}
    assert places(whole.position)["trimmed"] == {"id": "9-0", "n": 9}


def test_the_position_of_a_reader_is_before_a_loss_that_nothing_has_reported(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    with Reader(endpoint, STARTS, **OPTIONS | {"end": "10-0"}) as reader:
        client.xtrim("trimmed", maxlen=0, approximate=False)
        assert [batch.lost for batch in reader] == [0]
        assert reader.lost == 5
    with (
        Reader(endpoint, STARTS, start=reader.position, end="10-0") as again,
        pytest.raises(DataLossError, match="5 entries") as raised,
    ):
        list(again)
    with Reader(endpoint, STARTS, start=raised.value.position, end="10-0") as again:
        assert list(again) == []


def test_the_position_of_a_reader_is_that_of_the_batches_it_has_returned(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    """A reply has entries of several streams."""
    with Reader(endpoint, STARTS, end="latest") as reader:
        positions = [reader.position]
        for batch in reader:
            assert reader.position == batch.position
            positions.append(batch.position)
        assert len(positions) == 3
    for position in positions:
        returned = sum(place["n"] for place in places(position).values())
        with Reader(endpoint, STARTS, start=position, end="latest") as rest:
            assert sum(batch.num_rows for batch in rest) == 15 - returned


def test_opening_a_reader_does_not_move_its_position_past_a_loss(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xtrim("trimmed", maxlen=2, approximate=False)
    with Reader(endpoint, STARTS, **OPTIONS) as reader:
        assert places(reader.position) == STARTS


@pytest.mark.parametrize("trimmed", [7, 20])
def test_entries_trimmed_after_a_start_within_a_stream_are_reported_after_a_restart(
    endpoint: Endpoint, client: redis.Redis, trimmed: int
) -> None:
    """What was removed before the reader began is not counted."""
    for number in range(1, 41):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    client.xtrim("s", minid="5-0", approximate=False)
    with Reader(endpoint, ["s"], start="10-0", limit=5) as reader:
        (batch,) = reader
    assert places(batch.position) == {"s": {"id": "14-0", "removed": 4}}
    client.xtrim("s", minid=f"{14 + trimmed}-0", approximate=False)
    with Reader(endpoint, ["s"], start=batch.position, end="latest", on_loss="report") as reader:
        found = list(reader)
    assert (found[0].first_id, found[0].is_lost_exact) == (f"{14 + trimmed}-0", False)
    assert trimmed - 1 <= found[0].lost <= 9 + trimmed


@pytest.mark.parametrize("on_loss", ["fail", "report"])
def test_a_loss_after_a_position_without_counts_is_at_most_what_was_ever_removed(
    endpoint: Endpoint, client: redis.Redis, on_loss: Literal["fail", "report"]
) -> None:
    """Such a position was written by the first version, or by a program that has a last ID. A warning says so."""
    client.xtrim("trimmed", maxlen=2, approximate=False)
    start = json.dumps({"v": 1, "streams": {"trimmed": {"id": "5-0"}}})
    with Reader(endpoint, ["trimmed"], start=start, end="latest", on_loss=on_loss) as reader:
        with ExitStack() as stack:
            warned = stack.enter_context(pytest.warns(RuntimeWarning, match="is an upper bound: the position"))
            if on_loss == "fail":
                stack.enter_context(pytest.raises(DataLossError, match="at most 8 entries"))
            batch = reader.read()
            assert batch is not None
            assert (batch.lost, batch.is_lost_exact) == (8, False)
        list(reader)
        assert (reader.lost, reader.is_lost_exact) == (8, False)
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("on_loss", ["fail", "report"])
def test_a_warning_that_is_raised_keeps_the_batch_for_the_next_call(
    endpoint: Endpoint, client: redis.Redis, on_loss: Literal["fail", "report"]
) -> None:
    client.xtrim("trimmed", maxlen=2, approximate=False)
    start = json.dumps({"v": 1, "streams": {"trimmed": {"id": "5-0"}}})
    with Reader(endpoint, ["trimmed"], start=start, end="latest", on_loss=on_loss) as reader:
        before = places(reader.position)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="is an upper bound"):
                reader.read()
        assert places(reader.position) == before
        if on_loss == "fail":
            with pytest.raises(DataLossError, match="at most 8 entries"):
                reader.read()
        batch = reader.read()
        assert batch is not None
        assert (batch.first_id, batch.num_rows) == ("9-0", 2)


def test_a_table_made_of_a_reader_warns_of_a_bound_too(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xtrim("trimmed", maxlen=2, approximate=False)
    start = json.dumps({"v": 1, "streams": {"trimmed": {"id": "5-0"}}})
    with (
        Reader(endpoint, ["trimmed"], start=start, end="latest", on_loss="report") as reader,
        pytest.warns(RuntimeWarning, match="is an upper bound: the position"),
    ):
        table = pa.table(reader)
    assert table["entry_id"].to_pylist() == ["9-0", "10-0"]


@pytest.mark.parametrize("left", [9, 5, 0])
def test_what_is_trimmed_between_the_opening_and_the_first_page_is_lost(
    endpoint: Endpoint, client: redis.Redis, left: int
) -> None:
    with Reader(endpoint, ["trimmed", "whole"], end="latest", on_loss="report", linger=0) as reader:
        client.xtrim("trimmed", maxlen=left, approximate=False)
        found = {batch.stream: batch for batch in reader}
        assert (reader.lost, reader.is_lost_exact) == (10 - left, True)
    assert found[b"whole"].lost == 0
    if left:
        assert (found[b"trimmed"].num_rows, found[b"trimmed"].lost) == (left, 10 - left)


@pytest.mark.parametrize(("on_loss", "lost"), [("fail", 4), ("report", 1)])
def test_what_is_forgotten_because_of_a_gap_and_then_trimmed_is_lost_too(
    endpoint: Endpoint, client: redis.Redis, on_loss: Literal["fail", "report"], lost: int
) -> None:
    """The page from 6-0 to 8-0 is under way while they are trimmed: an error returns none of it, a report does."""
    with Reader(endpoint, ["trimmed"], end="latest", on_loss=on_loss, batch_rows=2, linger=0) as reader:
        found = [reader.read()]
        client.xtrim("trimmed", minid="6-0", approximate=False)
        found.append(reader.read())
        client.xtrim("trimmed", minid="9-0", approximate=False)
        if on_loss == "fail":
            with pytest.raises(DataLossError, match=f": {lost} entries") as error:
                reader.read()
            assert places(error.value.position) == {"trimmed": {"id": "4-0", "n": 8}}
        found += reader
        assert (reader.lost, reader.is_lost_exact) == (lost, True)
    ids = [entry_id for batch in found for entry_id in pa.record_batch(batch)["entry_id"].to_pylist()]
    kept = ["6-0", "7-0", "8-0"] if on_loss == "report" else []
    assert ids == [f"{number}-0" for number in range(1, 5)] + kept + ["9-0", "10-0"]


def test_the_server_is_asked_once_about_each_stream_that_nothing_is_lost_of(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    streams = [f"stream:{number}" for number in range(100)]
    for stream in streams:
        client.xadd(stream, {"n": 1})
    client.config_resetstat()
    with Reader(endpoint, streams, end="latest") as reader:
        assert sum(batch.num_rows for batch in reader) == 100
    assert client.info("commandstats")["cmdstat_xinfo|stream"]["calls"] == 100


@pytest.mark.parametrize("start", ["20", "20-5", datetime(2030, 1, 1, tzinfo=UTC)])
def test_a_start_that_no_entry_has_reached_is_read_from_again(
    endpoint: Endpoint, client: redis.Redis, start: str | datetime
) -> None:
    """Neither a stream that does not exist nor one that ends before the start was deleted or replaced."""
    client.xadd("new", {"n": 1}, id="99999999999999-0")
    streams = ["missing", "new", "whole"]
    with Reader(endpoint, streams, start=start, limit=1) as reader:
        position = reader.read(timeout=PATIENCE).position  # type: ignore[union-attr]
    assert position == reader.position
    assert places(position)["missing"]["start"]
    for _ in range(2):
        with Reader(endpoint, streams, start=position, end="latest") as reader:
            assert list(reader) == []
            assert reader.position == position
    client.xadd("whole", {"n": 2}, id="99999999999999-0")
    client.xadd("missing", {"n": 3}, id="99999999999999-0")
    with Reader(endpoint, streams, start=position, end="latest") as reader:
        assert sorted(batch.stream for batch in reader) == [b"missing", b"whole"]
    # As the first version wrote it.
    old = position.replace(',"start":true', "")
    with Reader(endpoint, streams, start=old, end="latest") as reader:
        if start != "20-5":
            assert sorted(batch.stream for batch in reader) == [b"missing", b"whole"]


def test_what_was_trimmed_of_a_stream_that_replaced_an_unread_one_is_reported(
    endpoint: Endpoint, client: redis.Redis
) -> None:
    client.xtrim("trimmed", maxlen=1, approximate=False)
    with Reader(endpoint, ["trimmed"]) as reader:
        position = reader.position
    client.delete("trimmed")
    for number in range(1, 5):
        client.xadd("trimmed", {"n": number}, id=f"{number}-0")
    client.xtrim("trimmed", maxlen=0, approximate=False)
    with Reader(endpoint, ["trimmed"], start=position, end="latest", on_loss="report") as reader:
        assert list(reader) == []
        assert reader.lost == 4


def test_entries_below_a_start_make_a_loss_an_upper_bound(endpoint: Endpoint, client: redis.Redis) -> None:
    with Reader(endpoint, ["whole"], start="100-0", on_loss="report") as reader:
        for number in range(10, 15):
            client.xadd("whole", {"n": number}, id=f"{number}-0")
        for number in range(100, 102):
            client.xadd("whole", {"n": number}, id=f"{number}-0")
        client.xtrim("whole", maxlen=1, approximate=False)
        batch = reader.read(timeout=PATIENCE)
    assert batch is not None
    assert (batch.first_id, batch.lost, batch.is_lost_exact) == ("101-0", 6, False)


def test_nothing_is_lost_if_the_entry_at_a_start_remains(endpoint: Endpoint, client: redis.Redis) -> None:
    with Reader(endpoint, ["whole"], start="100-0") as reader:
        for number in (10, 11, 100):
            client.xadd("whole", {"n": number}, id=f"{number}-0")
        client.xtrim("whole", maxlen=1, approximate=False)
        batch = reader.read(timeout=PATIENCE)
    assert batch is not None
    assert (batch.first_id, batch.lost, batch.is_lost_exact) == ("100-0", 0, True)


def test_a_position_keeps_a_start_before_the_oldest_entry(endpoint: Endpoint, client: redis.Redis) -> None:
    client.xadd("later", {"n": 32}, id="32-0")
    with Reader(endpoint, ["later"], start="24-0") as reader:
        position = reader.position
    client.delete("later")
    for number in (1, 24):
        client.xadd("later", {"n": number}, id=f"{number}-0")
    with Reader(endpoint, ["later"], start=position, end="latest") as reader:
        assert [batch.first_id for batch in reader] == ["24-0"]


def test_the_last_possible_id_is_that_of_an_entry(endpoint: Endpoint, client: redis.Redis) -> None:
    last = "18446744073709551615-18446744073709551615"
    client.xadd("whole", {"n": 6}, id=last)
    with Reader(endpoint, ["whole"], end="latest") as reader:
        assert [batch.last_id for batch in reader] == [last]
        position = reader.position
    with Reader(endpoint, ["whole"], start=position, end="latest") as reader:
        assert (list(reader), reader.position) == ([], position)
    client.delete("whole")
    client.xadd("whole", {"n": 1}, id="1-0")
    with pytest.raises(StreamReplacedError), Reader(endpoint, ["whole"], start=position, end="latest") as reader:
        list(reader)


@pytest.mark.parametrize("refill", [0, 1])
def test_a_stream_that_is_replaced_before_the_last_page_does_not_end_the_reader(
    endpoint: Endpoint, client: redis.Redis, refill: int
) -> None:
    """An empty page is not the end of what there was when the reader was created."""
    position = json.dumps({"v": 1, "streams": {"whole": {"id": "3-0", "n": 3}}})
    with Reader(endpoint, ["whole"], start=position, end="latest") as reader:
        client.delete("whole")
        for _ in range(refill):
            client.xadd("whole", {"n": 1}, id="1-0")
        with pytest.raises(StreamReplacedError, match="stream whole is not the one that was read before"):
            list(reader)


def test_a_reader_goes_on_with_the_stream_that_replaced_another(endpoint: Endpoint, client: redis.Redis) -> None:
    position = json.dumps({"v": 1, "streams": {"trimmed": {"id": "10-0", "n": 10}, "whole": {"id": "5-0", "n": 5}}})
    client.delete("trimmed")
    for number in range(1, 5):
        client.xadd("trimmed", {"n": number}, id=f"{number}-0")
    client.xtrim("trimmed", maxlen=1, approximate=False)
    with (
        pytest.raises(StreamReplacedError) as replaced,
        Reader(endpoint, STARTS, start=position, end="latest") as reader,
    ):
        list(reader)
    assert replaced.value.stream == b"trimmed"
    with Reader(endpoint, STARTS, start=replaced.value.position, end="latest", on_loss="report") as reader:
        (batch,) = reader
    assert (batch.stream, batch.first_id, batch.lost, batch.is_lost_exact) == (b"trimmed", "4-0", 3, True)


def test_the_last_possible_id_is_an_entry(endpoint: Endpoint, client: redis.Redis) -> None:
    """A reader in reverse begins above it."""
    last = f"{2**64 - 1}-{2**64 - 1}"
    client.xadd("last", {"n": 1}, id=last)
    with Reader(endpoint, ["whole", "last"], reverse=True, limit=5) as reader:
        (batch,) = reader
    with Reader(endpoint, ["whole", "last"], start=batch.position, reverse=True) as reader:
        assert [(batch.stream, batch.first_id) for batch in reader] == [(b"last", last)]


def test_the_memory_of_batches_is_linear_in_the_number_of_streams(endpoint: Endpoint, client: redis.Redis) -> None:
    """Each has a position in all streams, whose text is made when it is asked for."""
    streams = [f"device:{number}" for number in range(2_000)]
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xadd(stream, {"n": 1}, id="1-1")
    pipeline.execute()
    with Reader(endpoint, streams, end="latest") as reader:
        before = resident()
        batches = list(reader)
    assert len(batches) == len(streams)
    # The texts alone would take 180 MB.
    assert resident() - before < 64 << 20
    assert len(places(batches[-1].position)) == len(streams)


def resident() -> int:
    """The memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
