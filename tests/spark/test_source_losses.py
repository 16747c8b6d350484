"""What a Spark read says of entries that were removed: while it was stopped, planned, half read. No Spark runs here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import DataLossError, StreamReplacedError
from headrace.spark.source.stream import StreamReader
from headrace.testing import LocalServer
from support.source import add, batch_of, ids, next_end, query_on, rows

Connect = Callable[..., redis.Redis]

#: Pages and record batches so small that a task still has most of its range to ask for behind the first batch.
SMALL = {"batch_rows": 10, "page_bytes": 1, "batch_bytes": 1}


def planned(reader: StreamReader) -> list[Any]:
    """The partitions of the first micro-batch."""
    start = reader.initialOffset()
    return list(reader.partitions(start, next_end(reader, start)))


# --- while the query is stopped ---------------------------------------------------------------------------------------


@pytest.mark.needs("redis-7.0")
def test_the_loss_of_a_capped_query_that_began_mid_stream_is_an_upper_bound(
    server: LocalServer, connect: Connect
) -> None:
    """It does not know how many entries there were before its first one."""
    client = connect(server)
    add(client, "s", range(100), ids)
    options = {"starting": ids(20), "max_entries_per_trigger": 10}
    reader = query_on(server, **options)
    start = reader.initialOffset()
    end = next_end(reader, start)
    assert [n for one in reader.partitions(start, end) for n in rows(reader.read(one))] == list(range(20, 30))
    client.xtrim("s", maxlen=71, approximate=False)  # up to what was read, which is no loss
    reader.partitions(end, next_end(reader, end))
    client.xtrim("s", maxlen=40, approximate=False)
    again = query_on(server, **options)
    again.partitions(end, end)
    with pytest.raises(DataLossError, match="at most 60 entries of stream 's' after 30-0") as caught:
        next_end(again, end)
    assert not caught.value.exact
    lenient = query_on(server, **options, fail_on_data_loss=False)
    lenient.partitions(end, end)
    following = next_end(lenient, end)
    assert [n for one in lenient.partitions(end, following) for n in rows(lenient.read(one))] == list(range(60, 70))
    assert following["streams"]["s"]["lost"] == 60


@pytest.mark.needs("redis-7.0")
def test_the_loss_of_a_capped_query_is_an_upper_bound_after_a_deletion(
    client: redis.Redis, any_server: LocalServer
) -> None:
    """An entry that was deleted before it was read is missing from the count up to the end of a capped micro-batch."""
    add(client, "s", range(30), ids)
    reader = query_on(any_server, max_entries_per_trigger=5)
    start = reader.initialOffset()
    for expected in ([0, 1, 2, 3, 4], [5, 6, 8, 9, 10]):
        end = next_end(reader, start)
        assert [n for one in reader.partitions(start, end) for n in rows(reader.read(one))] == expected
        start = end
        client.xdel("s", ids(7))
    client.xtrim("s", maxlen=15, approximate=False)  # of these the entries 11 to 14 were not read
    with pytest.raises(DataLossError, match="at most 5 entries of stream 's' after 11-0") as caught:
        next_end(reader, start)
    assert (caught.value.lost, caught.value.exact) == (5, False)


# --- between planning and reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"starting": ids(50)}, {"starting": ids(50), "min_partitions": 3}, {}])
def test_entries_trimmed_between_planning_and_reading_are_detected(
    server: LocalServer, connect: Connect, options: dict[str, Any]
) -> None:
    """Where entries are counted, and on Redis 6.2, where they are not."""
    client = connect(server)
    add(client, "s", range(100), ids)
    reader = query_on(server, **options)
    start = reader.initialOffset()
    end = next_end(reader, start)
    client.xtrim("s", maxlen=20, approximate=False)
    with pytest.raises(DataLossError, match="trimmed"):
        rows(reader.read(reader.partitions(start, end)[0]))
    replayed = query_on(server, **options, fail_on_data_loss=False)
    with pytest.raises(DataLossError) as caught:
        rows(replayed.read(replayed.partitions(start, end)[0]))
    assert "allow_short_replay" in caught.value.__notes__[0]
    short = query_on(server, **options, fail_on_data_loss=False, allow_short_replay=True)
    found = [n for one in short.partitions(start, end) for n in rows(short.read(one))]
    assert found == list(range(80, 100))


@pytest.mark.needs("redis-7.0")
@pytest.mark.parametrize("is_capped", [False, True])
def test_an_inexact_loss_of_a_fully_trimmed_partition_is_not_reported_as_exact(
    client: redis.Redis, any_server: LocalServer, is_capped: bool
) -> None:
    """The server counts all that was trimmed, also behind the partition."""
    add(client, "s", range(100), ids)
    cap = {"max_entries_per_trigger": 60} if is_capped else {}
    partitions = planned(query_on(any_server, min_partitions=2, **cap))
    client.xtrim("s", maxlen=10, approximate=False)
    reader = query_on(any_server)
    for partition in partitions[: 2 if is_capped else 1]:
        with pytest.raises(DataLossError) as caught:
            rows(reader.read(partition))
        assert not caught.value.exact or caught.value.lost == partition.last[0] - partition.start.id[0]


# --- while a task reads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_longer", [False, True])
def test_replacing_a_stream_fails_the_task_that_reads_it(
    server: LocalServer, connect: Connect, is_longer: bool
) -> None:
    client = connect(server)
    add(client, "s", range(4_000), ids)
    reader = query_on(server, **SMALL)
    (partition,) = planned(reader)
    batches = reader.read(partition)
    next(batches)
    client.delete("s")
    add(client, "s", range(4_000, 8_000) if is_longer else range(5), ids)
    with pytest.raises((StreamReplacedError, DataLossError)):
        rows(batches)


@pytest.mark.parametrize("starting", ["earliest", ids(10)])
def test_trimming_while_a_task_reads_is_reported_by_each_attempt(
    server: LocalServer, connect: Connect, caplog: pytest.LogCaptureFixture, starting: str
) -> None:
    client = connect(server)
    add(client, "s", range(4_000), ids)
    strict, lenient = (query_on(server, starting=starting, fail_on_data_loss=fails, **SMALL) for fails in (True, False))
    attempts = [reader.read(planned(reader)[0]) for reader in (strict, lenient)]
    found = [rows(iter([next(batches)])) for batches in attempts]
    client.xtrim("s", maxlen=10, approximate=False)
    with pytest.raises(DataLossError, match="trimmed"):
        rows(attempts[0])
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        found[1] += rows(attempts[1])
    assert found[1][-10:] == list(range(3_990, 4_000))
    assert len(found[1]) < 3_000
    assert "trimmed before this task read them" in caplog.text


def test_entries_deleted_while_a_task_reads_do_not_count_as_lost(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(4_000), ids)
    reader = query_on(server, **SMALL)
    (partition,) = planned(reader)
    batches = reader.read(partition)
    found = rows(iter([next(batches)]))
    client.xdel("s", *map(ids, range(3_000, 3_010)))
    found += rows(batches)
    assert found == [*range(3_000), *range(3_010, 4_000)]


# --- batch ------------------------------------------------------------------------------------------------------------


def test_a_batch_whose_first_entry_was_deleted_reads_the_rest(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(100), ids)
    reader = batch_of(server, starting=ids(10))
    (partition,) = reader.partitions()
    client.xdel("s", ids(10))
    assert rows(reader.read(partition)) == list(range(11, 100))
