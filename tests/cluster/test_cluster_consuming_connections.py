"""Consumers whose slots share connections: `Consumer(connections=…)`."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import ConfigError, Consumer, ConsumerBatch, Endpoint, GroupMissingError
from headrace.testing import LocalCluster, LocalServer
from support.clusters import another_master, endpoint_of, keys_on_all_masters
from support.consumers import as_ids, consumer_of, next_batch
from support.groups import GROUP, pending_of
from support.interrupts import interrupted
from support.patience import NEVER, PATIENCE
from support.processes import killed_in_child, wait_until

# They show over shared connections what test_cluster_consuming*.py show over one for each slot.
pytestmark = pytest.mark.thorough

#: How the names begin that connections for reading have.
READING = f"headrace-consumer:{GROUP}/"


def add(cluster: LocalCluster, key: str, numbers: Iterable[int]) -> None:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        pipeline = client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd(key, {"n": number}, id=f"{number}-0")
        pipeline.execute()


def consumer(cluster: LocalCluster, keys: list[str], name: str = "c", **options: Any) -> Consumer:
    return consumer_of(endpoint_of(cluster, keys[0]), name, keys, **options)


def pending(cluster: LocalCluster, keys: Iterable[str]) -> dict[str, list[str]]:
    found = {}
    for key in keys:
        with redis.Redis(port=cluster.owner(key).port or 0) as client:
            found[key] = sorted(pending_of(client, key))
    return found


def take_all(consumer: Consumer, count: int, *, ack: bool = True) -> dict[str, list[str]]:
    """The IDs of the next entries, which must come, by stream, in the order in which they came."""
    found: dict[str, list[str]] = defaultdict(list)
    while sum(map(len, found.values())) < count:
        batch = next_batch(consumer)
        found[batch.stream.decode()] += batch.entry_ids
        if ack:
            consumer.ack(batch)
    return dict(found)


def connections_at(server: LocalServer) -> tuple[list[str], int]:
    """The flags of each connection for reading (`b` while the server waits for entries), and how many renew leases."""
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        clients = client.client_list()
    reading = [str(client["flags"]) for client in clients if client["name"].startswith(READING)]
    keeping = [client for client in clients if client["name"] == "headrace" and client["cmd"] in ("eval", "evalsha")]
    return reading, len(keeping)


@pytest.mark.parametrize("connections", [1, 2, None])
def test_connections_per_server_do_not_exceed_the_limit(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key, 12)
    for name in keys:
        add(cluster, name, range(1, 101))
    with consumer(cluster, keys, connections=connections, batch_rows=30, min_idle=3.0, block=0.5) as consuming:
        found = take_all(consuming, 1_200, ack=False)
        renewals = consuming.stats().renewals
        wait_until(lambda: consuming.stats().renewals >= renewals + 2_000)
        slots = Counter(cluster.owner(name).port or 0 for name in keys)
        for server in cluster.servers:
            own = slots[server.port or 0]
            # Leases take one, whatever `connections` says.
            keepers = min(own, 1)
            wait_until(lambda server=server, keepers=keepers: connections_at(server)[1] == keepers)  # type: ignore[misc]
        assert consuming.poll(timeout=0.3) is None
        for server in cluster.servers:
            own = slots[server.port or 0]
            reading, keeping = connections_at(server)
            assert len(reading) == (own if connections is None else min(own, connections))
            assert keeping == min(own, 1)
        assert found == {name: as_ids(range(1, 101)) for name in keys}
        before = consuming.stats().requests
        assert consuming.poll(timeout=1.0) is None
        # Rounds of 12 requests follow each other after 1, 2, 4, … 100 ms.
        assert consuming.stats().requests - before < 30 * len(keys)
        for name, ids in found.items():
            consuming.ack_ids(name, ids)
        report = consuming.flush()
        assert (report.handed_over, report.acked, report.redelivered, report.pending) == (1_200, 1_200, 0, 0)
    assert pending(cluster, keys) == {name: [] for name in keys}


@pytest.mark.parametrize("connections", [1, 2])
def test_entries_do_not_wait_for_other_streams(cluster: LocalCluster, key: str, connections: int) -> None:
    """A server that waits for entries of one stream would answer for the others of the connection a minute later."""
    keys = keys_on_all_masters(cluster, key, 9)
    with consumer(cluster, keys, block=NEVER, claim=False, connections=connections) as consuming:
        assert consuming.poll(timeout=0) is None
        for number, name in enumerate([*keys, *reversed(keys)], 1):
            add(cluster, name, [number])
            batch = next_batch(consuming)
            assert (batch.stream.decode(), batch.entry_ids) == (name, as_ids([number]))
            consuming.ack(batch)
            assert consuming.flush().acked == number


def keys_of_one_master(cluster: LocalCluster, key: str, count: int) -> list[str]:
    owner = cluster.owner(key)
    names = (f"{key} {number}" for number in range(1_000))
    return [*itertools.islice((name for name in names if cluster.owner(name) is owner), count)]


def test_streams_that_share_a_connection_take_turns(cluster: LocalCluster, key: str) -> None:
    keys = keys_of_one_master(cluster, key, 5)
    for name in keys:
        add(cluster, name, range(1, 301))
    with consumer(cluster, keys, connections=1, batch_rows=50) as consuming:
        streams: list[str] = []
        for _ in range(6 * len(keys)):
            batch = next_batch(consuming)
            streams.append(batch.stream.decode())
            consuming.ack(batch)
        # None is read to its end before another one begins.
        turns = [sorted(streams[at : at + len(keys)]) for at in range(0, len(streams), len(keys))]
        assert turns == 6 * [sorted(keys)]
        assert consuming.flush().acked == 300 * len(keys)


def test_an_acknowledgement_does_not_change_whose_turn_it_is(cluster: LocalCluster, key: str) -> None:
    keys = keys_of_one_master(cluster, key, 4)
    for name in keys:
        add(cluster, name, range(1, 401))
    with consumer(cluster, keys, connections=1, batch_rows=10) as consuming:
        first = next_batch(consuming)
        streams = [first.stream.decode()]
        # Each acknowledgement is for the first stream; each batch of another one could follow it.
        for entry_id in first.entry_ids:
            consuming.ack_ids(first.stream, [entry_id])
            streams += [next_batch(consuming).stream.decode() for _ in range(2)]
        assert streams == [*itertools.islice(itertools.cycle(streams[: len(keys)]), len(streams))]
        assert {*streams} == {*keys}


def test_a_busy_stream_does_not_starve_other_streams(cluster: LocalCluster, key: str) -> None:
    keys = keys_of_one_master(cluster, key, 3)
    with consumer(cluster, keys, connections=1, batch_rows=10) as consuming:
        assert consuming.poll(timeout=0.3) is None
        add(cluster, keys[0], range(1, 2_001))
        assert next_batch(consuming).stream.decode() == keys[0]
        add(cluster, keys[1], [1])
        # What was asked for before, a batch of the first one, and that of the other one.
        assert keys[1] in [next_batch(consuming).stream.decode() for _ in range(3)]


def test_entries_of_idle_streams_arrive_promptly(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 9)
    with consumer(cluster, keys, connections=1) as consuming, ThreadPoolExecutor() as pool:
        for number, name in enumerate(keys, 1):
            assert consuming.poll(timeout=0.3) is None
            before = consuming.stats().requests
            reading = pool.submit(consuming.poll, timeout=PATIENCE)
            wait_until(lambda before=before: consuming.stats().requests > before)  # type: ignore[misc]
            add(cluster, name, [number])
            before = consuming.stats().requests
            batch = reading.result()
            assert batch is not None
            assert batch.entry_ids == as_ids([number])
            # The rest of a round, a whole one, and one to see whether there is more.
            assert consuming.stats().requests - before <= 3 * len(keys)
        before = consuming.stats().requests
        assert consuming.poll(timeout=2.0) is None
        # A round every 0.1 s, where there is a processor for it.
        assert consuming.stats().requests - before >= 2 * len(keys)


def test_a_connection_with_one_slot_uses_blocking_reads(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    owners = [cluster.owner(name) for name in keys]
    consuming = consumer(cluster, keys, block=NEVER, claim=False, connections=1)
    with consuming, ThreadPoolExecutor() as pool:
        add(cluster, keys[0], [1])
        first = next_batch(consuming)
        reading = pool.submit(consuming.poll, timeout=PATIENCE)
        wait_until(lambda: [connections_at(server)[0] for server in owners] == [["b"]] * 3)
        # The thread that renews leases sends it.
        consuming.ack(first)
        wait_until(lambda: consuming.report().acked == 1)
        add(cluster, keys[2], [7])
        batch = reading.result()
        assert batch is not None
        assert (batch.stream.decode(), batch.entry_ids) == (keys[2], as_ids([7]))
        assert consuming.stats().requests < 30


def test_a_moved_slot_shares_the_blocked_connection_of_its_new_node(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    with consumer(cluster, keys, block=NEVER, claim=False, connections=1) as consuming:
        assert consuming.poll(timeout=0.3) is None
        target = cluster.owner(keys[1])
        cluster.move_slot(keys[0], target)
        for number, name in enumerate([*keys, *keys], 1):
            add(cluster, name, [number])
            batch = next_batch(consuming)
            assert (batch.stream.decode(), batch.entry_ids) == (name, as_ids([number]))
            consuming.ack(batch)
            assert consuming.flush().acked == number
        assert consuming.poll(timeout=0.3) is None
        assert len(connections_at(target)[0]) == 1
    assert pending(cluster, keys) == {name: [] for name in keys}


@pytest.mark.parametrize("connections", [1, 2])
def test_pending_entries_of_a_killed_consumer_are_reclaimed(cluster: LocalCluster, key: str, connections: int) -> None:
    keys = keys_on_all_masters(cluster, key, 9)
    for name in keys:
        add(cluster, name, range(1, 21))

    def work_and_die() -> None:
        dying = consumer(cluster, keys, "dies", connections=connections, batch_rows=10)
        found = take_all(dying, 90, ack=False)
        first = next(iter(found))
        dying.ack_ids(first, found[first][:10])
        assert dying.flush().acked == 10
        os.kill(os.getpid(), signal.SIGKILL)

    killed_in_child(work_and_die)
    left = pending(cluster, keys)
    taken = sum(map(len, left.values()))
    assert taken >= 80
    with consumer(cluster, keys, "lives", connections=connections, min_idle=1.0) as consuming:
        seen: Counter[tuple[str, str]] = Counter()
        while len(seen) < 170:
            batch = consuming.poll(timeout=PATIENCE)
            if batch is not None:
                seen.update((batch.stream.decode(), entry_id) for entry_id in batch.entry_ids)
                consuming.ack(batch)
        report = consuming.flush()
    assert set(seen.values()) == {1}
    assert {(name, entry_id) for name, ids in left.items() for entry_id in ids} <= set(seen)
    assert report.reclaimed >= taken
    assert report.acked == len(seen)


def test_a_second_consumer_with_the_same_name_causes_a_warning(cluster: LocalCluster, key: str) -> None:
    """Neither gives back at its end what may be the other one's."""
    keys = keys_on_all_masters(cluster, key, 6)
    for name in keys:
        add(cluster, name, range(1, 4))
    with consumer(cluster, keys, "twin", connections=1, claim=False) as first:
        found = take_all(first, 18, ack=False)
        with consumer(cluster, keys, "twin", connections=1, claim=False) as second:
            assert take_all(second, 18, ack=False).keys() == found.keys()
            while not second._native.has_namesake:
                assert second.poll(0.05) is None
            with pytest.warns(RuntimeWarning, match="another connection reads as consumer 'twin' of group 'g'"):
                second.poll(0.05)
        # The second one has ended.
        assert pending(cluster, keys) == {name: as_ids(range(1, 4)) for name in keys}
        for name, ids in found.items():
            first.ack_ids(name, ids)
        assert first.flush().acked == 18
    assert pending(cluster, keys) == {name: [] for name in keys}


