"""Messages that are spread over the shards of a stream, by keys or in turn."""

from __future__ import annotations

import pickle
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import ConfigError, Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalCluster, LocalServer
from support.clusters import another_master, endpoint_of, rows_of
from support.fixture_types import StartServer
from support.patience import NEVER, PATIENCE
from support.pipelines import endpoint_to, outcomes
from support.processes import wait_until
from support.shards import key_of, murmur2, shard_of, spread_tag

MODES: list[dict[str, Any]] = [
    {},
    {"exactly_once": "script"},
    {"wait_replicas": 1, "wait_timeout": PATIENCE, "wait_every": 50},
    {"window_max_entries": 8},
]
BY_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: " ".join(mode) or "plain")

SHARDS = 12


def customers(rows: range) -> list[str]:
    return [f"customer {row * 7 % 50}" for row in rows]


def table(rows: range, keys: Any = None) -> pa.Table:
    columns = {"payload": [b"%d" % row for row in rows], "customer": customers(rows) if keys is None else keys}
    return pa.table(columns)


def shards_of(client: redis.Redis, name: str, shards: int = SHARDS) -> list[list[int]]:
    entries: list[Any] = [client.xrange(f"{name}:{shard}") for shard in range(shards)]
    return [[int(fields[b"payload"]) for _, fields in found] for found in entries]


def has_replicated(server: LocalServer) -> bool:
    """Whether a replica has all that the server was sent."""
    with redis.Redis(port=server.port or 0) as client:
        info: Any = client.info("replication")
        return bool(info["connected_slaves"] and info["slave0"]["offset"] >= info["master_repl_offset"])


def check_keyed(name: str, rows: int, found: list[list[int]]) -> None:
    """Each row is once in the shard of its key, in the order of the rows of that key."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for row, key in zip(range(rows), customers(range(rows)), strict=True):
        wanted[shard_of(key.encode(), len(found))].append(row)
    for shard, numbers in enumerate(found):
        assert numbers == wanted[shard], f"{name}:{shard}"


def test_the_reference_murmur2_matches_kafka() -> None:
    """Values of Kafka's own test of its Java client."""
    assert murmur2(b"foobar") == 1_357_151_166
    assert murmur2(b"21") == -973_932_308 & 0x7FFFFFFF
    assert murmur2(b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8") == -58_897_971 & 0x7FFFFFFF


@BY_MODE
def test_rows_with_equal_keys_stay_in_order_in_one_shard(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    with Dispatcher(endpoint_of(cluster, key, shards=SHARDS), **mode) as dispatcher:
        for first in range(0, 2_400, 600):
            dispatcher.produce_batch(table(range(first, first + 600)), shard_key="customer")
        assert dispatcher.flush().delivered == 2_400
        assert dispatcher.stats().redirects == 0
    found = [rows_of(cluster, f"{key}:{shard}") for shard in range(SHARDS)]
    check_keyed(key, 2_400, found)
    owners = {cluster.owner(f"{key}:{shard}") for shard in range(SHARDS)}
    assert len(owners) > 1, "shards are on several nodes"


@pytest.mark.parametrize("mode", [{}, {"exactly_once": "script"}], ids=["plain", "script"])
def test_all_shards_are_written_to_a_single_server(server: LocalServer, connect: Any, mode: dict[str, Any]) -> None:
    endpoint = endpoint_to(server, stream_key="orders", shards=SHARDS)
    with Dispatcher(endpoint, **mode) as dispatcher:
        dispatcher.produce_batch(table(range(900)), shard_key="customer")
        for row in range(900, 1_000):
            dispatcher.produce(b"%d" % row, key=customers(range(row, row + 1))[0])
        assert dispatcher.flush().delivered == 1_000
    client = connect(server)
    check_keyed("orders", 1_000, shards_of(client, "orders"))
    assert not client.exists("orders"), "nothing is in a stream of the name itself"
    registry = client.hgetall("{orders}:shards")
    assert registry == {b"n": b"12", b"hash": b"murmur2", b"names": b"plain"}


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, -7, 0, 2**63 - 1], pa.int64()),
        pa.array([3, 7, 0, 255], pa.uint8()),
        pa.array(["3", "-7", "é", ""]),
        pa.array([b"3", b"\xff", b"x" * 100, b""], pa.large_binary()),
        pa.array(["3", "7", "3", "7"]).dictionary_encode(),
    ],
    ids=lambda keys: str(keys.type),
)
@pytest.mark.parametrize("hashed", ["murmur2", "crc32"])
def test_keys_are_hashed_by_their_bytes_or_digits(
    any_server: LocalServer, connect: Any, keys: pa.Array, hashed: str
) -> None:
    endpoint = endpoint_to(any_server, stream_key="orders", shards=7, shard_hash=hashed)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table(range(4), keys), shard_key="customer")
        assert dispatcher.flush().delivered == 4
    values = keys.to_pylist()
    as_bytes = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    for shard, numbers in enumerate(shards_of(connect(any_server), "orders", 7)):
        assert numbers == [row for row in range(4) if shard_of(as_bytes[row], 7, hashed) == shard]


