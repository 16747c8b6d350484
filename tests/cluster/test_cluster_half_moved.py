"""A slot of which some keys have moved and others have not, or not yet."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalCluster, LocalServer
from support.clusters import Move, StartCluster, another_master, endpoint_of, rows_of
from support.patience import PATIENCE
from support.processes import wait_until


def write(dispatcher: Dispatcher, rows: range) -> None:
    dispatcher.produce_batch(pa.table({"payload": [b"%d" % row for row in rows]}), payload="payload")
    report = dispatcher.flush()
    assert (report.delivered, report.ok) == (len(rows), True), report.failed[:1]


def refusals(server: LocalServer) -> Counter[str]:
    """How often a server has refused a command for its slot or its script."""
    with redis.Redis(port=server.port or 0) as client:
        found = client.info("errorstats")
    codes = ("MOVED", "ASK", "TRYAGAIN", "CROSSSLOT", "NOSCRIPT")
    return Counter({code: int(found.get(f"errorstat_{code}", {"count": 0})["count"]) for code in codes})


@pytest.mark.parametrize("mode", [{}, {"exactly_once": "script"}], ids=lambda mode: " ".join(mode) or "plain")
def test_asking_is_sent_before_each_redirected_command(cluster: LocalCluster, key: str, mode: dict[str, Any]) -> None:
    """It holds for one command. One that the target refuses, as it does not know the script, uses it up too."""
    with Dispatcher(endpoint_of(cluster, key), **mode) as dispatcher:
        write(dispatcher, range(100))
        target = another_master(cluster, key)
        with redis.Redis(port=target.port or 0) as client:
            client.script_flush()
        move = Move(cluster, key, target)
        move.take(*move.left())
        before = refusals(target)
        write(dispatcher, range(100, 500))
        assert refusals(target) - before == {}
        assert dispatcher.stats().redirects == 1
        move.finish()
        write(dispatcher, range(500, 600))
    assert rows_of(cluster, key) == list(range(600))


def test_answered_messages_are_not_sent_again(cluster: LocalCluster, key: str) -> None:
    """Of one window some rows are refused, as their streams have moved, and others are written."""
    keys = [f"{{{key}}}:{number}" for number in range(3)]
    rows = pa.table({"payload": [b"%d" % n for n in range(300)], "key": [keys[n % 3] for n in range(300)]})
    with Dispatcher(endpoint_of(cluster, keys[0])) as dispatcher:
        dispatcher.produce_batch(rows, payload="payload", stream_key="key")
        assert dispatcher.flush().delivered == 300
        move = Move(cluster, keys[0], another_master(cluster, keys[0]))
        move.take(*keys[:2])
        dispatcher.produce_batch(rows, payload="payload", stream_key="key")
        assert dispatcher.flush().delivered == 300
        move.finish()
    for number, name in enumerate(keys):
        assert rows_of(cluster, name) == [*range(number, 300, 3)] * 2


@pytest.mark.needs("redis-8.6")
def test_streams_not_yet_moved_are_written_on_the_old_node(start_cluster: StartCluster) -> None:
    """Behind ASKING the other node would begin a second stream of its name, and the move could not be finished."""
    cluster, keys = start_cluster(replicas=0), ["{s}:0", "{s}:1"]
    with Dispatcher(endpoint_of(cluster, keys[0])) as dispatcher:
        move = None
        for first in range(0, 500, 100):
            rows = {"payload": [b"%d" % n for n in range(first, first + 100)], "key": keys * 50}
            dispatcher.produce_batch(pa.table(rows), payload="payload", stream_key="key")
            assert dispatcher.flush().delivered == 100
            if move is None:
                move = Move(cluster, keys[0], another_master(cluster, keys[0]))
                move.take(keys[0])
        assert move is not None
        move.finish()
    for number, name in enumerate(keys):
        assert rows_of(cluster, name) == list(range(number, 500, 2))


def test_messages_wait_until_marker_and_stream_are_on_the_same_node(cluster: LocalCluster, key: str) -> None:
    """Both nodes refuse a run, of which each has a key: run with the stream alone, it would be written twice."""
    with Dispatcher(endpoint_of(cluster, key), exactly_once="script") as dispatcher, ThreadPoolExecutor() as pool:
        write(dispatcher, range(100))
        move = tear(cluster, key)
        writing = pool.submit(write, dispatcher, range(100, 400))
        try:
            wait_until(lambda: dispatcher.stats().retries >= 2 or writing.done())
            assert not writing.done()
        finally:
            move.finish()
        writing.result()
    assert rows_of(cluster, key) == list(range(400))


def another_slot(cluster: LocalCluster, key: str) -> str:
    """A stream of the same node in another slot."""
    names = (f"{key} {number}" for number in range(100))
    owner, slot = cluster.owner(key), cluster.slot(key)
    return next(name for name in names if cluster.owner(name) is owner and cluster.slot(name) != slot)


def tear(cluster: LocalCluster, key: str) -> Move:
    """Move the marker of a stream, and not the stream: no node takes a run for it."""
    move = Move(cluster, key, another_master(cluster, key))
    # Streams of other tests may be in this slot as well.
    (marker,) = (name for name in move.left() if key.encode() in name and name != key.encode())
    move.take(marker)
    return move


def produce(dispatcher: Dispatcher, key: str, rows: range) -> None:
    table = pa.table({"payload": [b"%d" % row for row in rows], "key": [key] * len(rows)})
    dispatcher.produce_batch(table, payload="payload", stream_key="key")


def produce_until(dispatcher: Dispatcher, key: str, first: int, is_done: Callable[[], bool]) -> int:
    """Produce rows one by one, so that the dispatcher goes on with the others. Returns the number of the next one."""
    rows = itertools.count(first)
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        produce(dispatcher, key, range(row := next(rows), row + 1))
    return next(rows)


def test_only_the_messages_of_a_blocked_slot_fail_at_the_deadline(cluster: LocalCluster, key: str) -> None:
    other = another_slot(cluster, key)
    patient = RetryPolicy(initial_backoff=0.01, max_backoff=0.05, deadline=0.5)
    endpoint = endpoint_of(cluster, key)
    with Dispatcher(endpoint, exactly_once="script", retry=patient) as dispatcher:
        for stream in (key, other):
            produce(dispatcher, stream, range(10))
        assert dispatcher.flush().delivered == 20
        move = tear(cluster, key)
        try:
            produce(dispatcher, key, range(10, 20))
            first = produce_until(dispatcher, other, 10, lambda: bool(dispatcher.stats().failed_by_code))
            # The same batch goes on, and waits for the slot no more.
            produce(dispatcher, other, range(first, first + 100))
            produce(dispatcher, key, range(20, 30))
            report = dispatcher.flush()
            assert report.delivered == first + 100 - 10
            assert {(failure.code, failure.written) for failure in report.failed} == {("TRYAGAIN", "no")}
            assert len(report.failed) == 20
        finally:
            move.finish()
        dispatcher.skip_failed()
        produce(dispatcher, key, range(30, 40))
        produce(dispatcher, other, range(first + 100, first + 110))
        assert dispatcher.flush().delivered == 20
    assert rows_of(cluster, key) == [*range(10), *range(30, 40)]
    assert rows_of(cluster, other) == list(range(first + 110))


def test_marker_and_stream_are_in_one_slot(cluster: LocalCluster) -> None:
    """Whatever braces the name of the stream has: otherwise the server refuses each run."""
    for name in ["a", "{a}", "x{a}y", "{a", "{{a}}", "{a}{b}", "{a}}", "{", "{{", "x{a}{}", "\u00e9{\u00e9}"]:
        key = f"braces:{name}"
        with Dispatcher(endpoint_of(cluster, key), exactly_once="script") as dispatcher:
            write(dispatcher, range(10))
        assert rows_of(cluster, key) == list(range(10))