def test_consumer_groups_are_created_or_required_in_each_slot(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 9)
    with consumer(cluster, keys[:8], connections=1):
        for name in keys[:8]:
            with redis.Redis(port=cluster.owner(name).port or 0) as client:
                assert [group["name"] for group in client.xinfo_groups(name)] == [GROUP.encode()]
    with pytest.raises(GroupMissingError, match=keys[8].rsplit(" ", 1)[-1]):
        consumer(cluster, keys, connections=1, create=False)


def test_leases_and_acknowledgements_follow_a_moved_slot(cluster: LocalCluster, key: str) -> None:
    """Its leases are renewed at its new node, and what is said of its entries goes there."""
    keys = keys_on_all_masters(cluster, key, 9)
    for name in keys:
        add(cluster, name, range(1, 4))
    with consumer(cluster, keys, connections=1, min_idle=3.0) as consuming:
        batches: list[ConsumerBatch] = []
        while sum(batch.num_rows for batch in batches) < 27:
            batches.append(next_batch(consuming))
        for name in keys[:4]:
            cluster.move_slot(name, another_master(cluster, name))
        renewals = consuming.stats().renewals
        wait_until(lambda: consuming.stats().renewals >= renewals + 3 * 27)
        for batch in batches:
            batch.check()
            consuming.ack(batch)
        report = consuming.flush()
        assert (report.acked, report.stale, report.unknown, report.pending) == (27, 0, 0, 0)
    assert pending(cluster, keys) == {name: [] for name in keys}


def test_ctrl_c_during_a_pause(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 6)
    with consumer(cluster, keys, connections=1) as consuming:
        with interrupted():
            consuming.poll(timeout=PATIENCE)
        add(cluster, keys[5], [7])
        assert next_batch(consuming).entry_ids == as_ids([7])


@pytest.mark.parametrize("wrong", [0, -1, 16_385, 1.5, "two", True])
def test_invalid_numbers_of_connections_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="connections must be") as caught:
        consumer_of(Endpoint(host="localhost", stream_key="s"), connections=wrong)
    assert caught.value.option == "connections"


def test_a_single_server_gets_one_connection(any_server: LocalServer) -> None:
    endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key="s", shards=4)
    with consumer_of(endpoint, connections=1) as consuming:
        assert consuming.poll(timeout=0) is None
        assert consuming.stats().connections == 1
