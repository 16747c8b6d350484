"""What nothing fails of, but a caller did probably not expect, is logged once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Consumer, Endpoint, FieldError, Reader, read_dead_letters, reader
from headrace.testing import LocalServer
from support.processes import wait_until

Connect = Callable[..., redis.Redis]

CANARY = "canary-notices"


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> Any:
    return connect(any_server)


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s", username="default", password=CANARY)


def read_all(endpoint: Endpoint, streams: list[str] | None = None, **options: Any) -> pa.Table:
    options.setdefault("end", "latest")
    with Reader(endpoint, streams, **options) as opened:
        batches = [pa.record_batch(batch) for batch in opened]
        return pa.Table.from_batches(batches, pa.schema(opened))


@pytest.mark.parametrize("options", [{}, {"reverse": True, "start": "latest", "end": "earliest"}])
def test_streams_that_do_not_exist_are_named_once(
    endpoint: Endpoint,
    client: Any,
    any_server: LocalServer,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    client.xadd("s", {"a": 1})
    client.xgroup_create("empty", "g", mkstream=True)
    with Reader(endpoint, ["ordrs", "s", "empty"], **{"end": "latest", **options}) as opened:
        assert sum(batch.num_rows for batch in opened) == 1
        assert opened.read() is None
    where = f"unix://{any_server.unix_socket}?username=default"
    assert caplog.messages == [f"stream 'ordrs' does not exist at {where}, and counts as empty"]
    caplog.clear()
    assert read_all(endpoint, ["s", *"abcde"], **options).num_rows == 1
    assert caplog.messages == [f"streams 'a', 'b', 'c' and 2 more do not exist at {where}, and count as empty"]
    assert CANARY not in caplog.text


def test_a_reader_that_follows_says_at_once_that_its_stream_does_not_exist(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Reader(endpoint) as opened:
        assert opened.read(timeout=0.01) is None
        assert len(caplog.messages) == 1
        client.xadd("s", {"a": 1})
        batch = opened.read()
        assert batch is not None
        assert batch.num_rows == 1
    assert len(caplog.messages) == 1


def test_a_shard_without_messages_is_no_surprise(
    endpoint: Endpoint, any_server: LocalServer, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sharded = Endpoint.from_url(any_server.url, stream_key="s", shards=2)
    client.xadd("s:0", {"a": 1})
    assert read_all(sharded).num_rows == 1
    assert caplog.messages == []


SCHEMA = pa.schema({"order_id": pa.int64(), "totl": pa.float64()})
MISSPELT = "no entry has the field 'totl', so its column is null; did you mean 'total'?"


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_rows": 1}, {"reverse": True, "start": "latest", "end": "earliest"}, {"unpack": "json"}],
    ids=["forward", "small batches", "backward", "json"],
)
def test_a_misspelt_column_is_named_once(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    for number in range(3):
        row = {"order_id": number, "total": 2.5}
        client.xadd("s", {"payload": json.dumps(row)} if "unpack" in options else row)
    assert read_all(endpoint, schema=SCHEMA, **options)["totl"].null_count == 3
    assert caplog.messages == [MISSPELT]


def test_a_table_of_a_reader_and_a_consumer_name_a_misspelt_column_too(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        client.xadd("s", {"order_id": number, "total": 2.5})
    with Reader(endpoint, schema=SCHEMA, end="latest") as opened:
        assert pa.table(opened).num_rows == 3
    assert caplog.messages == [MISSPELT]
    with Consumer(endpoint, group="g", consumer="c", schema=SCHEMA, batch_rows=1) as consumer:
        for _ in range(3):
            consumer.ack(next(consumer))
    assert caplog.messages == [MISSPELT] * 2


@pytest.mark.parametrize(
    ("entry", "schema"),
    [
        # An optional field, and no other one that is meant.
        ({"order_id": 1, "total": 2}, {"order_id": pa.int64(), "refunded_at": pa.string()}),
        # The field is there.
        ({"order_id": 1, "total": "two", "totals": 2}, {"order_id": pa.int64(), "total": pa.float64()}),
        # Its similar neighbour is requested too.
        ({"order_id": 1, "total": 2}, {"order_id": pa.int64(), "total": pa.float64(), "totl": pa.float64()}),
    ],
    ids=["optional", "bad value", "both"],
)
def test_a_column_of_nulls_alone_is_no_surprise(
    endpoint: Endpoint,
    client: Any,
    caplog: pytest.LogCaptureFixture,
    entry: dict[str, Any],
    schema: dict[str, pa.DataType],
) -> None:
    client.xadd("s", entry)
    assert read_all(endpoint, schema=pa.schema(schema), on_bad_field="null").num_rows == 1
    assert caplog.messages == []


def test_a_column_that_has_a_value_later_is_not_named_then(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.xadd("s", {"order_id": 1, "total": 2, "totl": 3})
    client.xadd("s", {"order_id": 1, "total": 2})
    assert read_all(endpoint, schema=SCHEMA, batch_rows=1)["totl"].to_pylist() == [3.0, None]
    assert caplog.messages == []


def test_entries_that_are_no_dead_letters_are_counted_once(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    letter = {"a": "1", "dead:stream": "s", "dead:id": "1-0", "dead:reason": "no", "dead:failures": "3"}
    client.xadd("letters", letter)
    assert sum(pa.table(rows).num_rows for rows in read_dead_letters(endpoint, "letters")) == 1
    assert caplog.messages == []
    for number in range(2):
        client.xadd("letters", {"n": number})
    assert sum(pa.table(rows).num_rows for rows in read_dead_letters(endpoint, "letters")) == 3
    assert caplog.messages == [
        "2 of the first 3 entries of 'letters' are no dead letters: they have nulls, and all their fields in `fields`; "
        "a Reader reads ordinary streams"
    ]


def test_a_batch_of_a_call_that_was_given_up_is_reported(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.xgroup_create("s", "g", mkstream=True)

    async def give_up(opened: Reader) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(opened.read, 60.0), 0.01)
        client.xadd("s", {"n": 1})

    with Reader(endpoint) as opened:
        asyncio.run(give_up(opened))  # waits for the thread
        (text,) = caplog.messages
        assert text.startswith("a batch with 1 row of 's' was dropped unseen: the call that read it was given up")
        client.xadd("s", {"n": 2})
        opened.read()
        assert caplog.messages == [text]  # a program that ignores batches is told once


def test_an_exception_that_drops_a_batch_is_raised(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.xadd("s", {"n": 1})
    client.xadd("s", {"n": "none"})
    schema = pa.schema({"n": pa.int64()})
    with Reader(endpoint, end="latest", schema=schema, batch_rows=1) as opened:
        with pytest.raises(FieldError, match="none"):
            list(opened)  # it holds the first batch
        assert [text.partition(":")[0] for text in caplog.messages] == ["a batch with 1 row of 's' was dropped unseen"]


@pytest.mark.parametrize(
    "look",
    [
        lambda batch: batch.num_rows,
        lambda batch: batch.position,
        lambda batch: batch.last_id,
        lambda batch: batch.stream,
        repr,
        pa.record_batch,
    ],
)
def test_a_batch_that_was_looked_at_is_not_reported(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture, look: Callable[[object], object]
) -> None:
    client.xadd("s", {"n": 1})
    with Reader(endpoint) as opened:
        look(opened.read())
    client.xadd("s", {"n": 2})
    with Reader(endpoint, end="latest") as opened:
        assert pa.table(opened).num_rows == 2
    assert caplog.messages == []


def test_a_call_that_nothing_can_interrupt_says_so(
    endpoint: Endpoint, client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_QUIET", 0.01)
    client.xgroup_create("s", "g", mkstream=True)
    with Reader(endpoint) as opened, ThreadPoolExecutor() as pool:
        shown = repr(opened)
        reading = pool.submit(opened.read)
        wait_until(lambda: caplog.messages)
        client.xadd("s", {"n": 1})
        assert pa.record_batch(reading.result()).num_rows == 1
        reading = pool.submit(opened.read)
        client.xadd("s", {"n": 2})
        assert pa.record_batch(reading.result()).num_rows == 1
        (text,) = caplog.messages
    assert text.startswith(f"{shown}: read() has waited for 0 s, and nothing but an entry ends it in this thread")


def test_only_another_thread_than_the_main_one_is_warned() -> None:
    assert not reader._is_in_other_thread()
    with ThreadPoolExecutor() as pool:
        assert pool.submit(reader._is_in_other_thread).result()
