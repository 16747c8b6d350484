"""A slot moves to another node while rows go out: each row once, in order, and nothing failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Consumer, Dispatcher, Reader
from headrace.testing import LocalCluster
from support.clusters import MoveSlot, another_master, endpoint_of, move_as_one, rows_of
from support.load import BATCH, Load
from support.patience import PATIENCE
from support.processes import wait_until

MODES: list[dict[str, Any]] = [
    {},
    {"exactly_once": "script"},
    {"wait_replicas": 1, "wait_timeout": PATIENCE, "wait_every": 50},
    {"window_max_entries": 8},
]
BY_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: " ".join(mode) or "plain")


@BY_MODE
def test_rows_are_written_once_and_in_order_while_slots_move_key_by_key(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    check_order(cluster, key, mode, cluster.move_slot)


@pytest.mark.needs("moves-as-one")
@BY_MODE
def test_rows_are_written_once_and_in_order_while_slots_move_atomically(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    check_order(cluster, key, mode, partial(move_as_one, cluster))


def check_order(cluster: LocalCluster, key: str, mode: dict[str, Any], move: MoveSlot) -> None:
    """Where refused rows were sent again while later ones went on, 22 to 324 of such a run were out of order."""
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher)
        running = pool.submit(load.run)
        try:
            for _ in range(4):
                before = load.rows
                wait_until(lambda before=before: load.rows >= before + 4 * BATCH or running.done())  # type: ignore[misc]
                move(key, another_master(cluster, key))
            before = load.rows
            wait_until(lambda: load.rows >= before + 2 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
        stats = dispatcher.stats()
    assert load.codes == {}
    assert rows_of(cluster, key) == list(range(load.rows))
    # More than a few for each move would be ASKING left out, or a node asked in vain.
    assert 4 <= stats.redirects <= 16, stats
    assert stats.reconnects == 0, stats


def test_a_reader_and_a_consumer_follow_a_moved_stream(
    cluster: LocalCluster, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = endpoint_of(cluster, key)

    places = [cluster.owner(key).port]

    def write(payload: bytes) -> None:
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(payload)
            assert dispatcher.flush().ok

    write(b"1")
    options: dict[str, Any] = {"fields": ["payload"], "block": 0.2}
    with (
        Consumer(endpoint, group="g", consumer="c", **options) as consumer,
        Reader(endpoint, **options) as reader,
    ):
        for payload in ("1", "2", "3"):
            for found in (consumer.poll(PATIENCE), next(reader)):
                assert found is not None
                assert pa.record_batch(found)["payload"].to_pylist() == [payload]
            if payload == "1":
                cluster.move_slot(key, another_master(cluster, key))
                write(b"2")
            elif payload == "2":
                cluster.fail_over(key)
                write(b"3")
            places.append(cluster.owner(key).port)
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        assert client.xinfo_groups(key)[0]["pending"] == 3
    moves = [f"{endpoint} moved from node 127.0.0.1:{old} to 127.0.0.1:{new}" for old, new in pairwise(places[:3])]
    assert sorted(record.getMessage() for record in caplog.records) == sorted(moves * 2)
