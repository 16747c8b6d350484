"""A reader of streams of all nodes while slots move, and nodes fail or stand still."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConnectionFailedError, Dispatcher, ReadBatch, Reader, RetryPolicy
from headrace.testing import LocalCluster, LocalServer
from support.clusters import (
    MoveSlot,
    StartCluster,
    another_master,
    endpoint_of,
    keys_on_all_masters,
    move_as_one,
    rows_of,
)
from support.load import BATCH, RATE, Load
from support.patience import NEVER, PATIENCE
from support.processes import stopped, wait_until

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


class Follower:
    """Reads streams until it has as many rows as it is to have; what it got of each."""

    def __init__(self, cluster: LocalCluster, keys: list[str], **options: Any) -> None:
        self.options = {"fields": ["payload"], "retry": PATIENT, "block": 0.5, **options}
        self.endpoint = endpoint_of(cluster, keys[0], command_timeout=10.0, connect_timeout=10.0)
        self.keys = keys
        self.found: dict[str, list[int]] = defaultdict(list)
        self.wanted: int | None = None

    @property
    def rows(self) -> int:
        return sum(map(len, list(self.found.values())))

    def run(self) -> None:
        until = time.monotonic() + 100
        with Reader(self.endpoint, self.keys, **self.options) as reader:
            while (self.wanted is None or self.rows < self.wanted) and time.monotonic() < until:
                batch = reader.read(timeout=0.2)
                if batch is not None:
                    self.found[batch.stream.decode()] += rows_in(batch)


def test_each_entry_is_read_once_while_slots_move_key_by_key(cluster: LocalCluster, key: str) -> None:
    check_entries_while_slots_move(cluster, key, cluster.move_slot)


@pytest.mark.needs("moves-as-one")
def test_each_entry_is_read_once_while_slots_move_atomically(cluster: LocalCluster, key: str) -> None:
    check_entries_while_slots_move(cluster, key, partial(move_as_one, cluster))


def check_entries_while_slots_move(cluster: LocalCluster, key: str, move: MoveSlot) -> None:
    keys = keys_on_all_masters(cluster, key)
    follower = Follower(cluster, keys)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, RATE // 4, keys)
        writing, reading = pool.submit(load.run), pool.submit(follower.run)
        try:
            for name in [*keys, *keys]:
                before = follower.rows
                wait_until(lambda before=before: follower.rows >= before + BATCH or reading.done())  # type: ignore[misc]
                move(name, another_master(cluster, name))
        finally:
            load.stop()
            writing.result()
            follower.wanted = load.rows
            reading.result()
    assert load.codes == {}
    assert dict(follower.found) == {name: list(range(n, load.rows, len(keys))) for n, name in enumerate(keys)}


def test_each_entry_is_read_once_when_a_master_is_killed(start_cluster: StartCluster) -> None:
    """Its streams go on at its replica, those of the others meanwhile."""
    cluster = start_cluster(config={"cluster-require-full-coverage": False})
    keys = keys_on_all_masters(cluster, "s")
    old = cluster.owner(keys[0])
    theirs = [name for name in keys if cluster.owner(name) is not old]
    follower = Follower(cluster, keys)
    with Dispatcher(endpoint_of(cluster, keys[0]), retry=PATIENT, wait_replicas=1, wait_timeout=PATIENCE) as dispatcher:
        for number, name in enumerate(keys):
            dispatcher.produce_batch(rows(name, range(100 * number)), payload="payload", stream_key="key")
        assert dispatcher.flush().ok
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(follower.run)
            try:
                wait_until(lambda: follower.rows == 1_500 or reading.done())
                old.kill()
                for name in theirs:
                    write(cluster, name, old)
                wait_until(lambda: follower.rows == 1_500 + len(theirs) or reading.done())
                with Dispatcher(endpoint_of(cluster, keys[0]), retry=PATIENT) as again:
                    again.produce(b"7")
                follower.wanted = 1_501 + len(theirs)
            finally:
                follower.wanted = follower.wanted or 0
                reading.result()
    expected = {name: [*range(100 * n), *([7] if name in [*theirs, keys[0]] else [])] for n, name in enumerate(keys)}
    assert {name: follower.found[name] for name in keys} == expected
    assert rows_of(cluster, keys[0], old) == [7]


def test_an_unresponsive_node_does_not_delay_other_nodes(start_cluster: StartCluster) -> None:
    """Without a policy its silence is an error of one call, as often as it is found out; the others are read."""
    cluster = start_cluster(replicas=0, config={"cluster-require-full-coverage": False}, node_timeout=NEVER)
    keys = keys_on_all_masters(cluster, "s", 3)
    still = cluster.owner(keys[0])
    endpoint = endpoint_of(cluster, keys[0], command_timeout=1.5, connect_timeout=3.0)
    with Reader(endpoint, keys, fields=["payload"], block=0.2) as reader:
        assert reader.read(timeout=0.1) is None
        failures: list[str] = []
        with stopped(still):
            for number in itertools.count():
                name = keys[1 + number % 2]
                write(cluster, name, still, number)
                batch = None
                while batch is None:
                    try:
                        batch = reader.read(timeout=PATIENCE)
                    except ConnectionFailedError as error:
                        failures.append(str(error))
                assert (batch.stream.decode(), rows_in(batch)) == (name, [number])
                if len(failures) >= 2:
                    break
        assert all(f"127.0.0.1:{still.port}" in failure or keys[0] in failure for failure in failures)
        write(cluster, keys[0], None, 99)
        batch = reader.read(timeout=PATIENCE)
        assert batch is not None
        assert rows_in(batch) == [99]


def rows_in(batch: ReadBatch) -> list[int]:
    return [int(n) for n in pa.record_batch(batch)["payload"].to_pylist()]


def rows(key: str, numbers: range) -> pa.Table:
    return pa.table({"payload": [b"%d" % n for n in numbers], "key": [key] * len(numbers)})


def write(cluster: LocalCluster, key: str, without: LocalServer | None, number: int = 7) -> None:
    """Write an entry at the owner of the stream, as servers other than `without` see it."""
    with redis.Redis(port=cluster.owner(key, without).port or 0) as client:
        client.xadd(key, {"payload": number})