@pytest.mark.parametrize("mode", [{}, {"exactly_once": "script"}], ids=["plain", "script"])
def test_rows_without_a_key_are_distributed_round_robin(
    any_server: LocalServer, connect: Any, mode: dict[str, Any]
) -> None:
    with Dispatcher(endpoint_to(any_server, stream_key="orders", shards=3), **mode) as dispatcher:
        dispatcher.produce_batch(table(range(6)), payload="payload")
        dispatcher.produce(b"6")
        dispatcher.produce_batch(table(range(7, 12), [None] * 5), shard_key="customer")
        assert dispatcher.flush().delivered == 12
    found = shards_of(connect(any_server), "orders", 3)
    assert found == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_a_restarted_batch_is_deduplicated_across_shards(any_server: LocalServer, connect: Any) -> None:
    """Also rows without a key, and those behind rows that cannot be written."""
    keys = [None if row % 3 == 0 else f"key {row % 5}" for row in range(300)]
    payloads = [None if row % 10 == 4 else b"%d" % row for row in range(300)]
    rows = pa.table({"payload": payloads, "customer": keys})
    for written in (100, 300):
        with Dispatcher(endpoint_to(any_server, stream_key="orders", shards=5), exactly_once="script") as dispatcher:
            dispatcher.begin("batch 1")
            dispatcher.produce_batch(rows.slice(0, written), shard_key="customer")
            report = dispatcher.flush()
            assert report.delivered == written * 9 // 10
            assert {outcome.code for outcome in outcomes(report)} == {None, "NULL_PAYLOAD"}
            assert report.deduplicated == (0 if written == 100 else 90)
    stored = sorted(number for shard in shards_of(connect(any_server), "orders", 5) for number in shard)
    assert stored == [row for row in range(300) if row % 10 != 4]


def test_rows_are_written_to_shards_with_spread_names(cluster: LocalCluster, key: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=6, shard_names="spread")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table(range(60), [str(row) for row in range(60)]), shard_key="customer")
        assert dispatcher.flush().delivered == 60
    names = [f"{key}:{{{spread_tag(shard, 6)}}}" for shard in range(6)]
    for shard, name in enumerate(names):
        assert rows_of(cluster, name) == [row for row in range(60) if shard_of(b"%d" % row, 6) == shard]


@BY_MODE
def test_rows_of_each_key_stay_in_order_while_slots_move(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    def move() -> None:
        for shard in (0, 5, 7):
            name = f"{key}:{shard}"
            cluster.move_slot(name, another_master(cluster, name))

    with Dispatcher(endpoint_of(cluster, key, shards=SHARDS), **mode) as dispatcher, ThreadPoolExecutor() as pool:
        dispatcher.produce_batch(table(range(600)), shard_key="customer")
        moves = pool.submit(move)
        row = 600
        while not moves.done() or row < 2_400:
            dispatcher.produce_batch(table(range(row, row + 60)), shard_key="customer")
            row += 60
            if row % 600 == 0:
                report = dispatcher.flush()
                assert report.ok, report
        moves.result()
        report = dispatcher.flush()
        assert report.ok, report
    check_keyed(key, row, [rows_of(cluster, f"{key}:{shard}") for shard in range(SHARDS)])


def test_produce_and_dispatch_use_the_shard_of_the_key(cluster: LocalCluster, key: str) -> None:
    with Dispatcher(endpoint_of(cluster, key, shards=SHARDS)) as dispatcher:
        dispatcher.produce(b"1", key="customer 7")
        dispatcher.produce(b"2", key=b"customer 7")
        assert dispatcher.dispatch(b"3", key="customer 7")
        dispatcher.produce(b"4", key=memoryview(b"customer 7"))
        assert dispatcher.flush().delivered == 3
    assert rows_of(cluster, f"{key}:{shard_of(b'customer 7', SHARDS)}") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"shards": 6}, "but the endpoint says 6 ('murmur2', 'plain')"),
        ({"shards": 12, "shard_hash": "crc32"}, "the endpoint says 12 ('crc32', 'plain')"),
        ({"shards": 12, "shard_names": "spread"}, "the endpoint says 12 ('murmur2', 'spread')"),
    ],
    ids=["number", "hash", "names"],
)
@pytest.mark.parametrize("mode", [{}, {"exactly_once": "script"}], ids=["plain", "script"])
def test_mismatched_shard_options_fail_messages_before_any_is_written(
    any_server: LocalServer, connect: Any, other: dict[str, Any], says: str, mode: dict[str, Any]
) -> None:
    with Dispatcher(endpoint_to(any_server, stream_key="orders", shards=12)) as dispatcher:
        dispatcher.produce(b"1", key="a")
    client = connect(any_server)
    before = sorted(client.keys())
    with Dispatcher(endpoint_to(any_server, stream_key="orders", **other), **mode) as dispatcher:
        dispatcher.produce_batch(table(range(50)), shard_key="customer")
        report = dispatcher.flush()
        failed = outcomes(report)
    labels = [(outcome.code, outcome.kind, outcome.written) for outcome in failed]
    assert labels == [("BAD_SHARDS", "permanent", "no")] * 50
    message = failed[0].message or ""
    assert "the stream 'orders' has 12 shards (shard_hash 'murmur2', shard_names 'plain')" in message
    assert says in message
    assert sorted(client.keys()) == before


