"""Readers whose slots share connections: `Reader(connections=…)`."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import (
    ConfigError,
    ConnectionFailedError,
    Dispatcher,
    Endpoint,
    ReadBatch,
    Reader,
    RetryPolicy,
    StreamReplacedError,
)
from headrace.testing import LocalCluster, LocalServer
from support.clusters import (
    Move,
    MoveSlot,
    StartCluster,
    another_master,
    endpoint_of,
    keys_on_all_masters,
    move_as_one,
    rows_of,
)
from support.interrupts import interrupted
from support.load import BATCH, RATE, Load
from support.patience import LATE, NEVER, PATIENCE
from support.processes import stopped, wait_until

# They show over shared connections what test_cluster_reading*.py show over one for each slot.
pytestmark = pytest.mark.thorough

SHARDS = 12
PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)
#: The commands that a reader sends, as servers name them.
READS = ("xread", "xrange", "xinfo", "xinfo|stream")


def add(cluster: LocalCluster, key: str, *numbers: int, without: LocalServer | None = None) -> None:
    with redis.Redis(port=cluster.owner(key, without).port or 0) as client:
        for number in numbers:
            client.xadd(key, {"payload": number})


def rows_in(batch: ReadBatch) -> list[int]:
    return [int(n) for n in pa.record_batch(batch)["payload"].to_pylist()]


def by_stream(batches: Iterable[ReadBatch]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for batch in batches:
        found[batch.stream] += rows_in(batch)
    return dict(found)


def readers_at(server: LocalServer) -> list[str]:
    """The flags of each connection of a reader at a server: `b` is there while the server waits for entries."""
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        clients = client.client_list()
    return [str(client["flags"]) for client in clients if client["cmd"] in READS]


def per_master(cluster: LocalCluster, keys: Iterable[str | bytes]) -> Counter[int]:
    """How many of the streams each master has, by its port."""
    names = (key if isinstance(key, str) else key.decode() for key in keys)
    return Counter(cluster.owner(name).port or 0 for name in names)


def shards_of(cluster: LocalCluster, key: str, rows: int) -> tuple[Endpoint, dict[bytes, list[int]]]:
    """A sharded stream with rows, and the rows of each shard in their order."""
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names="spread")
    table = pa.table({"payload": [b"%d" % row for row in range(rows)], "key": [f"{row % 40}" for row in range(rows)]})
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table, shard_key="key")
        assert dispatcher.flush().ok
    return endpoint, {name: rows_of(cluster, name.decode()) for name in endpoint.stream_keys}


@pytest.mark.parametrize("connections", [1, 2, 3])
def test_each_entry_of_all_shards_is_read_once_and_in_order(cluster: LocalCluster, key: str, connections: int) -> None:
    endpoint, expected = shards_of(cluster, key, 3_000)
    owners = per_master(cluster, endpoint.stream_keys)
    with Reader(endpoint, end="latest", fields=["payload"], batch_rows=70, connections=connections) as reader:
        batches = list(reader)
        stats, expected_connections = reader.stats(), sum(min(slots, connections) for slots in owners.values())
        assert (stats.connections, stats.reconnects) == (expected_connections, 0)
        assert (reader.is_finished, reader.lost, reader.is_lost_exact) == (True, 0, True)
    assert by_stream(batches) == expected


def test_a_replaced_connection_counts_as_a_reconnect(cluster: LocalCluster, key: str) -> None:
    endpoint, _ = shards_of(cluster, key, 300)
    masters = len(per_master(cluster, endpoint.stream_keys))
    with Reader(endpoint, fields=["payload"], connections=1, retry=PATIENT) as reader:

        def read_to(count: int) -> None:
            while reader.stats().rows < count:
                reader.read()

        read_to(300)
        with redis.Redis(port=cluster.owner(endpoint.stream_keys[0].decode()).port or 0) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        shards_of(cluster, key, 300)
        read_to(600)
        stats = reader.stats()
    assert (stats.connections, stats.reconnects) == (masters + 1, 1)


def test_streams_that_share_a_connection_take_turns(cluster: LocalCluster, key: str) -> None:
    owner = cluster.owner(key)
    names = (f"{key} {number}" for number in range(1_000))
    keys = [*itertools.islice((name for name in names if cluster.owner(name) is owner), 5)]
    with redis.Redis(port=owner.port or 0) as client:
        for name in keys:
            pipeline = client.pipeline(transaction=False)
            for number in range(500):
                pipeline.xadd(name, {"payload": number})
            pipeline.execute()
    endpoint = endpoint_of(cluster, key)
    with Reader(endpoint, keys, end="latest", fields=["payload"], batch_rows=50, connections=1) as reader:
        batches = list(reader)
        assert reader.stats().connections == 1
    assert by_stream(batches) == {name.encode(): list(range(500)) for name in keys}
    # Ten batches of each: none is read to its end before another one begins.
    assert len({batch.stream for batch in batches[:10]}) == len(keys)


def test_a_busy_stream_does_not_starve_other_streams(cluster: LocalCluster, key: str) -> None:
    owner = cluster.owner(key)
    names = (f"{key} {number}" for number in range(1_000))
    keys = [*itertools.islice((name for name in names if cluster.owner(name) is owner), 3)]
    with Reader(endpoint_of(cluster, key), keys, fields=["payload"], batch_rows=10, linger=0, connections=1) as reader:
        assert reader.read(timeout=0.3) is None
        add(cluster, keys[0], *range(2_000))
        streams = []
        for number in range(4):
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            streams.append(batch.stream.decode())
            if number == 0:
                add(cluster, keys[1], 1)
        # What was asked for before, a batch of the first one, and that of the other one.
        assert streams[0] == keys[0]
        assert keys[1] in streams


@pytest.mark.parametrize("connections", [1, 2, None])
def test_connections_per_server_do_not_exceed_the_limit(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    endpoint, expected = shards_of(cluster, key, 600)
    owners = per_master(cluster, endpoint.stream_keys)
    with Reader(endpoint, fields=["payload"], connections=connections, block=0.5) as reader:
        found: dict[bytes, list[int]] = defaultdict(list)
        while sum(map(len, found.values())) < 600:
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            found[batch.stream] += rows_in(batch)
        assert reader.read(timeout=0.3) is None
        assert found == expected
        for server in cluster.servers:
            slots = owners[server.port or 0]
            assert len(readers_at(server)) == (slots if connections is None else min(slots, connections))
        before = reader.stats().requests
        assert reader.read(timeout=1.0) is None
        # Rounds of 12 requests follow each other after 1, 2, 4, … 100 ms.
        assert reader.stats().requests - before < 25 * SHARDS


@pytest.mark.parametrize("connections", [1, 2])
def test_entries_do_not_wait_for_other_streams(cluster: LocalCluster, key: str, connections: int) -> None:
    """A server that waits for entries of one stream would answer for the others of the connection a minute later."""
    keys = keys_on_all_masters(cluster, key, 9)
    with Reader(
        endpoint_of(cluster, keys[0]), keys, fields=["payload"], block=NEVER, connections=connections
    ) as reader:
        assert reader.read(timeout=0) is None
        for number, name in enumerate([*keys, *reversed(keys)]):
            add(cluster, name, number)
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            assert (batch.stream.decode(), rows_in(batch)) == (name, [number])


def test_entries_of_idle_streams_arrive_promptly(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 9)
    reader = Reader(endpoint_of(cluster, keys[0]), keys, fields=["payload"], connections=1)
    with reader, ThreadPoolExecutor() as pool:
        for number, name in enumerate(keys):
            assert reader.read(timeout=0.3) is None
            before = reader.stats().requests
            reading = pool.submit(reader.read, timeout=PATIENCE)
            wait_until(lambda before=before: reader.stats().requests > before)  # type: ignore[misc]
            add(cluster, name, number)
            before = reader.stats().requests
            batch = reading.result()
            assert batch is not None
            assert rows_in(batch) == [number]
            # The rest of a round, a whole one, and one to see whether there is more.
            assert reader.stats().requests - before <= 3 * len(keys)
        before = reader.stats().requests
        assert reader.read(timeout=2.0) is None
        # A round every 0.1 s, where there is a processor for it.
        assert reader.stats().requests - before >= 2 * len(keys)


def test_a_connection_with_one_slot_uses_blocking_reads(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    owners = [cluster.owner(name) for name in keys]
    reader = Reader(endpoint_of(cluster, keys[0]), keys, fields=["payload"], block=NEVER, connections=1)
    with reader, ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.read, timeout=PATIENCE)
        wait_until(lambda: [readers_at(server) for server in owners] == [["b"]] * 3)
        add(cluster, keys[2], 7)
        batch = reading.result()
        assert batch is not None
        assert (batch.stream.decode(), rows_in(batch)) == (keys[2], [7])
        assert reader.stats().requests < 20


def test_a_moved_slot_shares_the_blocked_connection_of_its_new_node(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    with Reader(endpoint_of(cluster, keys[0]), keys, fields=["payload"], block=NEVER, connections=1) as reader:
        assert reader.read(timeout=0.3) is None
        target = cluster.owner(keys[1])
        cluster.move_slot(keys[0], target)
        for number, name in enumerate([*keys, *keys]):
            add(cluster, name, number)
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            assert (batch.stream.decode(), rows_in(batch)) == (name, [number])
        assert reader.read(timeout=0.3) is None
        assert len(readers_at(target)) == 1


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


@pytest.mark.parametrize("connections", [1, 2])
def test_each_entry_is_read_once_while_slots_move_key_by_key(cluster: LocalCluster, key: str, connections: int) -> None:
    check_entries_while_slots_move(cluster, key, cluster.move_slot, connections)


@pytest.mark.needs("moves-as-one")
def test_each_entry_is_read_once_while_slots_move_atomically(cluster: LocalCluster, key: str) -> None:
    check_entries_while_slots_move(cluster, key, partial(move_as_one, cluster), 1)


def check_entries_while_slots_move(cluster: LocalCluster, key: str, move: MoveSlot, connections: int) -> None:
    keys = keys_on_all_masters(cluster, key, 9)
    follower = Follower(cluster, keys, connections=connections)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, RATE // 4, keys)
        writing, reading = pool.submit(load.run), pool.submit(follower.run)
        try:
            for name in keys:
                before = follower.rows
                wait_until(lambda before=before: follower.rows >= before + BATCH or reading.done())  # type: ignore[misc]
                move(name, another_master(cluster, name))
                assert all(len(readers_at(server)) <= connections for server in cluster.servers)
        finally:
            load.stop()
            writing.result()
            follower.wanted = load.rows
            reading.result()
    assert load.codes == {}
    assert dict(follower.found) == {name: list(range(n, load.rows, len(keys))) for n, name in enumerate(keys)}


def test_a_moving_stream_does_not_block_other_streams_of_its_connection(cluster: LocalCluster, key: str) -> None:
    """Its node answers with ASK: that one is tried again as the policy says, and no other one waits for it."""
    first = keys_on_all_masters(cluster, key, 3)[0]
    owner = cluster.owner(first)
    names = (f"{key} {number}" for number in range(1_000))
    is_beside = (name for name in names if cluster.owner(name) is owner and cluster.slot(name) != cluster.slot(first))
    beside = [*itertools.islice(is_beside, 3)]
    slow = RetryPolicy(initial_backoff=5.0, max_backoff=5.0, jitter=0.0, deadline=NEVER)
    add(cluster, first, 0)
    endpoint = endpoint_of(cluster, first)
    with Reader(endpoint, [first, *beside], fields=["payload"], retry=slow, connections=1) as reader:
        batch = reader.read(timeout=PATIENCE)
        assert batch is not None
        assert batch.stream.decode() == first
        move = Move(cluster, first, another_master(cluster, first))
        move.take(first)
        assert reader.read(timeout=0.5) is None
        began = time.monotonic()
        for number, name in enumerate(3 * beside):
            with redis.Redis(port=owner.port or 0) as client:
                client.xadd(name, {"payload": number})
            batch = reader.read(timeout=PATIENCE)
            assert batch is not None
            assert (batch.stream.decode(), rows_in(batch)) == (name, [number])
        # Nine waits for the one that moves would take 45 s. Each try for it costs the others a connection.
        seconds = time.monotonic() - began
        assert seconds < LATE
        assert reader.stats().connections <= 3 + seconds / 5
        move.finish()
        add(cluster, first, 1)
        batch = reader.read(timeout=PATIENCE)
        assert batch is not None
        assert (batch.stream.decode(), rows_in(batch)) == (first, [1])


def test_streams_replaced_while_disconnected_are_reported(cluster: LocalCluster, key: str) -> None:
    """Each slot of the connection looks whether its streams are those it has read, not only the one that connects."""
    owner = cluster.owner(f"{{{key}}}")
    names = (f"{key} {number}" for number in range(1_000))
    tags = [key, *itertools.islice((name for name in names if cluster.owner(f"{{{name}}}") is owner), 2)]
    # With more than eight streams a request for new entries does not ask what was lost.
    keys = [f"{{{tag}}} {number}" for tag in tags for number in range(10)]
    replaced = {f"{{{tag}}} 5".encode() for tag in tags}
    with Reader(endpoint_of(cluster, keys[0]), keys, fields=["payload"], connections=1, retry=PATIENT) as reader:
        with redis.Redis(port=owner.port or 0) as client:
            for name in keys:
                client.xadd(name, {"payload": 1}, id="9-0")
            assert by_stream(batch for batch in (reader.read(timeout=PATIENCE) for _ in keys) if batch) == {
                name.encode(): [1] for name in keys
            }
            assert reader.read(timeout=0.3) is None
            for gone in replaced:
                client.delete(gone)
                client.xadd(gone, {"payload": 2}, id="5-0")
            for connection in client.client_list():
                if connection["cmd"] in READS:
                    client.client_kill_filter(_id=connection["id"])
        found: set[bytes] = set()
        for _ in range(10):
            if found == replaced:
                break
            with pytest.raises(StreamReplacedError) as caught:
                assert reader.read(timeout=PATIENCE) is not None
            found.add(caught.value.stream)
    assert found == replaced


def test_each_entry_is_read_once_when_a_master_is_killed(start_cluster: StartCluster) -> None:
    """Its streams go on at its replica, those of the others meanwhile."""
    cluster = start_cluster(config={"cluster-require-full-coverage": False})
    keys = keys_on_all_masters(cluster, "s", 9)
    old = cluster.owner(keys[0])
    theirs = [name for name in keys if cluster.owner(name) is not old]
    own = [name for name in keys if name not in theirs]
    follower = Follower(cluster, keys, connections=1)
    with Dispatcher(endpoint_of(cluster, keys[0]), retry=PATIENT, wait_replicas=1, wait_timeout=PATIENCE) as dispatcher:
        table = pa.table({"payload": [b"%d" % n for n in range(900)], "key": [keys[n % 9] for n in range(900)]})
        dispatcher.produce_batch(table, payload="payload", stream_key="key")
        assert dispatcher.flush().ok
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(follower.run)
        try:
            wait_until(lambda: follower.rows == 900 or reading.done())
            old.kill()
            for name in theirs:
                add(cluster, name, 1_000, without=old)
            wait_until(lambda: follower.rows == 900 + len(theirs) or reading.done())
            for name in own:
                with Dispatcher(endpoint_of(cluster, name), retry=PATIENT) as again:
                    again.produce(b"1000")
            follower.wanted = 909
        finally:
            follower.wanted = follower.wanted or 0
            reading.result()
    assert dict(follower.found) == {name: [*range(n, 900, 9), 1_000] for n, name in enumerate(keys)}
    assert rows_of(cluster, keys[0], old) == [*range(0, 900, 9), 1_000]


@pytest.mark.parametrize("connections", [1, None])
def test_an_unresponsive_node_does_not_delay_other_nodes(start_cluster: StartCluster, connections: int | None) -> None:
    """Without a policy its silence is an error of one call for each of its connections; the others are read.

    A connect that began before it continues may fail, too.
    """
    cluster = start_cluster(replicas=0, config={"cluster-require-full-coverage": False}, node_timeout=NEVER)
    keys = keys_on_all_masters(cluster, "s", 9)
    still = cluster.owner(keys[0])
    theirs = [name for name in keys if cluster.owner(name) is not still]
    endpoint = endpoint_of(cluster, keys[0], command_timeout=1.5, connect_timeout=3.0)
    with Reader(endpoint, keys, fields=["payload"], block=0.2, connections=connections) as reader:
        assert reader.read(timeout=0.1) is None
        failures: list[str] = []

        def read() -> tuple[str, list[int]]:
            while True:
                try:
                    batch = reader.read(timeout=PATIENCE)
                except ConnectionFailedError as error:
                    failures.append(str(error))
                else:
                    assert batch is not None
                    return batch.stream.decode(), rows_in(batch)

        with stopped(still):
            for number in itertools.count():
                name = theirs[number % len(theirs)]
                add(cluster, name, number, without=still)
                assert read() == (name, [number])
                if len(failures) >= 2:
                    break
        for name in keys:
            add(cluster, name, 99)
        assert dict(read() for _ in keys) == {name: [99] for name in keys}
        assert all(f"127.0.0.1:{still.port}" in failure or keys[0] in failure for failure in failures)


def test_ctrl_c_during_a_pause(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key, 6)
    with Reader(endpoint_of(cluster, keys[0]), keys, fields=["payload"], connections=1) as reader:
        with interrupted():
            reader.read(timeout=PATIENCE)
        add(cluster, keys[5], 7)
        batch = reader.read(timeout=PATIENCE)
        assert batch is not None
        assert rows_in(batch) == [7]


@pytest.mark.parametrize("wrong", [0, -1, 16_385, 1.5, "two", True])
def test_invalid_numbers_of_connections_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="connections must be") as caught:
        Reader(Endpoint(host="localhost", stream_key="s"), connections=wrong)
    assert caught.value.option == "connections"


def test_a_single_server_gets_one_connection(any_server: LocalServer) -> None:
    endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key="s", shards=SHARDS)
    with Dispatcher(endpoint) as dispatcher:
        for number in range(100):
            dispatcher.produce(b"%d" % number)
        assert dispatcher.flush().ok
    for connections in (None, 1, 3):
        with Reader(endpoint, end="latest", fields=["payload"], connections=connections) as reader:
            assert sorted(row for batch in reader for row in rows_in(batch)) == list(range(100))
            assert reader.stats().connections == 1
