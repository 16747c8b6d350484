"""Consumers of a group on real servers, and the entries that they returned."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace import Consumer, Endpoint
from headrace.consumer import ConsumerBatch
from headrace.testing import LocalServer
from support.groups import GROUP, Client
from support.patience import PATIENCE
from support.pipelines import endpoint_to


def consumer_of(
    where: LocalServer | Endpoint, name: str = "c", streams: Iterable[str | bytes] | None = None, **options: Any
) -> Consumer:
    """A consumer of the group `GROUP` that returns entries as they come, without waiting for more."""
    endpoint = where if isinstance(where, Endpoint) else endpoint_to(where)
    return Consumer(endpoint, streams, **{"group": GROUP, "consumer": name, "linger": 0.0, **options})


def next_batch(consumer: Consumer) -> ConsumerBatch:
    """The next batch, which must come."""
    batch = consumer.poll(PATIENCE)
    assert batch is not None, "no batch came"
    return batch


def take(consumer: Consumer, count: int, *, ack: bool = False) -> list[str]:
    """The IDs of the next `count` entries, which must come, in the order in which they came."""
    found: list[str] = []
    while len(found) < count:
        batch = next_batch(consumer)
        found += batch.entry_ids
        if ack:
            consumer.ack(batch)
    assert len(found) == count
    return found


def drain(consumer: Consumer, seconds: float = 0.05) -> list[str]:
    """Acknowledge all entries until none has come for `seconds`, and return their IDs."""
    found: list[str] = []
    while (batch := consumer.poll(seconds)) is not None:
        found += batch.entry_ids
        consumer.ack(batch)
    return found


def fields_of(batch: ConsumerBatch) -> list[dict[str, bytes]]:
    """The fields of each entry of a batch."""
    return [dict(fields) for fields in pa.record_batch(batch)["fields"].to_pylist()]


def as_ids(numbers: Iterable[int]) -> list[str]:
    """The IDs that `support.groups.add` uses."""
    return [f"{number}-0" for number in numbers]


def add_sizes(client: Client, sizes: Iterable[int], key: str | bytes) -> None:
    """Add the entries 1-0, 2-0, … with values of these sizes in bytes."""
    for number, size in zip(itertools.count(1), sizes):
        client.execute_command("XADD", key, f"{number}-0", "v", b"v" * size)


def set_pending(
    client: Client, consumer: str, ids: Iterable[str], *, key: str | bytes, group: str = GROUP, **claim: int
) -> None:
    """Give pending entries to a consumer: `idle=` in milliseconds, `retrycount=` deliveries."""
    client.xclaim(key, group, consumer, 0, list(ids), justid=True, **claim)
