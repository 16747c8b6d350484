"""Entries that fail, that are given back, and that crash their process: dead letters, and no other entry's death."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from headrace import CommandError, ConnectionFailedError, Consumer, ReadReport
from headrace.testing import LocalServer
from support.consumers import as_ids, consumer_of, next_batch, take
from support.groups import add, pending_of
from support.pipelines import KEY
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: Entries that failed come back soon.
QUICK: dict[str, Any] = {"min_idle": 1.0, "claim_interval": 0.02, "block": 0.02}
DEAD: dict[str, Any] = {"dead_letter_key": "dead", "max_failures": 2}


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def dead_letters(client: Any) -> list[list[bytes]]:
    """Names and values of each dead letter, in order."""
    return [fields for _, fields in client.eval("return redis.call('XRANGE', 'dead', '-', '+')", 0)]


def test_failed_entries_are_redelivered_one_at_a_time(server: LocalServer, client: Any) -> None:
    add(client, 6)
    with consumer_of(server, **QUICK) as consumer:
        batch = next_batch(consumer)
        consumer.fail(batch, "why", mask=[False, True, True, False, False, False], delay=0)
        consumer.ack(batch, [True, False, False, True, True, True])
        assert consumer.flush() == ReadReport(handed_over=6, acked=4, released=2)
        # Each by itself, and counted above all deliveries in company.
        for expected in ("2-0", "3-0"):
            batch = next_batch(consumer)
            assert batch.entry_ids == [expected]
            assert pending_of(client)[expected] == (b"c", 22)
            consumer.ack(batch)
        report = consumer.flush()
    assert (report.handed_over, report.redelivered, report.acked, report.dead) == (8, 2, 6, 0)


def test_a_delay_reduces_the_idle_time(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with consumer_of(server, min_idle=600.0) as consumer:
        batch = next_batch(consumer)
        consumer.fail(batch, "why", mask=[True, False, False])
        consumer.fail(batch, "why", mask=[False, True, False], delay=100.0)
        consumer.release(batch, mask=[False, False, True], delay=1e6)
        consumer.flush()
        entries = {entry["message_id"]: entry for entry in client.xpending_range(KEY, "g", "-", "+", 10)}
        idle = [entries[entry.encode()]["time_since_delivered"] / 1_000 for entry in as_ids([1, 2, 3])]
    for seconds, left in zip(idle, [599.0, 500.0, 0.0], strict=True):
        assert left <= seconds < left + 20


def test_released_entries_are_available_to_another_consumer_immediately(server: LocalServer, client: Any) -> None:
    add(client, 4)
    options: dict[str, Any] = {"min_idle": 60.0, "claim_interval": 0.02, "block": 0.02}
    with consumer_of(server, "a", **options) as consumer:
        batch = next_batch(consumer)
        consumer.release(batch, mask=[True, True, False, False])
        assert consumer.flush().released == 2
        # Not the one that gave them back, however often it looks.
        for _ in range(10):
            assert consumer.poll(0.02) is None
        assert consumer.report().released == 2
        with consumer_of(server, "b", metadata=["deliveries", "reclaimed"], **options) as other:
            batch = next_batch(other)
            assert batch.entry_ids == as_ids([1, 2])
            rows = pa.record_batch(batch).select(["deliveries", "reclaimed"]).to_pylist()
            assert rows == [{"deliveries": 1, "reclaimed": True}] * 2
            other.ack(batch)
            assert other.flush().acked == 2
        assert list(pending_of(client)) == as_ids([3, 4])


def test_a_consumer_claims_its_released_entry_if_no_other_consumer_does(server: LocalServer, client: Any) -> None:
    add(client, 1)
    with consumer_of(server, **QUICK) as consumer:
        batch = next_batch(consumer)
        consumer.release(batch)
        batch = next_batch(consumer)
        assert batch.entry_ids == ["1-0"]
        consumer.ack(batch)
        report = consumer.flush()
        assert (report.acked, report.stale, report.released, report.lost, report.pending) == (1, 0, 1, 0, 0)


def test_a_release_keeps_the_count_of_failures(server: LocalServer, client: Any) -> None:
    add(client, 1)
    with consumer_of(server, **{**QUICK, "min_idle": 60.0}) as consumer:
        consumer.fail(next_batch(consumer), "why", delay=0)
        consumer.release(next_batch(consumer))
        consumer.flush()
        for _ in range(5):
            assert consumer.poll(0.02) is None
        assert pending_of(client) == {"1-0": (b"c", 21)}


def test_dead_letters_have_every_field_in_order(server: LocalServer, client: Any) -> None:
    fields = [b"b", b"1", b"a", b"\x00\xff", b"b", b"", b"\xfe", b"2"]
    client.execute_command("XADD", KEY, "1-0", *fields)
    add(client, 2, first=2)
    with consumer_of(server, **QUICK, **DEAD) as consumer:
        failed = 0
        reports = []
        while failed < 2:
            batch = next_batch(consumer)
            for entry in batch.entry_ids:
                if entry == "1-0":
                    failed += 1
                    assert consumer.fail_ids(KEY, [entry], f"failure {failed} \xe9", delay=0) == []
                else:
                    consumer.ack_ids(KEY, [entry])
            reports.append(consumer.flush())
        assert [report.dead for report in reports] == [0, 1]
        report = reports[-1]
        assert (report.acked, report.stale, report.released, report.lost, report.pending) == (2, 0, 1, 0, 0)
        assert consumer.poll(0.05) is None
    (letter,) = dead_letters(client)
    tail: list[Any] = [b"dead:stream", KEY.encode(), b"dead:id", b"1-0", b"dead:reason", "failure 2 \xe9".encode()]
    assert letter == [*fields, *tail, b"dead:failures", b"2"]
    assert pending_of(client) == {}


def test_the_first_failure_makes_a_dead_letter_if_max_failures_is_1(server: LocalServer, client: Any) -> None:
    stored = add(client, 100)
    with consumer_of(server, max_failures=1, dead_letter_key="dead") as consumer:
        assert take(consumer, 100) == stored
        assert consumer.fail_ids(KEY, stored, "why") == []
        assert consumer.flush() == ReadReport(handed_over=100, dead=100)
    assert [letter[5] for letter in dead_letters(client)] == [entry.encode() for entry in stored]
    assert pending_of(client) == {}


def break_type(client: Any) -> None:
    client.set("dead", "no stream")


def break_memory(client: Any) -> None:
    client.config_set("maxmemory", 1)


@pytest.mark.parametrize(("how", "code"), [(break_type, "WRONGTYPE"), (break_memory, "OOM")])
def test_an_entry_stays_pending_if_its_dead_letter_cannot_be_added(
    server: LocalServer, client: Any, how: Callable[[Any], None], code: str
) -> None:
    add(client, 3)
    with consumer_of(server, **QUICK, max_failures=1, dead_letter_key="dead") as consumer:
        batch = next_batch(consumer)
        how(client)
        consumer.fail(batch, "why", mask=[False, True, False])
        with pytest.raises(CommandError, match=r"the dead letter .* was refused") as raised:
            consumer.flush()
        assert code in (raised.value.code, str(raised.value)) or code in str(raised.value)
        assert "2-0" in pending_of(client)
        assert client.xlen(KEY) == 3
        # An acknowledgement needs no memory, and the consumer goes on.
        consumer.ack(batch, [True, False, True])
        consumer.flush()
        assert list(pending_of(client)) == ["2-0"]
        client.config_set("maxmemory", 0)
        client.delete("dead")
        # It is tried again, as the delivery of an entry that failed too often.
        while consumer.report().dead == 0:
            try:
                assert consumer.poll(0.05) is None
            except CommandError:
                continue
        assert len(dead_letters(client)) == 1
        assert pending_of(client) == {}


def test_entries_with_bad_fields_become_dead_letters(server: LocalServer, client: Any) -> None:
    for number, text in enumerate(["1", "x", "3", "y"], 1):
        client.execute_command("XADD", KEY, f"{number}-0", "n", text)
    schema = pa.schema([("n", pa.int64())])
    with consumer_of(server, schema=schema, on_bad_field="dead_letter", dead_letter_key="dead") as consumer:
        found: list[int] = []
        while len(found) < 2:
            batch = next_batch(consumer)
            found += pa.record_batch(batch)["n"].to_pylist()
            consumer.ack(batch)
        report = consumer.flush()
        assert (found, report.acked, report.dead) == ([1, 3], 2, 2)
    assert pending_of(client) == {}
    letters = dead_letters(client)
    assert [letter[:2] for letter in letters] == [[b"n", b"x"], [b"n", b"y"]]
    assert all(b"entry 2-0" in letter[7] or b"entry 4-0" in letter[7] for letter in letters)


def run_until_crash(server: LocalServer, poison: str, seen: Callable[[list[str]], None], **options: Any) -> bool:
    """A process that works on entries until all are done; returns whether one of them ended it."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            consumer = consumer_of(server, **options)
            while (batch := consumer.poll(2.0)) is not None:
                if poison in batch.entry_ids:
                    os._exit(7)
                consumer.ack(batch)
                consumer.flush()
                seen(batch.entry_ids)
            consumer.close()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 7)
    return status == 7


