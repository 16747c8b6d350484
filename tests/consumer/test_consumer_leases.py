"""Who has an entry: renewed leases, lost ones, and processes that were stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import LeaseLostError
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, drain, next_batch, set_pending, take
from support.groups import GROUP, add, pending_of, read
from support.paths import TESTS
from support.pipelines import KEY
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: Leases are renewed four times in this time, so that a busy machine may be late with some of them.
SHORT: dict[str, Any] = {"min_idle": 1.0, "claim_interval": 0.05, "block": 0.05}


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def idle(client: Any, entry: str) -> int:
    """For how many milliseconds an entry has been idle."""
    (found,) = client.xpending_range(KEY, GROUP, entry, entry, 1)
    return found["time_since_delivered"]  # type: ignore[no-any-return]


def test_work_that_takes_longer_than_min_idle_is_done_once(server: LocalServer, client: Any) -> None:
    """Three consumers, of which each keeps every batch for longer than another may have it; also what is read ahead."""
    add(client, 120)
    handed: Counter[str] = Counter()
    lock = threading.Lock()
    reports = []

    def work(name: str) -> None:
        with consumer_of(server, name, batch_rows=20, **SHORT) as consumer:
            while handed.total() < 120:
                if (batch := consumer.poll(0.1)) is None:
                    continue
                with lock:
                    handed.update(batch.entry_ids)
                time.sleep(1.3)
                batch.check()
                consumer.ack(batch)
            with lock:
                reports.append(consumer.flush())

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handed == Counter(as_ids(range(1, 121)))
    assert sum(report.acked for report in reports) == 120
    assert sum(report.stale for report in reports) == 0


def test_check_raises_when_unrenewed_entries_are_taken_over(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with consumer_of(server, "a", renew=False, **SHORT) as slow, consumer_of(server, "b", **SHORT) as other:
        batch = next_batch(slow)
        batch.check()
        theirs = take(other, 10)
        assert theirs == batch.entry_ids
        message = "10 entries of this batch may belong to another consumer, beginning with 1-0"
        with pytest.raises(LeaseLostError, match=message) as raised:
            batch.check()
        assert (raised.value.stream, raised.value.entry_ids) == (KEY.encode(), theirs)
        slow.ack(batch)
        report = slow.flush()
        assert (report.acked, report.stale) == (0, 10)
        # Nothing was taken from the one that works on them now.
        assert {owner for owner, _ in pending_of(client).values()} == {b"b"}
        other.ack_ids(KEY, theirs)
        assert other.flush().acked == 10


def test_prefetched_entries_with_lost_leases_are_not_delivered(server: LocalServer, client: Any) -> None:
    add(client, 60)
    with consumer_of(server, "a", batch_rows=16, **SHORT) as slow, consumer_of(server, "b", **SHORT) as other:
        handed = take(slow, 16, ack=True)
        # Work that takes longer than an entry may be idle.
        time.sleep(1.3)
        while len(handed) < 60:
            handed += drain(other) + drain(slow)
        assert sorted(handed) == sorted(as_ids(range(1, 61)))
        reports = slow.flush(), other.flush()
        assert [sum(counts) for counts in zip(*reports, strict=True)][3:5] == [60, 0]


def test_renewal_keeps_the_delivery_count_and_stops_at_max_processing(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(server, "a", max_processing=1.5, **SHORT) as consumer:
        batch = next_batch(consumer)
        started = time.monotonic()
        wait_until(lambda: idle(client, "1-0") > 1_000)
        assert time.monotonic() - started > 1.5, "it was renewed until then"
        assert set(pending_of(client).values()) == {(b"a", 1)}
        with consumer_of(server, "b", **SHORT) as other:
            assert take(other, 3) == batch.entry_ids
        with pytest.raises(LeaseLostError):
            batch.check()


def test_every_entry_of_many_is_renewed(any_server: LocalServer, connect: Connect) -> None:
    """More than one command of a renewal is about. On a slow machine they are more than one batch, too."""
    client = connect(any_server)
    stored = add(client, 2_500)
    client.xgroup_create(KEY, GROUP, id="0")
    with consumer_of(any_server, "a", batch_rows=2_500, **SHORT) as consumer:
        held = [next_batch(consumer)]
        while sum(batch.num_rows for batch in held) < len(stored):
            held.append(next_batch(consumer))
        assert {entry_id for batch in held for entry_id in batch.entry_ids} == set(stored)
        wait_until(lambda: idle(client, stored[-1]) > 100)
        wait_until(lambda: idle(client, stored[-1]) < 100)
        for batch in held:
            batch.check()


def test_renewal_takes_no_entries_from_another_consumer(server: LocalServer, client: Any) -> None:
    """XCLAIM by itself would."""
    add(client, 3)
    with consumer_of(server, "a", **SHORT) as consumer:
        batch = next_batch(consumer)
        set_pending(client, "b", ["2-0"], key=KEY)

        def is_lost() -> bool:
            try:
                batch.check()
            except LeaseLostError as error:
                return error.entry_ids == ["2-0"]
            return False

        wait_until(is_lost)
        assert pending_of(client)["2-0"] == (b"b", 1)
        consumer.ack(batch)
        report = consumer.flush()
        assert (report.acked, report.stale, report.pending) == (2, 1, 0)
        batch.check()


def test_the_lease_of_an_entry_trimmed_during_processing_is_not_lost(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(server, **SHORT) as consumer:
        batch = next_batch(consumer)
        client.xtrim(KEY, maxlen=1, approximate=False)
        # A renewal that was asked for by now has found that out, and the consumer has its reply before the next one.
        for _ in range(2):
            wait_until(lambda: idle(client, "3-0") > 100)
            wait_until(lambda: idle(client, "3-0") < 100)
        batch.check()
        consumer.ack(batch)
        report = consumer.flush()
        assert (report.acked, report.stale, report.pending) == (3, 0, 0)
    assert pending_of(client) == {}


WORKER = """
import sys
from headrace import Consumer, Endpoint, LeaseLostError
from support.pipelines import KEY

