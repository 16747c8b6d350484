"""One stream that cannot be read does not stop the others of a cluster, in its own slot or in others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from headrace import Consumer, HeadraceError, Reader
from headrace.testing import LocalCluster
from support.clusters import endpoint_of, keys_on_all_masters
from support.consumers import consumer_of
from support.processes import wait_until

Open = Callable[[LocalCluster, list[str], "int | None"], "Reader | Consumer"]


def reader_of(cluster: LocalCluster, keys: list[str], connections: int | None) -> Reader:
    return Reader(endpoint_of(cluster, keys[0]), keys, block=0.05, connections=connections)


def consumer(cluster: LocalCluster, keys: list[str], connections: int | None) -> Consumer:
    return consumer_of(endpoint_of(cluster, keys[0]), "c", keys, block=0.05, connections=connections)


@pytest.mark.parametrize("connections", [None, 1], ids=["own", "shared"])
@pytest.mark.parametrize("open_", [reader_of, consumer])
@pytest.mark.parametrize("is_overwritten", [True, False], ids=["overwritten", "deleted"])
def test_a_bad_stream_of_a_cluster_is_reported_once_and_can_be_dropped(
    cluster: LocalCluster, key: str, connections: int | None, open_: Open, is_overwritten: bool
) -> None:
    keys = [f"{{{key}}}bad", f"{{{key}}}good", *keys_on_all_masters(cluster, key, 3)]
    bad, others = keys[0], keys[1:]
    found: Counter[str] = Counter()
    errors: list[HeadraceError] = []

    def client_of(name: str) -> Any:
        return redis.Redis(port=cluster.owner(name).port or 0)

    def add(names: list[str]) -> None:
        for name in names:
            with client_of(name) as client:
                client.xadd(name, {"n": 1})

    def has_read(count: int, names: list[str]) -> bool:
        try:
            batch = reading.poll(0.01) if isinstance(reading, Consumer) else reading.read(0.01)
        except HeadraceError as error:
            errors.append(error)
        else:
            if batch is not None:
                found[batch.stream.decode()] += batch.num_rows
        return all(found[name] == count for name in names)

    with open_(cluster, keys, connections) as reading:
        add(keys)
        wait_until(lambda: has_read(1, keys))
        with client_of(bad) as client:
            client.delete(bad)
            if is_overwritten:
                client.set(bad, "a string")
        for count in range(2, 5):
            add(others)
            wait_until(partial(has_read, count, others))
        wait_until(lambda: has_read(4, others) and errors != [])
        (error,) = errors
        stream = getattr(error, "stream", b"")
        assert stream.decode() == bad
        reading.drop_stream(stream)
        with client_of(bad) as client:
            client.delete(bad)
        add(keys)
        wait_until(lambda: has_read(5, others))
    assert (found[bad], len(errors)) == (1, 1)
