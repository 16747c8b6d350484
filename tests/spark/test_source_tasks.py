"""What the driver and the tasks of a Spark read do on real servers, with trimming at each step. No Spark runs here."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import CommandError, ConfigError, ConnectionFailedError, DataLossError, StreamReplacedError
from headrace._headrace import StreamInfo
from headrace.spark.source.entry_ids import HIGHEST, LOWEST
from headrace.spark.source.options import read
from headrace.spark.source.ranges import Range
from headrace.spark.source.survey import Survey
from headrace.testing import LocalServer
from support.endpoints import CANARY
from support.source import add, batch_of, ids, next_end, query_on, rows, settings

Connect = Callable[..., redis.Redis]


# --- the look at the server -------------------------------------------------------------------------------------------


def test_a_survey_finds_extents_and_first_ids(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(10), ids)
    client.xtrim("s", maxlen=4, approximate=False)
    client.xdel("s", "9-0")
    survey = Survey(settings(server))
    found = survey.streams(["s", "nothing"])
    counts = "entries-added" in client.xinfo_stream("s")
    max_deleted = (9, 0) if counts else None
    assert found == {"s": StreamInfo(3, (7, 0), (10, 0), 10 if counts else None, max_deleted), "nothing": StreamInfo()}
    asked = [("s", LOWEST, HIGHEST), ("s", (8, 1), (9, 5)), ("s", (8, 1), (10, 0)), ("nothing", LOWEST, HIGHEST)]
    assert survey.first_ids(asked) == [(7, 0), None, (10, 0), None]


def test_a_survey_keeps_its_connection_and_replaces_a_lost_one(client: redis.Redis, any_server: LocalServer) -> None:
    add(client, "s", range(3), ids)

    def connections() -> int:
        return int(client.info("stats")["total_connections_received"])

    survey = Survey(settings(any_server))
    survey.streams(["s"])
    before = connections()
    client.config_resetstat()
    for _ in range(5):
        assert survey.streams(["s"])["s"].length == 3
    assert client.info("commandstats")["cmdstat_xinfo|stream"]["calls"] == 5
    assert connections() <= before
    client.client_kill_filter(_type="normal", skipme=True)
    assert survey.streams(["s"])["s"].length == 3
    survey.close()
    assert survey.streams(["s"])["s"].length == 3


def test_keys_of_other_types_and_missing_permissions_are_reported(
    client: redis.Redis, any_server: LocalServer, text_key: None
) -> None:
    with pytest.raises(CommandError, match="the key 'text' does not hold a stream") as caught:
        Survey(settings(any_server)).streams(["text"])
    assert "; choose another stream_key (docs/troubleshooting.md#wrongtype)" in str(caught.value)
    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+xrange"])
    with pytest.raises(CommandError, match=r"needs \+xinfo\|stream ~s.*; ACL SETUSER grants it"):
        Survey(settings(any_server, username="reader", password="x")).streams(["s"])


def test_a_wrong_password_is_reported_with_advice(server: LocalServer, connect: Connect) -> None:
    connect(server).config_set("requirepass", CANARY)
    with pytest.raises(CommandError, match=r"WRONGPASS.*; check username and the password"):
        Survey(settings(server, password="wrong")).streams(["s"])


@pytest.mark.parametrize("options", [{}, {"stream_pattern": "*"}])
def test_a_server_that_is_away_is_reported_with_advice(server: LocalServer, options: dict[str, str]) -> None:
    away = read({"unix_socket": server.unix_socket, **(options or {"stream_key": "s"})}, streaming=False)
    server.stop()
    survey = Survey(away)
    with pytest.raises(ConnectionFailedError, match="; check that a server runs and listens there"):
        survey.streams(survey.keys())


def missing_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "does not exist" in text]


def test_a_stream_that_does_not_exist_is_logged(
    client: redis.Redis, any_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "there", range(3))
    client.xgroup_create("empty", "g", mkstream=True)
    read_of = {"stream_keys": "there,empty,evnts", "username": "default", "password": CANARY}
    assert len(batch_of(any_server, **read_of).partitions()) == 1
    (text,) = missing_in(caplog)
    assert text == (
        f"the stream does not exist, and counts as empty: unix://{any_server.unix_socket}?username=default stream key "
        "evnts; check stream_key, or stream_keys for several"
    )
    assert CANARY not in caplog.text


def test_a_query_logs_once_that_a_stream_does_not_exist(
    client: redis.Redis, any_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    reader = query_on(any_server)
    start = reader.initialOffset()
    for _ in range(3):
        next_end(reader, start)
    assert len(missing_in(caplog)) == 1
    add(client, "s", range(3))
    (partition,) = reader.partitions(start, next_end(reader, start))
    assert rows(reader.read(partition)) == [0, 1, 2]
    assert len(missing_in(caplog)) == 1


def test_a_shard_without_messages_is_not_logged(
    client: redis.Redis, any_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "s:1", range(3))
    assert len(batch_of(any_server, shards=3).partitions()) == 1
    assert missing_in(caplog) == []
    assert batch_of(any_server, stream_key="t", shards=3).partitions() == []
    assert len(missing_in(caplog)) == 3


def test_a_pattern_finds_streams(client: redis.Redis, any_server: LocalServer) -> None:
    for key in ("orders-a", "orders-\\b", "other"):
        client.xadd(key, {"n": 1})
    client.set("orders-text", "no stream")

    def keys(pattern: str) -> tuple[str, ...]:
        given = {"unix_socket": any_server.unix_socket, "stream_pattern": pattern}
        return Survey(read(given, streaming=False)).keys()

    assert keys("orders-*") == ("orders-\\b", "orders-a")
    with pytest.raises(ConfigError, match="matches no stream"):
        keys("x*")
    client.xadd(b"bad-\xff", {"n": 1})
    with pytest.raises(ConfigError, match="which is not UTF-8"):
        keys("bad*")


# --- batch ------------------------------------------------------------------------------------------------------------


def test_each_attempt_reads_the_same_range(server: LocalServer, connect: Connect) -> None:
    add(connect(server), "s", range(1_000), ids)
    reader = batch_of(server, min_partitions=4, batch_rows=50)
    planned = reader.partitions()
    assert len(planned) == 4
    for partition in planned:
        attempt = reader.read(partition)
        next(attempt)  # it fails behind its first rows
        attempt.close()  # type: ignore[attr-defined]
    connect(server).xadd("s", {"n": 1_000}, id="2000-0")
    assert [n for partition in planned for n in rows(reader.read(partition))] == list(range(1_000))


@pytest.mark.needs("redis-7.0")
@pytest.mark.parametrize("partitions", [1, 4])
def test_trimming_between_planning_and_reading_is_reported(
    client: redis.Redis, any_server: LocalServer, partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "s", range(1_000), ids)
    strict, lenient = (
        batch_of(any_server, min_partitions=partitions, fail_on_data_loss=fails) for fails in (True, False)
    )
    planned = strict.partitions()
    client.xtrim("s", maxlen=600, approximate=False)
    with pytest.raises(DataLossError, match="400 entries" if partitions == 1 else "trimmed"):
        rows(strict.read(planned[0]))
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert [n for partition in planned for n in rows(lenient.read(partition))] == list(range(400, 1_000))
    assert (
        "400 entries" in caplog.text if partitions == 1 else "were trimmed between planning and reading" in caplog.text
    )
    # An entry that XDEL removed is no loss.
    again = strict.partitions()
    client.xdel("s", "701-0")
    assert sum(len(rows(strict.read(partition))) for partition in again) == 599


@pytest.mark.parametrize("start", [None, 300])
def test_trimming_while_a_task_reads_is_reported(
    client: redis.Redis, any_server: LocalServer, start: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "s", range(20_000), ids)
    first = {} if start is None else {"starting": ids(start)}

    def trimmed(**options: Any) -> list[int]:
        reader = batch_of(any_server, batch_rows=10, page_bytes=1, batch_bytes=1, **first, **options)
        (partition,) = reader.partitions()
        batches = reader.read(partition)
        found = rows(iter([next(batches)]))
        client.xtrim("s", maxlen=10, approximate=False)
        return found + rows(batches)

    with caplog.at_level(logging.WARNING, "headrace.spark"):
        found = trimmed(fail_on_data_loss=False)
    assert found[-10:] == list(range(19_990, 20_000))
    assert len(found) < 19_000
    assert "entries of stream 's'" in caplog.text
    client.delete("s")
    add(client, "s", range(20_000), ids)
    with pytest.raises(DataLossError, match="were trimmed"):
        trimmed()


def test_a_stream_replaced_between_planning_and_reading_fails_the_read(
    client: redis.Redis, any_server: LocalServer
) -> None:
    add(client, "s", range(100), ids)
    reader = batch_of(any_server)
    (partition,) = reader.partitions()
    client.delete("s")
    add(client, "s", range(5), ids)
    with pytest.raises((StreamReplacedError, DataLossError)):
        rows(reader.read(partition))


# --- streaming --------------------------------------------------------------------------------------------------------


def test_consecutive_micro_batches_read_every_entry_once(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, "s", range(1_000), ids)
    reader = query_on(server, max_entries_per_trigger=300, min_partitions=3)
    start = reader.initialOffset()
    found, sizes = [], []
    while (end := next_end(reader, start)) != start:
        partitions = reader.partitions(start, end)
        found += [n for partition in partitions for n in rows(reader.read(partition))]
        sizes.append(len(found))
        if len(sizes) == 1:
            assert len(partitions) == 3
        start = end
    assert found == list(range(1_000))
    assert sizes == [300, 600, 900, 1_000]
    assert next_end(reader, start) == start
    add(client, "s", range(1_000, 1_001), ids)
    end = next_end(reader, start)
    # Another process, with other options, plans the same.
    other = query_on(server, min_partitions=9)
    assert [one.last for one in other.partitions(start, end) if isinstance(one, Range)] == [(1_001, 0)]


def test_a_replayed_first_micro_batch_begins_at_the_same_position(client: redis.Redis, any_server: LocalServer) -> None:
    """Spark asks for the first offset again, and `latest` is another one by then."""
    add(client, "s", range(10), ids)
    reader = query_on(any_server, starting="latest")
    start = reader.initialOffset()
    add(client, "s", range(10, 20), ids)
    end = next_end(reader, start)
    again = query_on(any_server, starting="latest")
    partitions = again.partitions(again.initialOffset(), end)
    assert [n for partition in partitions for n in rows(again.read(partition))] == list(range(10, 20))


def test_a_query_without_new_entries_stores_its_position(client: redis.Redis, any_server: LocalServer) -> None:
    add(client, "s", range(10), ids)
    reader = query_on(any_server, starting="latest")
    start = reader.initialOffset()
    end = next_end(reader, start)
    assert reader.partitions(start, end) == []
    assert end != start  # so that Spark stores it
    assert next_end(reader, end) == end


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_every_entry_is_read_when_spark_asks_for_the_end_first(
    client: redis.Redis, any_server: LocalServer, starting: str
) -> None:
    """Spark 4.0 and 4.1 do so with AvailableNow, when a micro-batch was not committed."""
    add(client, "s", range(10), ids)
    first = query_on(any_server)
    initial = first.initialOffset()
    reached = next_end(first, initial)
    first.partitions(initial, reached)
    add(client, "s", range(10, 100), ids)
    second = query_on(any_server, starting=starting, min_partitions=4)
    end = json.loads(json.dumps(second.latestOffset()))
    replayed = second.partitions(second.initialOffset(), reached)
    assert [n for partition in replayed for n in rows(second.read(partition))] == list(range(10))
    planned = second.partitions(reached, end)
    assert [n for partition in planned for n in rows(second.read(partition))] == list(range(10, 100))
    # The same in another process.
    again = query_on(any_server).partitions(reached, end)
    assert [(one.start, one.last) for one in again if isinstance(one, Range)] == [
        (one.start, one.last) for one in planned if isinstance(one, Range)
    ]


@pytest.mark.needs("redis-7.0")
def test_tasks_report_trimmed_entries_of_a_capped_micro_batch_exactly(
    client: redis.Redis, any_server: LocalServer
) -> None:
    add(client, "s", range(1_000), ids)
    reader = query_on(any_server, max_entries_per_trigger=600, min_partitions=2)
    start = reader.initialOffset()
    partitions = reader.partitions(start, next_end(reader, start))
    client.xtrim("s", maxlen=550, approximate=False)
    with pytest.raises(DataLossError) as caught:
        rows(reader.read(partitions[0]))
    assert caught.value.exact
    with pytest.raises(DataLossError) as caught:
        rows(reader.read(partitions[1]))
    assert (caught.value.lost, caught.value.exact) == (150, True)


def test_an_idle_query_polls_once_per_interval(client: redis.Redis, any_server: LocalServer) -> None:
    add(client, "s", range(3), ids)
    reader = query_on(any_server, poll_interval=600, stream_key="s")
    start = reader.initialOffset()
    end = next_end(reader, start)
    reader.partitions(start, end)
    for _ in range(100):
        assert reader.latestOffset(end, None) == end
        reader.reportLatestOffset()
    assert client.info("commandstats")["cmdstat_xinfo|stream"]["calls"] == 2


def test_offsets_and_partitions_show_no_password(any_server: LocalServer, client: redis.Redis) -> None:
    client.acl_setuser("reader", enabled=True, passwords=["+hunter2"], keys=["*"], commands=["+@all"])
    add(client, "s", range(3), ids)
    reader = query_on(any_server, username="reader", password="hunter2")
    start = reader.initialOffset()
    end = next_end(reader, start)
    partitions = reader.partitions(start, end)
    shown = f"{start} {end} {reader.reportLatestOffset()} {partitions} {reader.__dict__}"
    assert "hunter2" not in shown


def test_a_query_reads_up_to_the_highest_entry_id(client: redis.Redis, any_server: LocalServer) -> None:
    client.xadd("s", {"n": 1}, id=f"{HIGHEST[0]}-{HIGHEST[1]}")
    reader = query_on(any_server)
    start = reader.initialOffset()
    end = next_end(reader, start)
    (partition,) = reader.partitions(start, end)
    assert rows(reader.read(partition)) == [1]
    assert next_end(reader, end) == end