endpoint = Endpoint(unix_socket=sys.argv[1], stream_key=KEY)
with Consumer(endpoint, group="g", consumer="stopped", min_idle=1.0, linger=0.0) as consumer:
    batch = consumer.poll()
    print(",".join(batch.entry_ids), flush=True)
    sys.stdin.readline()
    try:
        batch.check()
        print("committed", flush=True)
    except LeaseLostError as error:
        print("lost", ",".join(error.entry_ids), flush=True)
    consumer.ack(batch)
    print(consumer.flush().stale, flush=True)
"""


def test_a_suspended_process_notices_its_lost_leases(server: LocalServer, client: Any) -> None:
    add(client, 3)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(server.unix_socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        ids = worker.stdout.readline().strip().split(",")
        assert ids == as_ids([1, 2, 3])
        worker.send_signal(signal.SIGSTOP)
        with consumer_of(server, "other", **SHORT) as other:
            assert take(other, 3, ack=True) == ids
            assert other.flush().acked == 3
        worker.stdin.write("go on\n")
        worker.stdin.flush()
        worker.send_signal(signal.SIGCONT)
        assert worker.stdout.readline() == f"lost {','.join(ids)}\n"
        assert worker.stdout.readline() == "3\n"
        assert worker.wait() == 0


def test_entries_of_other_consumers_are_claimed_page_by_page(server: LocalServer, client: Any) -> None:
    stored = add(client, 2_500)
    client.xgroup_create(KEY, GROUP, id="0")
    assert read(client, "gone", 2_500) == stored
    set_pending(client, "gone", stored, key=KEY, idle=10_000)
    with consumer_of(server, min_idle=5.0, claim_interval=0.05) as consumer:
        assert take(consumer, 2_500, ack=True) == stored
        report = consumer.flush()
    assert (report.reclaimed, report.redelivered, report.acked) == (2_500, 2_500, 2_500)


def test_entries_of_other_consumers_are_not_claimed_with_claim_false(server: LocalServer, client: Any) -> None:
    add(client, 4)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "gone", 2)
    set_pending(client, "gone", as_ids([1, 2]), key=KEY, idle=10_000)
    with consumer_of(server, claim=False, min_idle=0.01) as consumer:
        assert take(consumer, 2, ack=True) == as_ids([3, 4])
        assert consumer.poll(0.1) is None
        assert consumer.report().reclaimed == 0
    assert list(pending_of(client)) == as_ids([1, 2])


def keepers() -> int:
    """The threads of this process that renew leases."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("headrace-keeper")


def test_the_thread_of_a_dropped_consumer_ends(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    before = keepers()
    consumer = consumer_of(any_server)
    next_batch(consumer)
    wait_until(lambda: keepers() == before + 1)
    del consumer
    wait_until(lambda: keepers() == before)
    assert len(pending_of(connect(any_server))) == 3, "as after a crash"
    with consumer_of(any_server, ack="none"):
        assert keepers() == before
