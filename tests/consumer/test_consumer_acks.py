"""What a caller says of entries that were handed over: done, failed, given back; and what the counts say then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace import ConcurrentUseError, ConfigError, ReadReport
from headrace.consumer import ConsumerBatch
from headrace.errors import ClosedError
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, next_batch, set_pending, take
from support.groups import GROUP, add, pending_of, read
from support.monitor import Monitor
from support.patience import NEVER
from support.pipelines import KEY
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


MASKS: dict[str, Callable[[list[bool]], Any]] = {
    "list": list,
    "tuple": tuple,
    "pyarrow": pa.array,
    "pyarrow chunks": lambda mask: pa.chunked_array([mask[:2], mask[2:]]),
    "numpy": np.array,
    "pandas": pd.Series,
    "polars": pl.Series,
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_selects_the_rows_to_acknowledge(any_server: LocalServer, connect: Connect, kind: str) -> None:
    client = connect(any_server)
    add(client, 5)
    with consumer_of(any_server) as consumer:
        batch = next_batch(consumer)
        consumer.ack(batch, MASKS[kind]([True, False, True, False, False]))
        assert consumer.flush().acked == 2
        assert list(pending_of(client)) == as_ids([2, 4, 5])
        consumer.ack(batch, MASKS[kind]([True, True, False, False, False]))
        assert consumer.flush().acked == 3
        consumer.ack(batch)
        assert consumer.flush() == ReadReport(handed_over=5, acked=5)
        # What was said once is not said again.
        consumer.ack(batch)
        consumer.release(batch)
        consumer.fail(batch, "late")
        assert consumer.flush() == ReadReport(handed_over=5, acked=5)


@pytest.mark.parametrize(
    "mask", [[True], [True] * 3, [1, 0], [True, None], "ab", b"ab", pa.array([1, 0]), pa.array([True, None]), np.eye(2)]
)
def test_invalid_masks_are_refused(any_server: LocalServer, connect: Connect, mask: Any) -> None:
    client = connect(any_server)
    add(client, 2)
    with consumer_of(any_server) as consumer:
        batch = next_batch(consumer)
        says: list[Callable[[], object]] = [
            lambda: consumer.ack(batch, mask),
            lambda: consumer.fail(batch, "why", mask=mask),
            lambda: consumer.release(batch, mask=mask),
        ]
        for say in says:
            with pytest.raises(ConfigError, match=r"^mask must have") as raised:
                say()
            assert raised.value.option == "mask"
        assert consumer.flush().pending == 2


def test_entries_are_acknowledged_failed_and_released_by_id(server: LocalServer, client: Any) -> None:
    add(client, 6)
    with consumer_of(server) as consumer:
        assert take(consumer, 6) == as_ids(range(1, 7))
        consumer.ack_ids(KEY, ["3-0", "1-0"])
        consumer.ack_ids(KEY.encode(), ("2-0",))
        assert consumer.fail_ids(KEY, ["4-0", "9-0"], "why") == ["9-0"]
        assert consumer.release_ids(KEY, ["5-0", "9-0", "1-0"]) == ["1-0", "9-0"]
        assert consumer.flush() == ReadReport(handed_over=6, acked=3, released=2, pending=1)
        # Nothing more is to be said of these, and never was of the last.
        consumer.ack_ids(KEY, ["1-0", "7-0"])
        report = consumer.flush()
        assert (report.acked, report.stale) == (3, 2)
        assert pending_of(client) == {"4-0": (b"c", 21), "5-0": (b"c", 0), "6-0": (b"c", 1)}


def test_a_batch_of_another_consumer_is_refused(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    for key in ("a", "b"):
        add(client, 1, key=key)
    with consumer_of(any_server, streams=["a"]) as consumer, consumer_of(any_server, "d", ["b"]) as other:
        batch, theirs = next_batch(consumer), next_batch(other)
        calls: list[Callable[[], object]] = [
            lambda: consumer.ack(theirs),
            lambda: consumer.fail(theirs, "why"),
            lambda: consumer.release(theirs),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="batch must belong to this consumer, got one of another consumer"):
                call()
        assert consumer.flush().pending == 1
        consumer.ack(batch)
        assert consumer.flush().acked == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.ack_ids("other", ["1-0"]), "stream must be one of the consumer's streams, got 'other'"),
        (lambda c: c.ack_ids(KEY, ["x"]), "x"),
        (lambda c: c.ack_ids(KEY, "1-0"), "entry_ids must be a sequence of entry IDs, got '1-0': write ['1-0']"),
        (lambda c: c.ack_ids(KEY, [1]), "1"),
        (lambda c: c.fail_ids("other", ["1-0"], "why"), "stream must be one of"),
        (
            lambda c: c.fail_ids(KEY, ["1-0"], "why", delay=-1),
            "delay must be a number of seconds of at least 0",
        ),
        (lambda c: c.release_ids(KEY, ["1-0"], delay=float("nan")), "delay must be a number of seconds"),
        (lambda c: c.release_ids("other", ["1-0"]), "stream must be one of"),
        (lambda c: c.poll(-1), "timeout must be a number of seconds of at least 0, got -1"),
        (lambda c: c.flush(float("nan")), "timeout must be"),
    ],
)
def test_invalid_arguments_are_refused(any_server: LocalServer, call: Callable[[Any], object], text: str) -> None:
    with consumer_of(any_server) as consumer, pytest.raises(ConfigError) as raised:
        call(consumer)
    assert text in str(raised.value)


def test_acknowledgements_are_sent_before_the_next_read(server: LocalServer, client: Any) -> None:
    add(client, 40)
    with consumer_of(server, batch_rows=16) as consumer, Monitor(server) as seen:
        batch = next_batch(consumer)
        # The next page was asked for as the first one was handed over; this goes in front of the one after it.
        consumer.ack(batch)
        take(consumer, 24)
        commands = [command[0].upper() for command in seen.commands("EVAL", "EVALSHA", "XREADGROUP")]
    assert commands.index(b"EVAL") < len(commands) - 1
    assert commands[commands.index(b"EVAL") + 1] == b"XREADGROUP"


def test_an_acknowledgement_does_not_wait_for_a_blocking_read(server: LocalServer, client: Any) -> None:
    add(client, 3)
    # Without claims, which would end the read after a second.
    with consumer_of(server, block=NEVER, claim=False) as consumer:
        batch = next_batch(consumer)
        waits = threading.Thread(target=consumer.poll)
        waits.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        consumer.ack(batch, [True, False, False])
        wait_until(lambda: list(pending_of(client)) == as_ids([2, 3]))
        consumer.release_ids(KEY, ["2-0"])
        wait_until(lambda: pending_of(client)["2-0"][1] == 0)
        assert client.info("clients")["blocked_clients"] == 1
        consumer.stop()
        waits.join()


def test_an_acknowledgement_is_sent_without_a_further_call(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(server) as consumer:
        consumer.ack(next_batch(consumer))
        wait_until(lambda: pending_of(client) == {})
        wait_until(lambda: consumer.report().acked == 3)  # the reply is on its way


def test_an_entry_that_another_consumer_has_claimed_stays_with_it(server: LocalServer, client: Any) -> None:
    """XACK would take it away from the one that works on it."""
    add(client, 4)
    with consumer_of(server) as consumer:
        batch = next_batch(consumer)
        set_pending(client, "other", ["2-0", "3-0"], key=KEY)
        consumer.ack(batch, [True, True, False, False])
        consumer.release(batch, mask=[False, False, True, False])
        report = consumer.flush()
        assert (report.acked, report.stale, report.released, report.pending) == (1, 2, 0, 1)
        consumer.fail_ids(KEY, ["4-0"], "why")
        consumer.flush()
    assert {entry: owner for entry, (owner, _) in pending_of(client).items()} == {
        "2-0": b"other",
        "3-0": b"other",
        "4-0": b"c",
    }


def test_an_entry_that_another_consumer_has_acknowledged_is_stale(server: LocalServer, client: Any) -> None:
    add(client, 2)
    with consumer_of(server) as consumer:
        batch = next_batch(consumer)
        client.xack(KEY, GROUP, "2-0")
        consumer.ack(batch)
        report = consumer.flush()
    assert (report.acked, report.stale, report.pending) == (1, 1, 0)


def test_thousands_of_entries_are_acknowledged_with_one_call(server: LocalServer, client: Any) -> None:
    """Among entries of others, which the check of the owner must tell apart."""
    add(client, 6_000)
    client.xgroup_create(KEY, GROUP, id="0")
    for _ in range(20):
        read(client, "c", 100)
        read(client, "other", 200)
    with consumer_of(server, batch_rows=8_192, claim=False) as consumer:
        mine = take(consumer, 2_000)
        set_pending(client, "other", mine[::7], key=KEY)
        consumer.ack_ids(KEY, mine)
        report = consumer.flush()
    stolen = len(mine[::7])
    assert (report.acked, report.stale) == (2_000 - stolen, stolen)
    owners = pending_of(client)
    assert {owner for owner, _ in owners.values()} == {b"other"}
    assert len(owners) == 4_000 + stolen


def test_entries_can_be_acknowledged_from_any_thread(server: LocalServer, client: Any) -> None:
    add(client, 2_000)
    batches: queue.Queue[ConsumerBatch | None] = queue.Queue()
    with consumer_of(server, batch_rows=16, block=0.05, claim=False) as consumer:

        def work(seed: int) -> None:
            random = Random(seed)
            while (batch := batches.get()) is not None:
                act = random.randrange(4)
                if act == 0:
                    consumer.ack_ids(batch.stream, random.sample(batch.entry_ids, batch.num_rows))
                elif act == 1:
                    mask = [random.random() < 0.5 for _ in range(batch.num_rows)]
                    consumer.ack(batch, mask)
                    consumer.report()
                    consumer.ack(batch, [not done for done in mask])
                else:
                    batch.check()
                    consumer.ack(batch)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        count = 0
        while count < 2_000:
            batch = next_batch(consumer)
            count += batch.num_rows
            batches.put(batch)
        for _ in threads:
            batches.put(None)
        for thread in threads:
            thread.join()
        assert consumer.flush() == ReadReport(handed_over=2_000, acked=2_000)
    assert pending_of(client) == {}


def test_concurrent_calls_are_refused(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with consumer_of(any_server, block=NEVER) as consumer:
        thread = threading.Thread(target=consumer.poll)
        thread.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        calls: list[Callable[[], object]] = [lambda: consumer.poll(0), consumer.flush, consumer.close]
        for call in calls:
            with pytest.raises(ConcurrentUseError) as caught:
                call()
            assert str(caught.value) == (
                "the consumer is in use by another call: poll, flush and close take one caller at a time; create one "
                "per thread, each with a name of its own"
            )
        assert consumer.report().pending == 0
        consumer.stop()
        thread.join()


def test_calls_on_a_closed_consumer_are_refused(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 2)
    consumer = consumer_of(any_server)
    batch = next_batch(consumer)
    consumer.ack(batch)
    report = consumer.close()
    assert (report.acked, report.pending) == (2, 0)
    assert consumer.report() == report
    calls: list[Callable[[], object]] = [
        consumer.poll,
        consumer.flush,
        lambda: next(consumer),
        lambda: consumer.ack(batch),
        lambda: consumer.ack_ids(KEY, ["1-0"]),
        lambda: consumer.fail(batch, "why"),
        lambda: consumer.release(batch),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the consumer is closed"):
            call()
    assert consumer.close() == report
    consumer.stop()
