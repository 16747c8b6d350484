"""Consumers of streams of all nodes: what they hand out, and what becomes of what was said of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
import redis

from headrace import CommandError, ConfigError, Consumer, Dispatcher, Endpoint, GroupMissingError
from headrace.consumer import ConsumerBatch
from headrace.testing import LocalCluster
from support.clusters import endpoint_of, keys_on_all_masters
from support.consumers import as_ids, consumer_of, next_batch
from support.groups import GROUP, pending_of
from support.patience import NEVER, PATIENCE
from support.processes import wait_until

SHARDS = 12


@pytest.fixture(params=[None, 1], ids=["own", "shared"])
def connections(request: pytest.FixtureRequest) -> int | None:
    """The most connections to each node: one for each slot, or one that all slots share."""
    return cast("int | None", request.param)


def client_of(cluster: LocalCluster, key: str) -> Any:
    """A client of the owner of a stream."""
    return redis.Redis(port=cluster.owner(key).port or 0)


def add(cluster: LocalCluster, key: str, numbers: Iterable[int]) -> None:
    with client_of(cluster, key) as client:
        pipeline = client.pipeline(transaction=False)
        for number in numbers:
            pipeline.xadd(key, {"n": number}, id=f"{number}-0")
        pipeline.execute()


def pending(cluster: LocalCluster, keys: Iterable[str]) -> dict[str, dict[str, tuple[bytes, int]]]:
    """What is pending of each stream."""
    found = {}
    for key in keys:
        with client_of(cluster, key) as client:
            found[key] = pending_of(client, key)
    return found


def consumer(cluster: LocalCluster, keys: list[str], name: str = "c", **options: Any) -> Consumer:
    return consumer_of(endpoint_of(cluster, keys[0]), name, keys, **options)


def take_all(consumer: Consumer, count: int, *, ack: bool = True) -> dict[str, list[str]]:
    """The IDs of the next entries, which must come, by stream, in the order in which they came."""
    found: dict[str, list[str]] = defaultdict(list)
    while sum(map(len, found.values())) < count:
        batch = next_batch(consumer)
        found[batch.stream.decode()] += batch.entry_ids
        if ack:
            consumer.ack(batch)
    return dict(found)


def test_each_entry_is_delivered_once_and_acknowledged(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    keys = keys_on_all_masters(cluster, key)
    expected = {name: as_ids(range(1, 501 + number)) for number, name in enumerate(keys)}
    for name, ids in expected.items():
        add(cluster, name, range(1, len(ids) + 1))
    with consumer(cluster, keys, batch_rows=100, connections=connections) as consuming:
        assert take_all(consuming, 3_015) == expected
        report = consuming.flush()
        assert (report.handed_over, report.acked, report.redelivered) == (3_015, 3_015, 0)
        assert consuming.poll(timeout=0) is None
        assert consuming.stats().entries == 3_015
        assert consuming.stats().connections == (3 if connections else 6)
    assert pending(cluster, keys) == {name: {} for name in keys}


def test_a_blocked_consumer_receives_and_acknowledges_entries_of_every_stream(cluster: LocalCluster, key: str) -> None:
    """The reply comes with the entry, and an acknowledgement waits for no other entry."""
    keys = keys_on_all_masters(cluster, key)
    with consumer(cluster, keys, block=NEVER, claim=False) as consuming:
        assert consuming.poll(timeout=0) is None
        for number, name in enumerate([*keys, *reversed(keys)], 1):
            add(cluster, name, [number])
            batch = consuming.poll(timeout=PATIENCE)
            assert batch is not None
            assert (batch.stream.decode(), batch.entry_ids) == (name, as_ids([number]))
            consuming.ack(batch)
            assert consuming.flush().acked == number
        # One request for each entry, and one that waits: nothing asks again and again.
        assert consuming.stats().requests < 100


def test_ack_fail_and_release_by_ids_apply_to_the_given_stream(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(1, 4))
    with consumer(cluster, keys, metadata=["stream", "entry_id", "deliveries"]) as consuming:
        take_all(consuming, 18, ack=False)
        for name in keys:
            consuming.ack_ids(name, ["1-0"])
            assert consuming.fail_ids(name, ["2-0"], "why", delay=0.0) == []
            assert consuming.release_ids(name, ["3-0", "7-0"]) == ["7-0"]
        report = consuming.flush()
        assert (report.acked, report.released, report.stale, report.pending) == (6, 12, 0, 0)
        with pytest.raises(ConfigError, match="one of the consumer's streams"):
            consuming.ack_ids("other", ["1-0"])
        assert {name: sorted(ids) for name, ids in pending(cluster, keys).items()} == {
            name: ["2-0", "3-0"] for name in keys
        }


def test_pending_entries_are_delivered_again_to_the_same_or_another_consumer(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(1, 11))
    expected = {name: as_ids(range(1, 11)) for name in keys}
    first = consumer(cluster, keys, "a")
    assert take_all(first, 60, ack=False) == expected
    first.close(release=False)
    with consumer(cluster, keys, "a") as second:
        assert take_all(second, 60, ack=False) == expected
        assert second.report().redelivered == 60
        second.close(release=False)
    with consumer(cluster, keys, "b", min_idle=1.0) as other:
        found = take_all(other, 60)
        assert {name: sorted(ids, key=lambda text: int(text[:-2])) for name, ids in found.items()} == expected
        assert other.flush().reclaimed >= 60
    assert pending(cluster, keys) == {name: {} for name in keys}


def test_close_releases_pending_entries_on_all_nodes(cluster: LocalCluster, key: str, connections: int | None) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(1, 11))
    with consumer(cluster, keys, "a", connections=connections) as first:
        batch = next_batch(first)
        first.ack(batch)
        next_batch(first)
    others = [name for name in keys if name != batch.stream.decode()]
    # They count as if they had not been delivered, and others get them at once, not after a minute.
    assert pending(cluster, [batch.stream.decode()]) == {batch.stream.decode(): {}}
    with consumer(cluster, keys, "b", connections=connections) as second:
        assert take_all(second, 50) == {name: as_ids(range(1, 11)) for name in others}
        assert second.flush().redelivered == 0
    assert pending(cluster, keys) == {name: {} for name in keys}


def test_leases_of_all_streams_are_renewed(cluster: LocalCluster, key: str, connections: int | None) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(1, 6))
    options: dict[str, Any] = {"min_idle": 3.0, "connections": connections}
    with consumer(cluster, keys, "a", **options) as first, consumer(cluster, keys, "b", **options) as second:
        batches: list[ConsumerBatch] = []
        while sum(batch.num_rows for batch in batches) < 30:
            batches.append(next_batch(first))
        renewals = first.stats().renewals
        # Four times in `min_idle`.
        wait_until(lambda: first.stats().renewals >= renewals + 5 * 30)
        assert second.poll(timeout=0) is None
        for batch in batches:
            batch.check()
            first.ack(batch)
        assert (first.flush().acked, second.report().reclaimed) == (30, 0)


def test_dead_letters_are_in_the_slot_of_their_stream(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, range(1, 3))
    with consumer(cluster, keys, max_failures=1, dead_letter_key="dead:{stream}") as consuming:
        while consuming.report().handed_over < 12:
            batch = next_batch(consuming)
            is_first = [entry_id == "1-0" for entry_id in batch.entry_ids]
            consuming.ack(batch, is_first)
            consuming.fail(batch, "why", mask=[not first for first in is_first])
        report = consuming.flush()
        assert (report.acked, report.dead, report.pending) == (6, 6, 0)
    assert pending(cluster, keys) == {name: {} for name in keys}
    for name in keys:
        with client_of(cluster, name) as client:
            ((_, letter),) = client.xrange(f"dead:{{{name}}}")
        assert (letter[b"dead:stream"], letter[b"dead:id"], letter[b"n"]) == (name.encode(), b"2-0", b"2")


def test_entries_with_many_deliveries_are_delivered_one_at_a_time(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    """Each may be the end of the process: then only the one that was handed out has failed."""
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, [1])
        with client_of(cluster, name) as client:
            client.xgroup_create(name, GROUP, id="0")
            client.xreadgroup(GROUP, "c", {name: ">"})
            client.xclaim(name, GROUP, "c", 0, ["1-0"], retrycount=20)
    with consumer(cluster, keys, claim=False, connections=connections) as consuming:
        for left in range(5, -1, -1):
            batch = next_batch(consuming)
            counts = sorted(
                deliveries for of_stream in pending(cluster, keys).values() for _, deliveries in of_stream.values()
            )
            assert counts == [20] * left + [21]
            consuming.ack(batch)
            consuming.flush()
        assert consuming.poll(timeout=0) is None


def test_dead_letters_in_another_slot_are_refused(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    with pytest.raises(ConfigError, match=r"^dead_letter_key must be in one slot") as caught:
        consumer(cluster, keys, max_failures=1, dead_letter_key="dead")
    assert caught.value.option == "dead_letter_key"


def write(endpoint: Endpoint, rows: range) -> None:
    table = pa.table({"payload": [b"%d" % row for row in rows], "key": [f"key {row % 400}" for row in rows]})
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table, shard_key="key")
        assert dispatcher.flush().ok


@pytest.mark.parametrize("names", ["plain", "spread"])
def test_a_consumer_reads_all_shards(cluster: LocalCluster, key: str, names: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names)
    with consumer_of(endpoint, fields=["payload"]) as consuming:
        # The groups made the shards, before a producer wrote their number.
        write(endpoint, range(2_000))
        rows: list[int] = []
        while len(rows) < 2_000:
            batch = next_batch(consuming)
            rows += map(int, pa.record_batch(batch)["payload"].to_pylist())
            consuming.ack(batch)
        assert sorted(rows) == list(range(2_000))
        assert consuming.flush().acked == 2_000


def test_consumers_of_a_group_share_the_shards(cluster: LocalCluster, key: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS)
    write(endpoint, range(10_000))
    done: list[int] = []
    # Each has a batch before one of them goes on.
    has_begun = threading.Barrier(2, timeout=60)

    def work(name: str) -> tuple[list[int], int]:
        rows: list[int] = []
        with consumer_of(endpoint, name, fields=["payload"], batch_rows=50) as consuming:
            while len(done) < 10_000:
                batch = consuming.poll(timeout=0.05)
                if batch is not None:
                    found = [int(n) for n in pa.record_batch(batch)["payload"].to_pylist()]
                    if not rows:
                        has_begun.wait()
                    rows += found
                    consuming.ack(batch)
                    done.extend(found)
            return rows, consuming.flush().acked

    with ThreadPoolExecutor() as pool:
        (one, acked), (two, more) = pool.map(work, ["one", "two"])
    assert sorted(one + two) == list(range(10_000))
    assert min(acked, more) > 0
    assert acked + more == 10_000


def test_mismatched_shard_options_are_refused(cluster: LocalCluster, key: str) -> None:
    write(endpoint_of(cluster, key, shards=SHARDS), range(10))
    with pytest.raises(CommandError, match="has 12 shards"):
        consumer_of(endpoint_of(cluster, key, shards=5))


def test_a_missing_group_stops_only_its_own_stream(cluster: LocalCluster, key: str, connections: int | None) -> None:
    keys = keys_on_all_masters(cluster, key, 3)
    with consumer(cluster, keys, block=0.1, connections=connections) as consuming:
        with client_of(cluster, keys[0]) as client:
            client.xgroup_destroy(keys[0], GROUP)
        found: list[str] = []
        texts: list[str] = []
        for number in range(1, 11):
            add(cluster, keys[1], [number])
            add(cluster, keys[2], [number])
            before = len(found)
            while len(found) < before + 2 or not texts:
                try:
                    batch = next_batch(consuming)
                    consuming.ack(batch)
                    found += batch.entry_ids
                except GroupMissingError as error:
                    texts += [str(error), error.stream.decode()]
        assert [keys[0] in text for text in texts] == [True, True]
        consuming.close(release=False)


def test_entries_received_while_the_caller_is_busy_are_redelivered_at_most_once(
    cluster: LocalCluster, key: str, connections: int | None
) -> None:
    """It lies in their sockets without a renewal, so at most one of them asks meanwhile."""
    keys = keys_on_all_masters(cluster, key)
    options: dict[str, Any] = {"min_idle": 2.0, "batch_rows": 1, "block": NEVER, "claim": False}
    with consumer(cluster, keys, **options, connections=connections, metadata=["entry_id", "deliveries"]) as consuming:
        assert consuming.poll(timeout=0.5) is None
        # All of them wait for entries.
        for name in keys:
            add(cluster, name, range(1, 3))
        deliveries: list[int] = []
        while len(deliveries) < 12:
            batch = next_batch(consuming)
            deliveries += pa.record_batch(batch)["deliveries"].to_pylist()
            time.sleep(1.1)  # the work
            consuming.ack(batch)
        report = consuming.flush()
    assert report.acked == 12
    # Once more, if at all: for the caller was slow for the first time.
    assert max(deliveries) <= 2
    assert deliveries.count(2) <= len(keys)


def test_close_does_not_wait_for_entries(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    consuming = consumer(cluster, keys, block=NEVER)
    assert consuming.poll(timeout=0.1) is None
    consuming.close()