def test_only_the_entry_that_kills_its_process_becomes_a_dead_letter(
    server: LocalServer, client: Any, tmp_path: Any
) -> None:
    add(client, 40)
    log = tmp_path / "acked"

    def seen(ids: list[str]) -> None:
        with log.open("a") as file:
            file.writelines(f"{entry}\n" for entry in ids)

    crashes = 0
    while run_until_crash(server, "13-0", seen, batch_rows=16, block=0.02, claim=False, **DEAD):
        crashes += 1
        assert crashes < 20
    # 16 in company, 8, 4, 2; then twice alone.
    assert crashes == 6
    (letter,) = dead_letters(client)
    assert letter[2:6] == [b"dead:stream", KEY.encode(), b"dead:id", b"13-0"]
    assert letter[7:] == [b"delivered alone 2 times and not acknowledged", b"dead:failures", b"2"]
    assert pending_of(client) == {}
    assert sorted(log.read_text().split()) == sorted(set(as_ids(range(1, 41))) - {"13-0"})


def test_entries_that_are_only_replayed_never_become_dead_letters(server: LocalServer, client: Any) -> None:
    """Their counters of deliveries rise with each reconnect, and that is no failure of theirs."""
    add(client, 30)
    options = {**DEAD, "batch_rows": 8, "block": 0.02, "claim": False, "max_failures": 1}
    with consumer_of(server, **options) as consumer:
        held: list[Any] = []
        for _ in range(25):
            # Whether the page that is under way arrives or not, or a new connection between two kills.
            with suppress(ConnectionFailedError):
                held.append(consumer.poll(0.02))
            client.client_kill_filter(_type="normal", skipme=True)
            with suppress(ConnectionFailedError):
                held.append(consumer.poll(0.02))
        held = [batch for batch in held if batch is not None]
        while sum(batch.num_rows for batch in held) < 30:
            held.append(next_batch(consumer))
        assert sorted(entry for batch in held for entry in batch.entry_ids) == sorted(as_ids(range(1, 31)))
        for batch in held:
            consumer.ack(batch)
        report = consumer.flush()
        assert (report.handed_over, report.acked, report.dead, report.stale) == (30, 30, 0, 0)
    assert client.exists("dead") == 0


def test_consumers_that_end_without_releasing_cause_no_dead_letters(server: LocalServer, client: Any) -> None:
    """A process that ends before it asks for entries delivers none; the replay of others is no failure of theirs."""
    add(client, 20)
    options = {**DEAD, "batch_rows": 16, "block": 0.02, "claim": False}
    for _ in range(25):
        consumer_of(server, **options).close(release=False)
    with consumer_of(server, **options) as consumer:
        first = next_batch(consumer)
        consumer.close(release=False)
    for _ in range(25):
        consumer = consumer_of(server, **options)
        assert isinstance(consumer, Consumer)
        consumer.close(release=False)
    with consumer_of(server, **options) as consumer:
        assert sorted(take(consumer, 20, ack=True)) == sorted(as_ids(range(1, 21)))
        assert consumer.report().dead == 0
    assert first.num_rows > 0
    wait_until(lambda: pending_of(client) == {})
