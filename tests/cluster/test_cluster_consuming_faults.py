"""A consumer of streams of all nodes while slots move, and nodes fail or stand still."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest
import redis

from headrace import ConnectionFailedError, Consumer, Dispatcher, Endpoint, RetryPolicy
from headrace.consumer import ReadReport
from headrace.testing import LocalCluster, LocalServer
from support.clusters import (
    MoveSlot,
    StartCluster,
    another_master,
    endpoint_of,
    keys_on_all_masters,
    move_as_one,
    owner_after,
)
from support.consumers import consumer_of, next_batch
from support.fake_node import FakeNode, slot_row, slots_reply
from support.groups import pending_of
from support.load import BATCH, RATE, Load
from support.patience import NEVER, PATIENCE
from support.processes import stopped, wait_until

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


@pytest.fixture(params=[None, 1], ids=["own", "shared"])
def connections(request: pytest.FixtureRequest) -> int | None:
    """The most connections to each node: one for each slot, or one that all slots share."""
    return cast("int | None", request.param)


class Worker:
    """Consumes streams until it has as many different entries as it is to have; how often it got each row."""

    def __init__(self, cluster: LocalCluster, keys: list[str], name: str = "c", **options: Any) -> None:
        self.options = {"fields": ["payload"], "retry": PATIENT, "block": 0.5, **options}
        self.endpoint = endpoint_of(cluster, keys[0], command_timeout=10.0, connect_timeout=10.0)
        self.keys, self.name = keys, name
        self.rows: Counter[int] = Counter()
        self.wanted: int | None = None
        self.report: ReadReport | None = None

    def run(self) -> None:
        until = time.monotonic() + 100
        with consumer_of(self.endpoint, self.name, self.keys, **self.options) as consumer:
            batch = None
            # Then what is delivered again, because its acknowledgement was lost with a master.
            while (self.wanted is None or len(self.rows) < self.wanted or batch) and time.monotonic() < until:
                batch = consumer.poll(timeout=0.5)
                if batch is not None:
                    self.rows.update(int(n) for n in pa.record_batch(batch)["payload"].to_pylist())
                    consumer.ack(batch)
            self.report = consumer.flush()


def acked(consumer: Consumer) -> int:
    """What was acknowledged at the nodes that answer."""
    try:
        return consumer.flush(timeout=0.5).acked
    except ConnectionFailedError:
        return consumer.report().acked


def pending(cluster: LocalCluster, keys: list[str], without: LocalServer | None = None) -> int:
    count = 0
    for key in keys:
        with redis.Redis(port=owner_after(cluster, key, without).port or 0) as client:
            count += len(pending_of(client, key))
    return count


def test_each_entry_is_acknowledged_while_slots_move_key_by_key(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    check_entries_while_slots_move(cluster, key, cluster.move_slot, connections)


@pytest.mark.needs("moves-as-one")
def test_each_entry_is_acknowledged_while_slots_move_atomically(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    check_entries_while_slots_move(cluster, key, partial(move_as_one, cluster), connections)


def check_entries_while_slots_move(cluster: LocalCluster, key: str, move: MoveSlot, connections: int | None) -> None:
    keys = keys_on_all_masters(cluster, key)
    worker = Worker(cluster, keys, connections=connections)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, RATE // 4, keys)
        writing, consuming = pool.submit(load.run), pool.submit(worker.run)
        try:
            for name in [*keys, *keys]:
                before = len(worker.rows)
                wait_until(lambda before=before: len(worker.rows) >= before + BATCH or consuming.done())  # type: ignore[misc]
                move(name, another_master(cluster, name))
        finally:
            load.stop()
            writing.result()
            worker.wanted = load.rows
            consuming.result()
    assert load.codes == {}
    assert set(worker.rows) == set(range(load.rows))
    report = worker.report
    assert report is not None
    # Each delivery was acknowledged, or had been acknowledged before: nothing is left.
    assert (report.handed_over, report.pending, report.lost) == (worker.rows.total(), 0, 0)
    assert report.acked + report.stale == worker.rows.total()
    assert worker.rows.total() - load.rows <= report.redelivered
    assert pending(cluster, keys) == 0


def test_a_consumer_recovers_from_a_stale_slot_map(cluster: LocalCluster, key: str) -> None:
    """Its old node refuses the first command of the consumer, which makes the group."""
    other, owner, slot = another_master(cluster, key), cluster.owner(key), cluster.slot(key)
    listed = slots_reply(slot_row(0, slot, other.port or 0), slot_row(slot + 1, 16_383, owner.port or 0))
    with (
        FakeNode(lambda command: listed if command[0] == b"CLUSTER" else b"+OK\r\n") as stale,
        consumer_of(Endpoint(nodes=[f"127.0.0.1:{stale.port}"], stream_key=key), "c", [key]) as consumer,
        redis.Redis(port=owner.port or 0) as client,
    ):
        client.xadd(key, {"n": 1}, id="1-0")
        batch = next_batch(consumer)
        assert batch.entry_ids == ["1-0"]
        consumer.ack(batch)
        assert consumer.flush().acked == 1


def test_a_blocked_consumer_follows_a_moved_stream(cluster: LocalCluster, key: str) -> None:
    """Its old node says that it is deleted, and not where it is: the group is not missing."""
    keys = keys_on_all_masters(cluster, key, 3)
    with consumer_of(endpoint_of(cluster, keys[0]), "c", keys, block=NEVER, claim=False) as consumer:
        assert consumer.poll(timeout=0.5) is None
        for number, name in enumerate(keys, 1):
            cluster.move_slot(name, another_master(cluster, name))
            with redis.Redis(port=cluster.owner(name).port or 0) as client:
                client.xadd(name, {"n": number}, id=f"{number}-0")
            batch = next_batch(consumer)
            assert (batch.stream.decode(), batch.entry_ids) == (name, [f"{number}-0"])
            consumer.ack(batch)
        assert consumer.flush().acked == 3


def test_each_entry_is_acknowledged_when_a_master_is_killed(
    start_cluster: StartCluster, connections: int | None
) -> None:
    """Its streams go on at its replica, those of the others meanwhile."""
    cluster = start_cluster(config={"cluster-require-full-coverage": False})
    keys = keys_on_all_masters(cluster, "s")
    old = cluster.owner(keys[0])
    theirs = [name for name in keys if cluster.owner(name) is not old]
    worker = Worker(cluster, keys, connections=connections)
    written = 1_500
    with Dispatcher(endpoint_of(cluster, keys[0]), retry=PATIENT, wait_replicas=1, wait_timeout=PATIENCE) as dispatcher:
        table = {"payload": [b"%d" % n for n in range(written)], "key": [keys[n % 6] for n in range(written)]}
        dispatcher.produce_batch(pa.table(table), payload="payload", stream_key="key")
        assert dispatcher.flush().ok
    with ThreadPoolExecutor() as pool:
        consuming = pool.submit(worker.run)
        try:
            wait_until(lambda: len(worker.rows) == written or consuming.done())
            old.kill()
            for number, name in enumerate(theirs, written):
                with redis.Redis(port=cluster.owner(name, old).port or 0) as client:
                    client.xadd(name, {"payload": number})
            wait_until(lambda: len(worker.rows) == written + len(theirs) or consuming.done())
            with Dispatcher(endpoint_of(cluster, keys[0]), retry=PATIENT) as again:
                again.produce(b"%d" % (written + len(theirs)))
            worker.wanted = written + len(theirs) + 1
        finally:
            worker.wanted = worker.wanted or 0
            consuming.result()
    assert set(worker.rows) == set(range(written + len(theirs) + 1))
    assert pending(cluster, keys, old) == 0


def test_an_unresponsive_node_does_not_block_entries_or_leases_of_other_nodes(
    start_cluster: StartCluster, connections: int | None
) -> None:
    """Without a policy its silence is an error of one call, as often as it is found out."""
    cluster = start_cluster(replicas=0, config={"cluster-require-full-coverage": False}, node_timeout=NEVER)
    keys = keys_on_all_masters(cluster, "s", 6)
    still = cluster.owner(keys[0])
    theirs = [name for name in keys if cluster.owner(name) is not still]
    endpoint = endpoint_of(cluster, keys[0], command_timeout=1.5, connect_timeout=2.0)
    with consumer_of(endpoint, "c", keys, block=0.2, min_idle=6.0, connections=connections) as consumer:
        assert consumer.poll(timeout=0.1) is None
        for name in (keys[0], theirs[0]):
            with redis.Redis(port=cluster.owner(name).port or 0) as client:
                client.xadd(name, {"n": 0}, id="1-0")
        held = {batch.stream.decode(): batch for batch in (next_batch(consumer), next_batch(consumer))}
        kept = held[theirs[0]]
        failures: list[str] = []
        number = 0
        with stopped(still):
            renewals = consumer.stats().renewals
            while len(failures) < 2 or consumer.stats().renewals < renewals + 4:
                number += 1
                name = theirs[number % len(theirs)]
                with redis.Redis(port=cluster.owner(name, still).port or 0) as client:
                    client.xadd(name, {"n": number}, id=f"{number + 1}-0")
                batch = None
                while batch is None:
                    try:
                        batch = consumer.poll(timeout=PATIENCE)
                    except ConnectionFailedError as error:
                        failures.append(str(error))
                assert (batch.stream.decode(), batch.entry_ids) == (name, [f"{number + 1}-0"])
                consumer.ack(batch)
                kept.check()
            wait_until(lambda: acked(consumer) == number)
            consumer.ack(kept)
            wait_until(lambda: acked(consumer) == number + 1)
        with redis.Redis(port=still.port or 0) as client:
            client.xadd(keys[0], {"n": 99}, id="99-0")
        batch = None
        while batch is None:
            with suppress(ConnectionFailedError):
                batch = consumer.poll(timeout=PATIENCE)
        assert batch.entry_ids == ["99-0"]
        consumer.ack(batch)
        consumer.ack(held[keys[0]])
        report = consumer.flush()
        assert (report.acked, report.pending, report.unknown) == (number + 3, 0, 0)
