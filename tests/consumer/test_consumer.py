"""What a consumer hands over, in which order, and what the server counts as delivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace import Consumer, FieldError, ReadReport
from headrace.consumer import ConsumerBatch
from headrace.testing import LocalServer
from support.consumers import add_sizes, as_ids, consumer_of, drain, fields_of, next_batch, set_pending, take
from support.endpoints import CANARY
from support.groups import GROUP, add, pending_of, read
from support.patience import PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def test_every_entry_is_delivered_once_in_order_and_acknowledged(server: LocalServer, client: Any) -> None:
    stored = add(client, 5_000)
    found: list[str] = []
    with consumer_of(server) as consumer:
        for batch in consumer:
            table = pa.record_batch(batch)
            assert table.column_names == ["stream", "entry_id", "timestamp", "fields"]
            assert pa.schema(consumer) == table.schema
            assert table["entry_id"].to_pylist() == batch.entry_ids
            assert set(table["stream"].to_pylist()) == {KEY}
            assert batch.stream == KEY.encode()
            assert batch.num_rows <= 1_000
            found += batch.entry_ids
            consumer.ack(batch)
            if len(found) == 5_000:
                consumer.stop()
        report = consumer.flush()
    assert found == stored
    assert report == ReadReport(handed_over=5_000, acked=5_000)
    assert pending_of(client) == {}


@pytest.mark.parametrize("create", [True, False])
def test_the_rights_and_groups_of_many_streams_are_asked_for_together(
    server: LocalServer, client: Any, create: bool
) -> None:
    streams = [f"stream:{number}" for number in range(500)]
    if not create:
        for stream in streams:
            client.xgroup_create(stream, GROUP, "0", mkstream=True)
    before = client.info("stats")["total_reads_processed"]
    with consumer_of(server, streams=streams, create=create):
        assert client.info("stats")["total_reads_processed"] - before < len(streams)
        assert {len(client.xinfo_groups(stream)) for stream in streams} == {1}


def test_a_row_has_the_metadata_and_fields_of_its_entry(server: LocalServer, client: Any) -> None:
    client.execute_command("XADD", KEY, "5-1", b"\xfe", b"\x00", "a", "", "a", "2")
    with consumer_of(server, metadata=["entry_ms", "entry_seq", "timestamp", "deliveries", "reclaimed"]) as consumer:
        batch = next_batch(consumer)
        (row,) = pa.record_batch(batch).to_pylist()
        assert pa.schema(consumer).names == ["entry_ms", "entry_seq", "timestamp", "fields", "deliveries", "reclaimed"]
    assert row == {
        "entry_ms": 5,
        "entry_seq": 1,
        "timestamp": datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC),
        "fields": [("\\xfe", b"\x00"), ("a", b"2")],
        "deliveries": 1,
        "reclaimed": False,
    }


def test_fields_and_schemas_define_the_columns(server: LocalServer, client: Any) -> None:
    client.xadd(KEY, {"n": "7", "name": "seven", "more": "x"}, id="1-0")
    with consumer_of(server, fields=["name", "n"], metadata=["entry_id"]) as consumer:
        assert pa.record_batch(next_batch(consumer)).to_pylist() == [{"entry_id": "1-0", "name": "seven", "n": "7"}]
    schema = pa.schema([("n", pa.int64()), ("missing", pa.string())])
    with consumer_of(server, "d", schema=schema) as consumer:
        assert pa.record_batch(next_batch(consumer)).to_pylist() == [{"n": 7, "missing": None}]


def test_own_pending_entries_are_delivered_first(server: LocalServer, client: Any) -> None:
    add(client, 9)
    client.xgroup_create(KEY, GROUP, id="0")
    assert read(client, "other", 3) == as_ids([1, 2, 3])
    assert read(client, "c", 3) == as_ids([4, 5, 6])
    set_pending(client, "other", as_ids([1, 2, 3]), key=KEY, idle=10_000)
    with consumer_of(server, min_idle=5.0, metadata=["entry_id", "deliveries", "reclaimed"]) as consumer:
        rows: list[dict[str, Any]] = []
        while len(rows) < 9:
            rows += pa.record_batch(next_batch(consumer)).to_pylist()
        report = consumer.report()
    order = [(row["entry_id"], row["reclaimed"]) for row in rows]
    assert order[:3] == [("4-0", False), ("5-0", False), ("6-0", False)]
    assert sorted(order[3:]) == [(f"{n}-0", n < 4) for n in (1, 2, 3, 7, 8, 9)]
    assert [row["deliveries"] for row in sorted(rows, key=lambda row: row["entry_id"])] == [2] * 6 + [1] * 3
    assert (report.handed_over, report.redelivered, report.reclaimed) == (9, 6, 3)


def test_batches_of_redelivered_entries_are_halved_down_to_one(server: LocalServer, client: Any) -> None:
    """Only what is handed over counts as delivered, however long the list of what is pending."""
    add(client, 16)
    client.xgroup_create(KEY, GROUP, id="0")
    ids = read(client, "c", 16)
    sizes = []
    for delivered, counted in ((1, 2), (2, 3), (3, 4), (4, 21)):
        set_pending(client, "c", ids, key=KEY, retrycount=delivered)
        consumer = consumer_of(server, batch_rows=16)
        batch = next_batch(consumer)
        sizes.append(batch.num_rows)
        assert batch.entry_ids == ids[: batch.num_rows]
        # The others were looked at, and not delivered.
        expected = dict.fromkeys(ids, (b"c", delivered)) | dict.fromkeys(batch.entry_ids, (b"c", counted))
        assert pending_of(client) == expected
        # As a crash: nothing is given back.
        consumer.close(release=False)
    assert sizes == [8, 4, 2, 1]


def test_all_pages_of_pending_entries_are_replayed(server: LocalServer, client: Any) -> None:
    stored = add(client, 3_500)
    client.xgroup_create(KEY, GROUP, id="0")
    assert read(client, "c", 3_500) == stored
    with consumer_of(server) as consumer:
        assert take(consumer, 3_500, ack=True) == stored
        report = consumer.flush()
        assert (report.redelivered, report.acked, report.pending) == (3_500, 3_500, 0)
    assert pending_of(client) == {}


def test_entries_deleted_while_pending_are_lost_and_acknowledged(server: LocalServer, client: Any) -> None:
    add(client, 10)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 10)
    client.xdel(KEY, *as_ids([1, 4, 5, 10]))
    with consumer_of(server) as consumer:
        assert take(consumer, 6, ack=True) == as_ids([2, 3, 6, 7, 8, 9])
        assert consumer.poll(0.05) is None
        report = consumer.flush()
    assert (report.handed_over, report.acked, report.lost, report.stale) == (6, 6, 4, 0)
    assert pending_of(client) == {}


def test_pending_entries_of_an_emptied_stream_are_lost_and_acknowledged(server: LocalServer, client: Any) -> None:
    add(client, 50)
    client.xgroup_create(KEY, GROUP, id="0")
    read(client, "c", 20)
    read(client, "other", 30)
    set_pending(client, "other", as_ids(range(21, 51)), key=KEY, idle=10_000)
    client.xtrim(KEY, maxlen=0, approximate=False)
    with consumer_of(server, min_idle=1.0, claim_interval=0.01) as consumer:
        # What others have is found by the claims, after what is pending.
        while consumer.report().lost < 50:
            assert consumer.poll(0.02) is None
        consumer.flush()
        assert pending_of(client) == {}


@pytest.mark.parametrize(("rows", "size"), [(7, 16 << 20), (1, 16 << 20), (1_000, 2_000)])
def test_batches_are_bounded_in_rows_and_bytes(server: LocalServer, client: Any, rows: int, size: int) -> None:
    add_sizes(client, [100] * 300, KEY)
    with consumer_of(server, batch_rows=rows, batch_bytes=size, page_bytes=1_000) as consumer:
        batches: list[ConsumerBatch] = []
        while sum(batch.num_rows for batch in batches) < 300:
            batches.append(next_batch(consumer))
    assert [entry for batch in batches for entry in batch.entry_ids] == as_ids(range(1, 301))
    assert max(batch.num_rows for batch in batches) <= rows
    # Beyond its bound in bytes a batch takes no further page; the first one has 16 entries.
    assert max(pa.record_batch(batch).nbytes for batch in batches) <= max(size, 16 * 300) + 20_000


def test_large_entries_are_delivered_and_replayed(server: LocalServer, client: Any) -> None:
    sizes = [10, 5_000_000, 0, 70_000, 5_000_000, 5_000_000, 1]
    add_sizes(client, sizes, KEY)
    with consumer_of(server) as consumer:
        found: list[int] = []
        while len(found) < len(sizes):
            batch = next_batch(consumer)
            found += [len(fields["v"]) for fields in fields_of(batch)]
            consumer.release(batch)
    assert found == sizes
    # The same as pending entries.
    with consumer_of(server) as consumer:
        while len(found) < 2 * len(sizes):
            found += [len(fields["v"]) for fields in fields_of(next_batch(consumer))]
    assert found == 2 * sizes


def test_linger_gathers_entries_that_are_added_together(any_server: LocalServer, connect: Connect) -> None:
    """An XREADGROUP that waits returns with the first entry of a pipeline."""
    client = connect(any_server)
    with consumer_of(any_server, linger=1.0, block=5.0) as consumer:
        batches: list[ConsumerBatch | None] = []
        reader = threading.Thread(target=lambda: batches.append(consumer.poll(PATIENCE)))
        reader.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        add(client, 20)
        reader.join()
        assert batches[0] is not None
        assert batches[0].entry_ids == as_ids(range(1, 21))
        # A full batch does not wait.
        add(client, 1_000, first=21)
        assert take(consumer, 1_000) == as_ids(range(21, 1_021))


def test_a_poll_without_waiting_returns_available_entries(server: LocalServer, client: Any) -> None:
    with consumer_of(server) as consumer:
        assert consumer.poll(0) is None
        add(client, 500)
        found: list[str] = []
        while len(found) < 500:
            if (batch := consumer.poll(0)) is not None:
                found += batch.entry_ids
    assert found == as_ids(range(1, 501))


def test_several_streams_take_turns(server: LocalServer, client: Any) -> None:
    """A long stream does not keep the others waiting, new or pending."""
    add(client, 3_000, key="long")
    keys = [f"s{number}" for number in range(10)]
    for key in keys:
        add(client, 5, key=key)
    with consumer_of(server, "a", ["long", *keys], batch_rows=100) as consumer:
        first: list[ConsumerBatch] = []
        while {batch.stream for batch in first} != {key.encode() for key in ("long", *keys)}:
            first.append(next_batch(consumer))
        assert sum(batch.num_rows for batch in first if batch.stream == b"long") <= 1_000
        rest: dict[bytes, list[str]] = {}
        while sum(map(len, rest.values())) + sum(batch.num_rows for batch in first) < 3_050:
            batch = next_batch(consumer)
            rest.setdefault(batch.stream, []).extend(batch.entry_ids)
        found: dict[bytes, list[str]] = {}
        for batch in first:
            found.setdefault(batch.stream, []).extend(batch.entry_ids)
        for stream, ids in rest.items():
            found.setdefault(stream, []).extend(ids)
        consumer.close(release=False)
    assert found == {b"long": as_ids(range(1, 3_001)), **{key.encode(): as_ids(range(1, 6)) for key in keys}}
    with consumer_of(server, "a", ["long", *keys], batch_rows=100) as consumer:
        seen: list[bytes] = []
        while set(seen) != set(found):
            seen.append(next_batch(consumer).stream)
        assert seen.count(b"long") <= 2
        replayed = len(seen)
        assert replayed <= 2 * len(found)


def test_keys_and_names_can_contain_any_bytes(server: LocalServer, client: Any) -> None:
    key, group, name = b"\xff\x00key", b"\xfe group", b"\x00\xff"
    client.execute_command("XADD", key, "1-0", "a", "b")
    endpoint = endpoint_to(server)
    with Consumer(endpoint, [key], group=group, consumer=name) as consumer:
        batch = next_batch(consumer)
        assert batch.stream == key
        assert pending_of(client, key, group) == {"1-0": (name, 1)}
        consumer.ack(batch)
        assert consumer.flush().acked == 1
    assert consumer.endpoint is endpoint
    assert pending_of(client, key, group) == {}


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [1, 2, 3, 4, 5, 6]), ("latest", [6]), ("3-0", [3, 4, 5, 6]), ("(3-0", [4, 5, 6])],
)
def test_start_sets_the_position_of_a_new_group(
    server: LocalServer, client: Any, start: str, expected: list[int]
) -> None:
    add(client, 5)
    with consumer_of(server, start=start) as consumer:
        add(client, 1, first=6)
        assert take(consumer, len(expected), ack=True) == as_ids(expected)
    # The group exists: where it begins is of no matter any more.
    with consumer_of(server, "later", start="earliest") as consumer:
        assert consumer.poll(0.05) is None


def test_the_largest_ids_are_delivered_and_replayed(server: LocalServer, client: Any) -> None:
    last = 2**64 - 1
    ids = ["0-1", f"5-{last}", "6-0", f"{last}-{last - 1}", f"{last}-{last}"]
    for entry in ids:
        client.execute_command("XADD", KEY, entry, "a", "b")
    with consumer_of(server) as consumer:
        assert take(consumer, 5) == ids
        consumer.close(release=False)
    with consumer_of(server) as consumer:
        assert take(consumer, 5, ack=True) == ids
    assert pending_of(client) == {}


def test_a_bad_value_raises_an_error_after_the_entries_before_it(server: LocalServer, client: Any) -> None:
    for number, text in enumerate(["1", "2", "x", "4", "y"], 1):
        client.execute_command("XADD", KEY, f"{number}-0", "n", text)
    schema = pa.schema([("n", pa.int64())])
    with consumer_of(server, schema=schema) as consumer:
        found: list[int] = []
        bad: list[FieldError] = []
        while len(found) + len(bad) < 5:
            try:
                batch = next_batch(consumer)
            except FieldError as error:
                bad.append(error)
            else:
                found += pa.record_batch(batch)["n"].to_pylist()
                consumer.ack(batch)
        assert (found, [error.entry_id for error in bad]) == ([1, 2, 4], ["3-0", "5-0"])
        assert str(bad[0]).startswith(f"stream {KEY}, entry 3-0: ")
        assert bad[0].stream == KEY.encode()
        consumer.ack_ids(KEY, ["3-0"])
        assert consumer.release_ids(KEY, ["5-0", "9-0"]) == ["9-0"]
        assert consumer.flush() == ReadReport(handed_over=3, acked=4, released=1)
    assert pending_of(client) == {"5-0": (b"c", 0)}


def test_metadata_columns_can_be_renamed(server: LocalServer, client: Any) -> None:
    client.execute_command("XADD", KEY, "7-0", "n", "1")
    metadata = {"reclaimed": "back", "entry_ms": "ms", "deliveries": "times"}
    with consumer_of(server, fields=["n"], metadata=metadata) as consumer:
        assert pa.record_batch(next_batch(consumer)).to_pylist() == [{"ms": 7, "n": "1", "times": 1, "back": False}]


def test_bad_values_become_nulls(server: LocalServer, client: Any) -> None:
    for number, text in enumerate(["1", "x"], 1):
        client.execute_command("XADD", KEY, f"{number}-0", "n", text)
    with consumer_of(server, schema=pa.schema([("n", pa.int64())]), on_bad_field="null") as consumer:
        assert pa.record_batch(next_batch(consumer))["n"].to_pylist() == [1, None]


def test_acknowledging_takes_no_longer_with_more_batches_in_hand(server: LocalServer, client: Any) -> None:
    """The processor time of the calls: a search of all batches takes ten times as long with ten times as many."""
    costs: list[float] = []
    for count in (1_000, 10_000):
        client.delete(KEY)
        add(client, count)
        with consumer_of(server, batch_rows=1, claim=False) as consumer:
            batches = [next_batch(consumer) for _ in range(count)]
            parts: list[float] = []
            for last in range(count, count - 900, -300):
                began = time.thread_time()
                consumer.ack_ids(KEY, [batch.entry_ids[0] for batch in batches[last - 300 : last - 150]])
                for batch in batches[last - 150 : last]:
                    consumer.ack(batch)
                parts.append(time.thread_time() - began)
            costs.append(min(parts))
            consumer.ack_ids(KEY, [batch.entry_ids[0] for batch in batches[: count - 900]])
            assert consumer.flush().acked == count
    assert costs[1] < 4 * costs[0]


def test_the_repr_of_a_consumer_has_no_password(any_server: LocalServer, connect: Connect) -> None:
    connect(any_server).execute_command("ACL", "SETUSER", "u", "on", f">{CANARY}", "~*", "+@all")
    endpoint = endpoint_to(any_server, username="u", password=CANARY)
    with consumer_of(endpoint) as consumer:
        assert "u@" in repr(consumer) or "username=u" in repr(consumer)
        assert CANARY not in repr(consumer)
        assert drain(consumer) == []
    assert CANARY not in repr(consumer)


def test_a_second_consumer_of_the_same_name_causes_a_warning(server: LocalServer) -> None:
    """From a call of `poll` once it has been there for half a second, and only once."""
    with (
        consumer_of(server, "twin", block=0.02),
        consumer_of(server, "other", block=0.02) as other,
        consumer_of(server, "twin", block=0.02) as second,
    ):
        while not second._native.has_namesake:
            assert second.poll(0.02) is None
        with pytest.warns(RuntimeWarning, match="another connection reads as consumer 'twin' of group 'g'") as warned:
            second.poll(0.02)
        assert [warning.filename for warning in warned] == [__file__]
        assert (second.poll(0.02), other.poll(0.02)) == (None, None)


@pytest.mark.needs("redis-7.0")
def test_a_consumer_that_ends_soon_is_not_mistaken_for_another_one_of_the_name(
    server: LocalServer, client: Any
) -> None:
    """As the connection of a process that was killed: it may stay listed for a moment. No start waits for its end."""

    def looks() -> int:
        return sum(
            int(one["calls"])
            for name, one in client.info("commandstats").items()
            if "client" in name and "list" in name
        )

    before = looks()
    first = consumer_of(server, "twin", block=0.02)
    of_one = looks() - before
    with consumer_of(server, "twin", block=0.02) as second:
        assert looks() - before == 2 * of_one > 0
        first.close()
        after = looks()
        while looks() == after:
            assert second.poll(0.02) is None
        assert second.poll(0.02) is None