def test_a_mismatched_number_of_shards_is_detected_for_any_first_key(cluster: LocalCluster, key: str) -> None:
    with Dispatcher(endpoint_of(cluster, key, shards=12)) as dispatcher:
        dispatcher.produce(b"1", key="a")
    for number in range(8):
        with Dispatcher(endpoint_of(cluster, key, shards=5)) as dispatcher:
            dispatcher.produce(b"2", key=f"key {number}")
            (outcome,) = outcomes(dispatcher.flush())
            assert outcome.code == "BAD_SHARDS"


def test_a_deleted_registry_is_not_recreated(any_server: LocalServer, connect: Any) -> None:
    endpoint = endpoint_to(any_server, stream_key="orders", shards=4)
    client = connect(any_server)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"1", key="a")
        assert dispatcher.flush().ok
        client.delete("{orders}:shards")
        client.client_kill_filter(_type="normal", skipme=True)
        dispatcher.produce(b"2", key="a")
        (here,) = outcomes(dispatcher.flush())
    with Dispatcher(endpoint_to(any_server, stream_key="orders", shards=9)) as dispatcher:
        dispatcher.produce(b"3", key="a")
        (outcome,) = outcomes(dispatcher.flush())
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"4", key="a")
        (again,) = outcomes(dispatcher.flush())
    assert [here.code, outcome.code, again.code] == ["BAD_SHARDS"] * 3
    assert "HSET {orders}:shards n 4 hash murmur2 names plain" in (again.message or "")


def test_the_missing_right_is_named(start_server: StartServer) -> None:
    rules = "producer on >secret ~orders* ~{orders}* +xadd +xinfo +hgetall +client"
    server = start_server(config={"user": rules})
    endpoint = endpoint_to(server, stream_key="orders", shards=4, username="producer", password="secret")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"1", key="a")
        (outcome,) = outcomes(dispatcher.flush())
    assert outcome.code == "NOPERM"
    rights = "shards need the rights +hgetall +hsetnx on the key '{orders}:shards', and +xinfo|stream on the shards"
    assert rights in (outcome.message or "")


def test_trimming_applies_to_each_shard(any_server: LocalServer, connect: Any) -> None:
    endpoint = endpoint_to(any_server, stream_key="orders", shards=4, maxlen=10, maxlen_approximate=False)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table(range(400)), payload="payload")
        assert dispatcher.flush().ok
    assert [len(shard) for shard in shards_of(connect(any_server), "orders", 4)] == [10] * 4


@pytest.mark.parametrize("names", ["plain", "spread"])
def test_each_shard_gets_the_consumer_group(cluster: LocalCluster, key: str, names: str) -> None:
    endpoint = endpoint_of(cluster, key, shards=SHARDS, shard_names=names, consumer_group="readers")
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(table(range(120)), payload="payload")
        assert dispatcher.flush().ok
    for shard in range(SHARDS):
        name = f"{key}:{shard}" if names == "plain" else f"{key}:{{{spread_tag(shard, SHARDS)}}}"
        with redis.Redis(port=cluster.owner(name).port or 0) as client:
            (group,) = client.xinfo_groups(name)
            assert group["name"] == b"readers"


def test_the_consumer_group_exists_in_a_shard_moved_to_a_connected_node(cluster: LocalCluster, key: str) -> None:
    """No connection was made to its first node before it moved, nor is one made to the other node afterwards."""
    endpoint = endpoint_of(cluster, key, shards=SHARDS, consumer_group="readers")
    there = cluster.owner(f"{key}:0")
    moved = next(shard for shard in range(SHARDS) if cluster.owner(f"{key}:{shard}") is not there)
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"1", key=key_of(0, SHARDS))
        assert dispatcher.flush().ok
        cluster.move_slot(f"{key}:{moved}", there)
        dispatcher.produce(b"2", key=key_of(moved, SHARDS))
        assert dispatcher.flush().ok
    with redis.Redis(port=there.port or 0) as client:
        (group,) = client.xinfo_groups(f"{key}:{moved}")
        assert (group["name"], group["last-delivered-id"]) == (b"readers", b"0-0")


