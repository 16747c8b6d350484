"""Members that share streams of all nodes of a cluster."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import CommandError, ConfigError, Dispatcher, Endpoint, Group, RetryPolicy, ShardBatch, inspect
from headrace.testing import LocalCluster
from support.clusters import another_master, endpoint_of, keys_on_all_masters
from support.consumers import as_ids
from support.groups import GROUP, rows
from support.marks import thorough
from support.patience import NEVER
from support.processes import stopped, wait_until
from support.shard_consumers import Work, member_of, next_batch, take, wait_for_shares
from support.shards import shard_of

SHARDS = 12

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


def write(endpoint: Endpoint, rows: range) -> None:
    table = pa.table({"payload": [b"%d" % row for row in rows], "key": [f"key {row % 40}" for row in rows]})
    with Dispatcher(endpoint, retry=PATIENT) as dispatcher:
        dispatcher.produce_batch(table, shard_key="key")
        assert dispatcher.flush().ok


def add(cluster: LocalCluster, key: str, count: int, first: int = 1) -> None:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        for number in range(first, first + count):
            client.xadd(key, {"n": number}, id=f"{number}-0")


def position_of(cluster: LocalCluster, key: bytes) -> bytes:
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        groups: Any = client.xinfo_groups(key)
        return bytes(groups[0]["last-delivered-id"])


@pytest.mark.parametrize("names", ["plain", *thorough("spread")])
def test_the_order_of_each_key_holds_with_members_that_come_and_leave(
    cluster: LocalCluster, key: str, names: str
) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names)
    write(endpoint, range(1_000))
    found: dict[str, list[int]] = {}
    lock = threading.Lock()

    with Work(note=lambda batch: note(batch, found, lock)) as work:
        options: dict[str, Any] = {"batch_rows": 20, "fields": ["payload"], "retry": PATIENT}
        work.join("a", member_of(endpoint, "a", **options))
        work.join("b", member_of(endpoint, "b", **options))
        work.wait_for(1_000)
        write(endpoint, range(1_000, 2_000))
        work.join("c", member_of(endpoint, "c", **options))
        work.wait_for(2_000)
        work.leave("a")
        write(endpoint, range(2_000, 3_000))
        work.wait_for(3_000)
    assert found == {f"key {number}": list(range(number, 3_000, 40)) for number in range(40)}
    assert sum(report.committed for report in work.reports) == 3_000
    assert sum(report.fenced + report.unknown + report.streams_lost for report in work.reports) == 0


def note(batch: Any, found: dict[str, list[int]], lock: threading.Lock) -> None:
    with lock:
        for entry in batch:
            row = int(entry["payload"])
            found.setdefault(f"key {row % 40}", []).append(row)
            assert shard_of(f"key {row % 40}".encode(), SHARDS) == batch.shard


@pytest.mark.parametrize("names", ["plain", "spread"])
def test_places_and_leases_are_in_the_slots_of_their_streams(cluster: LocalCluster, key: str, names: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names)
    write(endpoint, range(400))
    with member_of(endpoint, "a") as a, member_of(endpoint, "b") as b:
        wait_for_shares([a, b], [6, 6])
        last: dict[bytes, str] = {}
        for member in (a, b):
            owned = numbers(endpoint, member)
            left = sum(shard_of(f"key {row % 40}".encode(), SHARDS) in owned for row in range(400))
            while left > 0:
                batch = next_batch(member)
                left -= len(batch)
                last[batch.stream] = batch.last_id
                member.commit(batch)
            member.flush()
    assert {key: position_of(cluster, key).decode() for key in last} == last
    # `spread` names have a tag.
    for stream in last:
        with redis.Redis(port=cluster.owner(stream).port or 0) as client:
            lease = b"lease:" + stream + b":g" if b"{" in stream else b"{" + stream + b"}:lease:g"
            assert client.hget(lease, "owner") == b""


def numbers(endpoint: Endpoint, member: Any) -> set[int]:
    return {endpoint.stream_keys.index(key) for key in member.assignment}


def test_streams_of_any_names_in_any_slots(cluster: LocalCluster, key: str) -> None:
    keys = [*keys_on_all_masters(cluster, key), "{x}" + key, "{y}z}" + key, "{" + key]
    for name in keys:
        add(cluster, name, 5)
    with (
        member_of(endpoint_of(cluster, keys[0]), "a", keys) as a,
        member_of(endpoint_of(cluster, keys[0]), "b", keys) as b,
    ):
        wait_for_shares([a, b], [5, 4])
        assert {**take(a, 25), **take(b, 20)} == {name: as_ids(range(1, 6)) for name in keys}
        assert a.flush().committed + b.flush().committed == 45


def test_a_key_around_which_no_lease_can_be_in_its_slot_is_refused(cluster: LocalCluster, key: str) -> None:
    with pytest.raises(ConfigError, match=r"must have no '}' without a '{' before it, got 'a}b'"):
        member_of(endpoint_of(cluster, key), "a", ["a}b", key])


def test_an_endpoint_that_does_not_know_it_is_a_cluster(cluster: LocalCluster, key: str) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=cluster.owner(key).port, stream_key=key, shards=SHARDS)
    write(endpoint_of(cluster, key, shards=SHARDS), range(400))
    with member_of(endpoint) as member:
        assert sum(map(len, take(member, 400).values())) == 400
        assert member.flush().committed == 400


def test_a_lease_follows_its_moved_slot(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, 20)
    with member_of(endpoint_of(cluster, keys[0]), "a", keys, batch_rows=5, retry=PATIENT) as member:
        held: dict[bytes, ShardBatch] = {}
        while len(held) < len(keys):
            batch = next_batch(member)
            held[batch.stream] = batch
        for name in keys[:3]:
            cluster.move_slot(name, another_master(cluster, name))
        for batch in held.values():
            batch.check()
            member.commit(batch)
        report = member.flush()
        assert (report.fenced, report.streams_lost, report.pending) == (0, 0, 0)
        take(member, 20 * len(keys) - report.handed_over)
        assert member.flush().committed == 20 * len(keys)
    for name in keys:
        assert position_of(cluster, name.encode()) == b"20-0"


def test_without_the_node_that_has_the_members_owners_keep_their_streams(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    home = cluster.owner(min(keys))
    others = [name for name in keys if cluster.owner(name) is not home]
    endpoint = endpoint_of(cluster, keys[0], command_timeout=1.0, connect_timeout=1.0)
    with (
        member_of(endpoint, "a", keys, retry=PATIENT) as a,
        member_of(endpoint, "b", keys, retry=PATIENT) as b,
    ):
        before = wait_for_shares([a, b], [3, 3])
        with stopped(home):
            for name in others:
                add(cluster_without(cluster, home), name, 3)
            found: set[bytes] = set()

            def is_read() -> bool:
                for member in (a, b):
                    if (batch := member.poll(0.05)) is not None:
                        found.add(batch.stream)
                        member.commit(batch)
                return found == {name.encode() for name in others}

            wait_until(is_read)
            assert [a.assignment, b.assignment] == before
        wait_until(lambda: a.poll(0.0) is None and b.poll(0.0) is None)
        assert a.flush().streams_lost == b.flush().streams_lost == 0


def cluster_without(cluster: LocalCluster, server: Any) -> Any:
    """The cluster as seen by servers other than one that does not answer."""

    class Seen:
        def owner(self, key: str | bytes) -> Any:
            return cluster.owner(key, server)

    return Seen()


def test_another_number_of_shards_is_refused(cluster: LocalCluster, key: str) -> None:
    write(endpoint_of(cluster, key, shards=SHARDS), range(40))
    with pytest.raises(CommandError) as refused:
        member_of(endpoint_of(cluster, key, shards=SHARDS + 1))
    assert (refused.value.code, refused.value.kind) == ("BAD_SHARDS", "permanent")


def test_a_master_that_fails_over_keeps_leases_that_its_replica_has(cluster: LocalCluster, key: str) -> None:
    keys = keys_on_all_masters(cluster, key)
    for name in keys:
        add(cluster, name, 10)
    with member_of(endpoint_of(cluster, keys[0]), "a", keys, batch_rows=5, retry=PATIENT) as member:
        first = take(member, 10)
        member.flush()
        for name in keys:
            with redis.Redis(port=cluster.owner(name).port or 0) as client:
                client.wait(1, 10_000)
        cluster.fail_over(keys[0])
        found = take(member, 10 * len(keys) - 10)
        assert member.flush().streams_lost == 0
    for stream, ids in first.items():
        found[stream] = [*ids, *found.get(stream, [])]
    assert found == {name: as_ids(range(1, 11)) for name in keys}


def test_dead_letters_are_in_the_slots_of_their_streams(cluster: LocalCluster, key: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=4)
    for stream in endpoint.stream_keys:
        add(cluster, stream.decode(), 1)
    with pytest.raises(ConfigError, match=r"^dead_letter_key"):
        member_of(endpoint, max_failures=1, dead_letter_key="dead")
    with member_of(endpoint, max_failures=1, dead_letter_key="dead:{stream}") as member:
        for _ in endpoint.stream_keys:
            member.fail(next_batch(member), "no")
        report = member.flush()
        assert (report.dead, report.committed) == (4, 4)
    for stream in endpoint.stream_keys:
        with redis.Redis(port=cluster.owner(stream).port or 0) as client:
            assert client.xlen(b"dead:{%s}" % stream) == 1


@pytest.mark.parametrize("names", ["plain", *thorough("spread")])
def test_leases_of_all_nodes_are_seen_and_pinned(cluster: LocalCluster, key: str, names: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names)
    write(endpoint, range(100))
    members = [member_of(endpoint, name) for name in ("a", "b")]
    _, of_b = wait_for_shares(members, [6, 6])
    Group(endpoint, GROUP).assign(dict.fromkeys(of_b[:2], "a"))
    # The ten others are shared.
    of_a, of_b = wait_for_shares(members, [7, 5])
    found = inspect(endpoint)
    owners = {lease["stream"].encode(): lease["owner"] for lease in rows(found.leases)}
    assert owners == {**dict.fromkeys(of_a, "a"), **dict.fromkeys(of_b, "b")}
    assert [(member["name"], member["streams"]) for member in rows(found.members)] == [("a", 7), ("b", 5)]
    assert sum(lease["lag"] for lease in rows(found.leases)) == 100
    for member in members:
        member.close()
