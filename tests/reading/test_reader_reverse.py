"""Reading from new entries to old ones, on every server."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, DataLossError, Endpoint, FieldError, Reader
from headrace.testing import LocalServer
from support import Program

Connect = Callable[..., redis.Redis]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(server)


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return Endpoint.from_url(server.url, stream_key="s")


def fill(client: redis.Redis, count: int, key: str = "s", first: int = 1) -> None:
    """Entries 1-0 to `count`-0 with their number."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd(key, {"n": str(number)}, id=f"{number}-0")
    pipeline.execute()


def numbers(reader: Reader) -> list[int]:
    return [int(dict(fields)["n"]) for fields in pa.table(reader).column("fields").to_pylist()]


@pytest.mark.parametrize("page_bytes", [1, 10_000, 1 << 20])
def test_the_newest_entry_is_read_first(client: redis.Redis, endpoint: Endpoint, page_bytes: int) -> None:
    fill(client, 3_000)
    with Reader(endpoint, reverse=True, page_bytes=page_bytes, batch_rows=700) as reader:
        batches = [(batch.num_rows, batch.first_id, batch.last_id) for batch in reader]
        assert reader.is_finished
    assert batches[0] == (700, "3000-0", "2301-0")
    assert batches[-1] == (200, "200-0", "1-0")
    assert numbers(Reader(endpoint, reverse=True, page_bytes=page_bytes)) == list(range(3_000, 0, -1))


def test_limit_reads_the_last_entries(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 1_000)
    assert numbers(Reader(endpoint, reverse=True, limit=3)) == [1000, 999, 998]
    assert numbers(Reader(endpoint, reverse=True, limit=100)) == list(range(1_000, 900, -1))


def test_an_empty_or_missing_stream_has_no_entries(client: redis.Redis, endpoint: Endpoint) -> None:
    assert numbers(Reader(endpoint, reverse=True)) == []
    fill(client, 3)
    client.xtrim("s", maxlen=0)
    assert numbers(Reader(endpoint, reverse=True)) == []


def test_start_and_end_are_included(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 50)
    client.xadd("s", {"n": "51"}, id="50-7")
    for start, end, expected in [
        ("20-0", "18-0", [20, 19, 18]),
        ("50", "50", [51, 50]),
        ("50-3", "49", [50, 49]),
        ("latest", "50-1", [51]),
        ("3", "earliest", [3, 2, 1]),
        ("3", "4", []),
    ]:
        assert numbers(Reader(endpoint, start=start, end=end, reverse=True)) == expected, (start, end)
    moment = datetime.fromtimestamp(0.0495, UTC)
    assert numbers(Reader(endpoint, start=moment, end="48", reverse=True)) == [49, 48]
    assert numbers(Reader(endpoint, end=moment, reverse=True)) == [51, 50]


def test_entries_added_meanwhile_are_not_read(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 2_000)
    with Reader(endpoint, reverse=True, batch_rows=100) as reader:
        first = reader.read()
        assert first is not None
        fill(client, 50, first=2_001)
        rest = [batch.num_rows for batch in reader]
    assert first.num_rows + sum(rest) == 2_000


def test_reading_resumes_below_a_position(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 500)
    fill(client, 500, key="t")
    seen: list[str] = []
    position = "latest"
    # A reader of its own for each batch, as after a crash.
    while True:
        with Reader(endpoint, ["s", "t"], start=position, reverse=True, batch_rows=90) as reader:
            if (batch := reader.read()) is None:
                break
            seen += [f"{batch.stream.decode()}{n}" for n in pa.table(batch).column("entry_id").to_pylist()]
            position = batch.position
    assert seen == [f"{key}{number}-0" for key in "st" for number in range(500, 0, -1)]
    with pytest.raises(ConfigError, match="it needs reverse=True"):
        Reader(endpoint, ["s", "t"], start=position)
    with Reader(endpoint, end="latest") as forward:
        forward_position = forward.position
    with pytest.raises(ConfigError, match="it needs reverse=False"):
        Reader(endpoint, start=forward_position, reverse=True)


@pytest.mark.parametrize("on_loss", ["fail", "report"])
def test_entries_trimmed_before_they_are_read_are_counted(
    client: redis.Redis, endpoint: Endpoint, program: Program, on_loss: str
) -> None:
    fill(client, 2_000)
    read = 0
    # Without the highest ID that was deleted, entries deleted by XDEL may be among those that are missing.
    is_exact = program.counts_entries
    with Reader(endpoint, reverse=True, batch_rows=100, page_bytes=1_000, on_loss=on_loss) as reader:  # type: ignore[arg-type]
        batch = reader.read()
        assert batch is not None
        read += batch.num_rows
        client.xtrim("s", maxlen=500, approximate=False)
        if on_loss == "report":
            batches = list(reader)
            read += sum(batch.num_rows for batch in batches)
            assert (reader.lost, reader.is_lost_exact) == (2_000 - read, is_exact)
            # The loss is found behind the last batch if that is full.
            assert batches[-1].lost in {0, reader.lost}
        else:
            lost = None
            try:
                for batch in reader:
                    read += batch.num_rows
            except DataLossError as error:
                lost = (error.lost, error.exact)
            assert lost == (2_000 - read, is_exact)
            assert reader.read() is None
    assert read in range(500, 2_000)


def test_an_entry_that_does_not_fit_is_reported_and_skipped(client: redis.Redis, endpoint: Endpoint) -> None:
    for number in range(1, 101):
        client.xadd("s", {"n": "x" if number in {1, 50, 100} else str(number)}, id=f"{number}-0")
    seen: list[int] = []
    bad = []
    with Reader(endpoint, reverse=True, schema=pa.schema([("n", pa.int64())])) as reader:
        while not reader.is_finished:
            try:
                if (batch := reader.read()) is not None:
                    seen += pa.table(batch).column("n").to_pylist()
            except FieldError as error:
                bad.append(error.entry_id)
    assert bad == ["100-0", "50-0", "1-0"]
    assert seen == [number for number in range(99, 1, -1) if number != 50]


def test_lost_connections_neither_lose_nor_duplicate_entries(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 20_000)
    chance = random.Random(5)
    seen: list[int] = []
    kills = 0
    with Reader(endpoint, reverse=True, batch_rows=100, page_bytes=5_000) as reader:
        for batch in reader:
            seen += [int(text.split("-")[0]) for text in pa.table(batch).column("entry_id").to_pylist()]
            if chance.random() < 0.2:
                own = client.client_id()
                others = [other["id"] for other in client.client_list() if int(other["id"]) != own]
                kills += sum(client.client_kill_filter(_id=other) for other in others)
    assert kills > 10
    assert seen == list(range(20_000, 0, -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "earliest"}, r"start with reverse must be 'latest', an entry ID .*, got 'earliest'"),
        ({"end": "latest"}, r"end with reverse must be 'earliest', an entry ID .*, got 'latest'"),
        ({"reverse": "yes"}, r"reverse must be"),
    ],
)
def test_invalid_options_of_a_reverse_reader_are_refused(
    endpoint: Endpoint, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Reader(endpoint, **{"reverse": True, **options})  # type: ignore[arg-type]
