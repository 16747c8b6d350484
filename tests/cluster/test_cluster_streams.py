"""Rows that name their streams go to the nodes that have them."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalCluster
from support.clusters import MoveSlot, StartCluster, another_master, endpoint_of, move_as_one, rows_of
from support.load import BATCH, Load
from support.patience import NEVER, PATIENCE
from support.processes import wait_until

MODES: list[dict[str, Any]] = [
    {},
    {"exactly_once": "script"},
    {"wait_replicas": 1, "wait_timeout": PATIENCE, "wait_every": 50},
    {"window_max_entries": 8},
]
BY_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: " ".join(mode) or "plain")


def keys_of(key: str, count: int) -> list[str]:
    return [key, *(f"{key} {number}" for number in range(1, count))]


def table(keys: list[str], rows: range) -> pa.Table:
    columns: dict[str, Any] = {"payload": [b"%d" % n for n in rows], "key": [keys[n % len(keys)] for n in rows]}
    return pa.table(columns)


def check_streams(cluster: LocalCluster, keys: list[str], rows: int) -> None:
    """Row n is in stream n % len(keys), once and in order."""
    for number, key in enumerate(keys):
        assert rows_of(cluster, key) == list(range(number, rows, len(keys))), key


@BY_MODE
def test_each_row_is_written_to_its_stream(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    keys = keys_of(key, 64)
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher:
        for first in range(0, 6_400, 1_600):
            rows = table(keys, range(first, first + 1_600))
            dispatcher.produce_batch(rows, payload="payload", stream_key="key")
        report = dispatcher.flush()
        stats = dispatcher.stats()
    assert report.delivered == 6_400
    assert report.ok
    assert (stats.connections, stats.redirects) == (3, 0)
    check_streams(cluster, keys, 6_400)
    if "exactly_once" not in mode:
        ids = pa.table(report.to_arrow()).column("entry_id").to_pylist()
        for number in (0, 17, 63):
            with redis.Redis(port=cluster.owner(keys[number]).port or 0) as client:
                assert [entry.decode() for entry, _ in client.xrange(keys[number])] == ids[number::64]


def test_messages_and_record_batches_can_be_interleaved(cluster: LocalCluster, key: str) -> None:
    keys = keys_of(key, 5)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        for turn in range(10):
            dispatcher.produce(b"%d" % (5 * turn))
            rows = table(keys, range(5 * turn + 1, 5 * turn + 5))
            dispatcher.produce_batch(rows, payload="payload", stream_key="key")
            if turn == 5:
                assert dispatcher.flush().delivered == 30
        assert dispatcher.flush().delivered == 20
        assert dispatcher.dispatch(b"50")
    assert rows_of(cluster, key) == list(range(0, 51, 5))
    for number in range(1, 5):
        assert rows_of(cluster, keys[number]) == list(range(number, 50, 5))


def test_rows_without_a_stream_key_use_the_stream_key_of_the_endpoint(cluster: LocalCluster, key: str) -> None:
    keys = [None, *(f"{key} {number}" for number in range(1, 8))]
    rows = pa.table({"payload": [b"%d" % n for n in range(80)], "key": [keys[n % 8] for n in range(80)]})
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        dispatcher.produce_batch(rows, payload="payload", stream_key="key")
        assert dispatcher.flush().delivered == 80
    check_streams(cluster, keys_of(key, 8), 80)


def test_connections_closed_while_idle_are_replaced(cluster: LocalCluster, key: str) -> None:
    """No row was sent on them, so none is in doubt, on whichever node."""
    keys = keys_of(key, 12)
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        for first in (0, 120, 240):
            rows = table(keys, range(first, first + 120))
            dispatcher.produce_batch(rows, payload="payload", stream_key="key")
            assert dispatcher.flush().delivered == 120
            for server in cluster.servers:
                with redis.Redis(port=server.port or 0) as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    check_streams(cluster, keys, 360)


def test_a_redirect_is_followed_once_despite_repeated_polls(cluster: LocalCluster, key: str) -> None:
    with Dispatcher(endpoint_of(cluster, key)) as dispatcher:
        dispatcher.produce(b"0")
        assert dispatcher.flush().ok
        cluster.move_slot(key, another_master(cluster, key))
        for number in range(1, 10):
            dispatcher.produce(b"%d" % number)
        delivered = sum(dispatcher.poll().delivered for _ in range(2_000))
        delivered += dispatcher.flush().delivered
        assert (delivered, dispatcher.stats().redirects) == (9, 1)
    assert rows_of(cluster, key) == list(range(10))


def test_the_next_batch_follows_a_redirect_before_the_window_is_full(cluster: LocalCluster, key: str) -> None:
    """Other streams of the node wait for that."""
    keys = keys_of(key, 12)
    with Dispatcher(endpoint_of(cluster, key), window_max_entries=1_000_000) as dispatcher:
        dispatcher.produce_batch(table(keys, range(12)), payload="payload", stream_key="key")
        assert dispatcher.flush().ok
        cluster.move_slot(keys[1], another_master(cluster, keys[1]))
        rows = 12

        def is_followed() -> bool:
            nonlocal rows
            dispatcher.produce_batch(table(keys, range(rows, rows + 12)), payload="payload", stream_key="key")
            rows += 12
            dispatcher.poll()
            return dispatcher.stats().redirects == 1

        wait_until(is_followed)
        assert dispatcher.flush().ok
    check_streams(cluster, keys, rows)


@BY_MODE
def test_streams_stay_in_order_while_slots_move_key_by_key(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    check_order_while_slots_move(cluster, key, mode, cluster.move_slot)


@pytest.mark.needs("moves-as-one")
@BY_MODE
def test_streams_stay_in_order_while_slots_move_atomically(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    check_order_while_slots_move(cluster, key, mode, partial(move_as_one, cluster))


def check_order_while_slots_move(cluster: LocalCluster, key: str, mode: dict[str, Any], move: MoveSlot) -> None:
    keys = keys_of(key, 6)
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, keys=keys)
        running = pool.submit(load.run)
        try:
            for moved in keys[:4]:
                before = load.rows
                wait_until(lambda before=before: load.rows >= before + 4 * BATCH or running.done())  # type: ignore[misc]
                move(moved, another_master(cluster, moved))
            before = load.rows
            wait_until(lambda: load.rows >= before + 2 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
        stats = dispatcher.stats()
    assert load.codes == {}
    check_streams(cluster, keys, load.rows)
    assert 4 <= stats.redirects <= 24, stats
    assert stats.reconnects == 0, stats


@BY_MODE
def test_streams_stay_in_order_while_a_replica_takes_over(
    cluster: LocalCluster, key: str, mode: dict[str, Any]
) -> None:
    keys = keys_of(key, 12)
    if "wait_replicas" in mode:
        # A server of Valkey 9.1 that becomes a replica during a WAIT replies to it only when this time is over.
        mode = {**mode, "wait_timeout": 1.0}
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, keys=keys)
        running = pool.submit(load.run)
        try:
            for _ in range(2):
                before = load.rows
                wait_until(lambda before=before: load.rows >= before + 4 * BATCH or running.done())  # type: ignore[misc]
                cluster.fail_over(key)
            before = load.rows
            wait_until(lambda: load.rows >= before + 2 * BATCH or running.done())
        finally:
            load.stop()
            running.result()
    # A new master has no replica for a moment, and may not know yet that it is one. The old one closes connections that
    # wait for replicas.
    assert set(load.codes) <= {"NOT_REPLICATED", "CLUSTERDOWN", *(["EOF", "RESET"] if "wait_replicas" in mode else [])}
    there = [rows_of(cluster, key) for key in keys]
    for number, rows in enumerate(there):
        assert rows == sorted(set(rows))
        assert {row % len(keys) for row in rows} == {number}
    assert load.acknowledged <= {row for rows in there for row in rows} <= load.acknowledged | load.unknown


@pytest.mark.needs("redis-8.6")
def test_an_unresponsive_node_does_not_block_other_nodes(start_cluster: StartCluster) -> None:
    """Until the window is full."""
    cluster = start_cluster(replicas=0, node_timeout=NEVER)
    keys = [f"s{number}" for number in range(30)]
    with Dispatcher(endpoint_of(cluster, "s0"), window_max_entries=9_000) as dispatcher:
        dispatcher.produce_batch(table(keys, range(30)), payload="payload", stream_key="key")
        assert dispatcher.flush().ok
        still = cluster.owner("s0")
        others = [key for key in keys if cluster.owner(key) is not still]
        os.kill(still.pid, signal.SIGSTOP)
        try:
            for first in range(30, 6_030, 600):
                rows = table(keys, range(first, first + 600))
                dispatcher.produce_batch(rows, payload="payload", stream_key="key")

            def lengths() -> list[int]:
                dispatcher.poll()
                return [len(rows_of(cluster, key, still)) for key in others]

            wait_until(lambda: set(lengths()) == {201})
        finally:
            os.kill(still.pid, signal.SIGCONT)
        assert dispatcher.flush().ok
    check_streams(cluster, keys, 6_030)


@pytest.mark.parametrize("retry", [None, RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=0.5)])
@pytest.mark.needs("redis-8.6")
def test_only_rows_for_a_killed_node_fail(start_cluster: StartCluster, retry: RetryPolicy | None) -> None:
    cluster = start_cluster(replicas=0)
    for server in cluster.servers:
        with redis.Redis(port=server.port or 0) as client:
            client.config_set("cluster-require-full-coverage", "no")
    keys = [f"s{number}" for number in range(30)]
    with Dispatcher(endpoint_of(cluster, "s0"), retry=retry) as dispatcher:
        dispatcher.produce_batch(table(keys, range(30)), payload="payload", stream_key="key")
        assert dispatcher.flush().ok
        gone = cluster.owner("s0")
        lost = [number for number, key in enumerate(keys) if cluster.owner(key) is gone]
        gone.kill()
        dispatcher.produce_batch(table(keys, range(30, 3_030)), payload="payload", stream_key="key")
        report = dispatcher.flush()
        failed = {30 + int(failure.message_id) for failure in report.failed}
        assert failed == {row for row in range(30, 3_030) if row % 30 in lost}
        assert {failure.kind for failure in report.failed} == {"retryable"}
        assert report.delivered == 3_000 - len(failed)