def test_a_lost_marker_error_names_the_messages_of_its_shard(any_server: LocalServer, connect: Any) -> None:
    client = connect(any_server)
    endpoint = endpoint_to(any_server, stream_key="orders", shards=3)
    with Dispatcher(endpoint, exactly_once="script") as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(table(range(30), [None] * 30), shard_key="customer")
        assert dispatcher.flush().ok
        (marker,) = client.scan_iter("{orders:1}:headrace:*")
        assert client.get(marker) == b"0 10 s"
        client.set(marker, "0 4 s")
        dispatcher.produce_batch(table(range(30, 33), [None] * 3), shard_key="customer")
        (failure,) = dispatcher.flush().failed
    assert (failure.code, failure.message_id) == ("MARKER_LOST", 1)
    what = "of its messages in this stream those from 4 to 9 (from 0) were acknowledged, and may be lost"
    assert failure.message == f'the marker of the batch in "orders:1" is at 4: {what}'


def test_rows_are_written_once_when_the_master_of_a_shard_is_killed(start_cluster: Any, key: str) -> None:
    cluster = start_cluster()
    policy = RetryPolicy(deadline=NEVER)
    with Dispatcher(endpoint_of(cluster, key, shards=SHARDS), retry=policy, exactly_once="script") as dispatcher:
        dispatcher.produce_batch(table(range(600)), shard_key="customer")
        assert dispatcher.flush().ok
        owner = cluster.owner(f"{key}:0")
        wait_until(lambda: has_replicated(owner))
        owner.kill()
        dispatcher.produce_batch(table(range(600, 1_200)), shard_key="customer")
        report = dispatcher.flush()
        assert report.ok, outcomes(report)
    found = [rows_of(cluster, f"{key}:{shard}", owner) for shard in range(SHARDS)]
    check_keyed(key, 1_200, found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shards": 0}, "shards must be an integer from 1 to 1024, got 0"),
        ({"shards": 1_025}, "shards must be an integer from 1 to 1024, got 1025"),
        ({"shards": 4, "shard_hash": "md5"}, "shard_hash must be one of 'murmur2', 'crc32', got 'md5'"),
        ({"shards": 4, "shard_names": "even"}, "shard_names must be one of 'plain', 'spread', got 'even'"),
        ({"shard_hash": "crc32"}, "shard_hash needs shards"),
        ({"shard_names": "spread"}, "shard_names needs shards"),
        ({"shards": 4, "stream_key": "{orders}"}, "shards need a stream_key without braces, got '{orders}'"),
    ],
)
def test_invalid_shard_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Endpoint(**{"host": "localhost", "stream_key": "orders", **options})
    assert says in str(refused.value)


def test_arguments_incompatible_with_the_endpoint_are_refused(any_server: LocalServer, connect: Any) -> None:
    sharded = endpoint_to(any_server, stream_key="orders", shards=4)
    rows = table(range(3))
    with Dispatcher(sharded) as dispatcher:
        for arguments, option in [
            ({"stream_key": "customer"}, "stream_key"),
            ({"rows_per_entry": 2}, "rows_per_entry"),
            ({"arrow_ipc": True}, "arrow_ipc"),
        ]:
            with pytest.raises(ConfigError) as refused:
                dispatcher.produce_batch(rows, **arguments)  # type: ignore[arg-type]
            assert refused.value.option == option
    with Dispatcher(endpoint_to(any_server, stream_key="orders")) as dispatcher:
        for call in (
            lambda: dispatcher.produce(b"1", key="a"),
            lambda: dispatcher.dispatch(b"1", key="a"),
            lambda: dispatcher.produce_batch(rows, shard_key="customer"),
        ):
            with pytest.raises(ConfigError, match="needs the option shards"):
                call()
    with pytest.raises(ConfigError, match="'idmp' and shards are mutually exclusive"):
        Dispatcher(sharded, exactly_once="idmp")
    assert connect(any_server).keys() == []


def test_shard_options_are_read_from_urls_and_survive_pickling() -> None:
    endpoint = Endpoint.from_url("redis://db1/0?stream_key=orders&shards=12&shard_names=spread")
    assert (endpoint.shards, endpoint.shard_hash, endpoint.shard_names) == (12, "murmur2", "spread")
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert endpoint != Endpoint.from_url("redis://db1/0?stream_key=orders")
