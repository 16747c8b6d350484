"""What is reported, and what is lost, when the sentinels promote a replica."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Consumer, Dispatcher, Endpoint, Reader, RetryPolicy
from headrace.testing import LocalSentinel, LocalServer
from support.fixture_types import BySize
from support.load import RATE, Load
from support.marks import thorough
from support.patience import NEVER, PATIENCE
from support.processes import wait_until
from support.sentinels import endpoint_of

PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)


def rows_of(server: LocalServer) -> Counter[int]:
    with redis.Redis(port=server.port or 0) as client:
        return Counter(int(fields[b"payload"]) for _, fields in client.xrange("s"))


def demoted(group: LocalSentinel, old: LocalServer) -> bool:
    with redis.Redis(port=old.port or 0) as client:
        return str(client.info("replication")["role"]) == "slave"


def switches(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about masters."""
    texts = [record.getMessage() for record in caplog.records if record.name == "headrace"]
    return [text for text in texts if text.startswith("the master of ")]


def switch(endpoint: Endpoint, old: LocalServer, new: LocalServer) -> str:
    return f"the master of {endpoint} is 127.0.0.1:{new.port}, in place of 127.0.0.1:{old.port}"


@pytest.mark.parametrize("waits", [False, *thorough(True)], ids=["without replicas", "all replicas"])
def test_the_dispatcher_switches_to_the_new_master_after_a_manual_failover(
    group: LocalSentinel, waits: bool, caplog: pytest.LogCaptureFixture, by_size: BySize
) -> None:
    """The old master acknowledges for ten seconds more; the sentinels are asked, and lead to the new one."""
    old, rate = group.master(), by_size(RATE // 10, RATE)
    options: dict[str, Any] = {"wait_replicas": "all", "wait_timeout": 1.0} if waits else {}
    with Dispatcher(endpoint_of(group), **options) as dispatcher, ThreadPoolExecutor() as pool:
        load = Load(dispatcher, rate)
        running = pool.submit(load.run)
        wait_until(lambda: load.rows >= rate)
        new = group.fail_over()
        at = load.rows
        wait_until(lambda: demoted(group, old))
        load.stop()
        running.result()
        assert dispatcher.stats().connections == 2
        assert dispatcher.stats().reconnects == 1
    # One line, not one for each row.
    assert switches(caplog) == [switch(endpoint_of(group), old, new)]
    assert set(load.codes) <= {"SWITCHED", "NOT_REPLICATED"}, load.codes
    assert waits or load.codes["SWITCHED"] > 0
    there = rows_of(new)
    lost = load.acknowledged - set(there)
    assert len(lost) <= (0 if waits else 3 * rate), f"{len(lost)} of {load.rows}, {at} before"
    assert set(there) <= load.acknowledged | load.unknown
    assert max(there.values()) == 1


def test_messages_are_delivered_once_when_a_master_is_killed(
    group: LocalSentinel, caplog: pytest.LogCaptureFixture
) -> None:
    with Dispatcher(endpoint_of(group), retry=PATIENT, exactly_once="script") as dispatcher:
        dispatcher.produce_batch(pa.table({"payload": [b"0"]}), payload="payload")
        assert dispatcher.flush().ok
        old = group.master()
        with redis.Redis(port=old.port or 0) as client:
            assert client.wait(2, 5_000) == 2
        old.kill()
        dispatcher.produce_batch(pa.table({"payload": [b"1", b"2"]}), payload="payload")
        assert dispatcher.flush().delivered == 2
        wait_until(lambda: group.master() is not old)
        assert rows_of(group.master()) == Counter({0: 1, 1: 1, 2: 1})
        assert switches(caplog) == [switch(endpoint_of(group), old, group.master())]


def test_a_consumer_and_a_reader_continue_with_the_new_master(
    group: LocalSentinel, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = endpoint_of(group, sentinel_poll=0.1)

    def write(payload: bytes) -> None:
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(payload)
            assert dispatcher.flush().ok

    write(b"1")
    options: dict[str, Any] = {"fields": ["payload"], "retry": PATIENT, "block": 30.0}
    with (
        Consumer(endpoint, group="g", consumer="c", min_idle=5, **options) as consumer,
        Reader(endpoint, **options) as reader,
    ):
        batch = consumer.poll(PATIENCE)
        assert batch is not None
        assert next(reader).num_rows == 1
        consumer.ack(batch)
        consumer.flush()
        with redis.Redis(port=group.master().port or 0) as client:
            client.wait(2, 5_000)
        old, new = group.master(), group.fail_over()
        write(b"2")
        # The old master would block them for half a minute; it has none of what comes.
        for take in (lambda: consumer.poll(PATIENCE), lambda: next(reader)):
            found = take()
            assert found is not None
            assert pa.record_batch(found)["payload"].to_pylist() == ["2"]
    assert switches(caplog) == [switch(endpoint, old, new)] * 2
