"""Single entries of a consumer: acknowledged, failed, given back; and refused where they are not its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import ConfigError, Consumer, Entry, Reader
from headrace.errors import ClosedError
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, next_batch, set_pending
from support.groups import GROUP, add, pending_of, read
from support.pipelines import endpoint_to

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def test_each_entry_is_settled_alone(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    add(client, 6)
    with consumer_of(any_server, max_failures=1, dead_letter_key="dead") as consumer:
        batch = next_batch(consumer)
        assert (len(batch), [entry.id for entry in batch]) == (6, batch.entry_ids)
        for entry in batch:
            assert entry.fields == {"field": b"value"}
        consumer.ack(batch[0])
        consumer.ack(batch[-1])
        consumer.fail(batch[1], "no number")
        consumer.release(batch[2])
        report = consumer.flush()
        assert (report.acked, report.dead, report.released, report.pending) == (2, 1, 1, 2)
        assert list(pending_of(client)) == as_ids([3, 4, 5])
        (_, letter), *others = client.xrange("dead")
        assert not others
        assert b"no number" in letter.values()
        for entry in batch:  # those that are not settled yet, and no other
            consumer.ack(entry)
        assert consumer.flush() == (6, 0, 0, 4, 0, 0, 1, 1, 0, 0)
        assert list(pending_of(client)) == as_ids([3])


def test_what_was_said_of_an_entry_is_not_said_again(server: LocalServer, client: Any) -> None:
    add(client, 2)
    with consumer_of(server) as consumer:
        batch = next_batch(consumer)
        first, second = batch
        for _ in range(2):
            consumer.ack(first)
            consumer.fail(first, "late")
            consumer.release(first)
            assert consumer.flush() == (2, 0, 0, 1, 0, 0, 0, 0, 0, 1)
        consumer.ack(batch)
        consumer.ack(second)
        assert consumer.flush() == (2, 0, 0, 2, 0, 0, 0, 0, 0, 0)
        assert pending_of(client) == {}


def test_an_entry_knows_its_deliveries_whatever_the_metadata(server: LocalServer, client: Any) -> None:
    with consumer_of(server, "other"):
        pass
    ids = add(client, 3)
    read(client, "other", 2)
    set_pending(client, "other", ids[:2], key=b"events", idle=10**8, retrycount=1)
    for metadata in (["deliveries", "reclaimed"], []):
        found: dict[str, tuple[int, bool]] = {}
        with consumer_of(server, fields=["field"], metadata=metadata, min_idle=60.0, claim_interval=0.1) as consumer:
            while len(found) < 3:
                batch = next_batch(consumer)
                for entry, row in zip(batch, batch.to_pylist(), strict=True):
                    found[entry.id] = (entry.deliveries, entry.reclaimed)
                    assert entry.fields == {"field": "value"}
                    assert [row[name] for name in metadata] == [entry.deliveries, entry.reclaimed][: len(metadata)]
                consumer.release(batch)
        assert found == {"1-0": (2, True), "2-0": (2, True), "3-0": (1, False)}
        set_pending(client, "other", ids[:2], key=b"events", idle=10**8, retrycount=1)
        client.xgroup_setid("events", GROUP, "2-0")
        client.xack("events", GROUP, "3-0")


def test_an_entry_has_the_time_of_its_id(server: LocalServer, client: Any) -> None:
    add(client, 1)
    with consumer_of(server) as consumer:
        (entry,) = next_batch(consumer)
        assert (entry.stream, entry.timestamp) == (b"events", datetime(1970, 1, 1, microsecond=1_000, tzinfo=UTC))
        assert (entry.deliveries, entry.reclaimed) == (1, False)
        assert repr(entry) == "<Entry: 1-0 of 'events', 'field': b'value'>"


@pytest.mark.parametrize(
    "call", [Consumer.ack, lambda c, entry: c.fail(entry, "why"), Consumer.release], ids=["ack", "fail", "release"]
)
def test_an_entry_of_another_is_refused(
    call: Callable[[Consumer, Any], None], server: LocalServer, client: Any
) -> None:
    add(client, 2)
    with (
        consumer_of(server) as consumer,
        consumer_of(server, "other") as other,
        Reader(endpoint_to(server), end="latest") as reader,
    ):
        (batch,) = reader
        with pytest.raises(TypeError, match=r"or an entry of one, got an Entry of a Reader; \w+_ids takes entry IDs"):
            call(consumer, batch[0])
        own = next_batch(consumer)
        message = "batch must belong to this consumer, got one of another consumer"
        with pytest.raises(ConfigError, match=re.escape(message)):
            call(other, own[0])
        with pytest.raises(
            TypeError, match=re.escape("batch must be one that poll returned, or an entry of one, got list")
        ):
            call(consumer, [own[0]])
        assert consumer.flush().pending == 2
        call(consumer, own[0])
        assert consumer.flush().pending == 1
    with pytest.raises(ClosedError):
        call(consumer, own[1])


def test_a_mask_belongs_to_a_batch(server: LocalServer, client: Any) -> None:
    add(client, 1)
    with consumer_of(server) as consumer:
        batch = next_batch(consumer)
        message = "mask selects rows of a batch, got an Entry: leave it out"
        calls: list[Callable[[], None]] = [
            lambda: consumer.ack(batch[0], [True]),
            lambda: consumer.fail(batch[0], "why", mask=[True]),
            lambda: consumer.release(batch[0], mask=[True]),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=message):
                call()
        assert consumer.report().pending == 1


def test_entries_of_many_batches_are_settled_in_any_order(server: LocalServer, client: Any) -> None:
    ids = add(client, 500)
    with consumer_of(server, batch_rows=7) as consumer:
        entries: list[Entry] = []
        while len(entries) < 500:
            entries += next_batch(consumer)
        assert [entry.id for entry in entries] == ids
        for entry in entries[::-1]:
            consumer.ack(entry)
        assert consumer.flush().acked == 500
        assert pending_of(client) == {}
