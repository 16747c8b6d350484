"""`spark.readStream.format("redis_streams")` in real Spark: micro-batches, restarts, replays, caps, losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.source.stream import HAS_LIMITS
from headrace.testing import LocalServer
from support.datasource import payloads, to
from support.processes import wait_until
from support.source import add


class Numbers:
    """A query that reads the field `n` of entries, and what its micro-batches had."""

    def __init__(self, spark: SparkSession, server: LocalServer, folder: Path) -> None:
        self.spark = spark
        self.server = server
        self.checkpoint = folder / "checkpoint"
        self.batches: list[list[int]] = []

    def read(self, **options: Any) -> DataFrame:
        given = {"starting": "earliest", **to(self.server, **options)}
        if "stream_keys" in given:
            del given["stream_key"]
        if "max_entries_per_trigger" in given and not HAS_LIMITS:
            given.setdefault("available_now", "true")
        return self.spark.readStream.format("redis_streams").schema("n long").options(**given).load()

    def run(self, **options: Any) -> StreamingQuery:
        """Run the query up to the newest entry."""
        return self.end(self.read(**options).writeStream.foreachBatch(self.keep))

    def keep(self, frame: DataFrame, _: int) -> None:
        """Keep the rows of a micro-batch."""
        first, second = ([row.n for row in frame.collect()] for _ in range(2))
        assert first == second  # two actions read the same rows
        self.batches.append(first)

    def end(self, writer: Any) -> StreamingQuery:
        query: StreamingQuery = (
            writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(100)
        return query

    def offset(self, number: int) -> dict[str, Any]:
        """The offset of a micro-batch, in each stream."""
        lines = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()
        offset: dict[str, Any] = json.loads(lines[2])
        return dict(offset["streams"])

    def is_committed(self, number: int) -> bool:
        """Whether a micro-batch is finished."""
        return (self.checkpoint / "commits" / str(number)).exists()

    def forget_commit(self, number: int) -> None:
        """Remove the commit of a micro-batch, as if the driver had died before it: it runs again."""
        for path in (self.checkpoint / "commits").glob(f"*{number}*"):
            path.unlink()


@pytest.fixture
def query(spark: SparkSession, any_server: LocalServer, tmp_path: Path) -> Numbers:
    return Numbers(spark, any_server, tmp_path)


def test_every_entry_is_read_once_across_restarts(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(900))
    run = query.run(max_entries_per_trigger=400)
    if HAS_LIMITS:
        ends = [json.loads(progress["sources"][0]["endOffset"]) for progress in run.recentProgress]
        newest = [json.loads(progress["sources"][0]["latestOffset"]) for progress in run.recentProgress]
        lags = [
            latest["streams"]["events"]["n"] - end["streams"]["events"]["n"]
            for latest, end in zip(newest, ends, strict=True)
        ]
        assert lags[:3] == [500, 100, 0]
        assert [len(batch) for batch in query.batches if batch] == [400, 400, 100]
    add(client, "events", range(900, 1_000))
    add(client, "more", range(1_000, 1_050))  # a stream that is added begins with its oldest entry
    query.run(stream_keys="events,more,nothing", max_entries_per_trigger=400)
    assert sorted(n for batch in query.batches for n in batch) == list(range(1_050))
    with pytest.raises(StreamingQueryException, match="the checkpoint has a position in stream 'more'"):
        query.run()


def test_available_now_reads_the_remaining_entries(client: redis.Redis, query: Numbers) -> None:
    """Or the query says at its start what it needs, where Spark does not tell the trigger."""
    add(client, "events", range(100))
    query.run()
    add(client, "events", range(100, 1_000))
    capped = query.read(max_entries_per_trigger=300)
    if not HAS_LIMITS:
        options = {**to(query.server), "max_entries_per_trigger": 300}
        unsaid = query.spark.readStream.format("redis_streams").schema("n long").options(**options).load()
        with pytest.raises(StreamingQueryException, match=r"max_entries_per_trigger needs available_now on Spark 4\.0"):
            query.end(unsaid.writeStream.foreachBatch(query.keep))
    query.end(capped.writeStream.foreachBatch(query.keep))
    sizes = [len(batch) for batch in query.batches]
    assert sizes == ([100, 300, 300, 300] if HAS_LIMITS else [100, 900])
    assert [n for batch in query.batches for n in sorted(batch)] == list(range(1_000))


@pytest.mark.thorough
def test_a_group_shows_the_progress_of_a_query(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(100))
    client.xgroup_create("events", "used", id="0")
    client.xreadgroup("used", "me", {"events": ">"}, count=7)
    text = r"StateError.*commit_group='used': the group of stream 'events' has 1 consumer and 7 pending entries"
    with pytest.raises(StreamingQueryException, match=text):
        query.run(commit_group="used")
    query.run(commit_group="spark")
    add(client, "events", range(100, 150))
    query.run(commit_group="spark")
    (group,) = (group for group in client.xinfo_groups("events") if group["name"] == b"spark")
    # With AvailableNow Spark 4.0 and 4.1 do not ask what comes after the last micro-batch.
    assert (group["lag"], group["consumers"]) == (0 if HAS_LIMITS else 50, 0)
    assert query.batches == [list(range(100)), list(range(100, 150))]


def test_a_micro_batch_waits_for_its_minimum(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(5))
    frame = query.read(min_entries_per_trigger=100, max_trigger_delay=3600)
    if not HAS_LIMITS:
        with pytest.raises(StreamingQueryException, match=r"min_entries_per_trigger needs Spark 4\.2"):
            query.end(frame.writeStream.foreachBatch(query.keep))
        return
    writer = frame.writeStream.foreachBatch(query.keep).option("checkpointLocation", str(query.checkpoint))
    running = writer.start()
    try:
        wait_until(lambda: query.is_committed(0))
        add(client, "events", range(5, 104))
        client.config_resetstat()
        wait_until(lambda: client.info("commandstats").get("cmdstat_xinfo|stream", {}).get("calls", 0) > 3)
        add(client, "events", range(104, 105))
        wait_until(lambda: query.is_committed(1))
    finally:
        running.stop()
    # The first one waits for nothing; the second one had 99 entries to wait with.
    assert [len(batch) for batch in query.batches] == [5, 100]
    add(client, "events", range(105, 107))
    query.end(query.read(min_entries_per_trigger=100).writeStream.foreachBatch(query.keep))
    assert query.batches[2:] == [[105, 106]]


@pytest.mark.thorough
def test_a_replayed_micro_batch_reads_the_same_rows(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(300))
    query.run(min_partitions=3)
    planned = query.offset(0)["events"]
    assert len(planned["splits"]) == 2
    query.forget_commit(0)
    add(client, "events", range(300, 400))
    query.run(min_partitions=7, starting="latest")
    if not HAS_LIMITS:  # there AvailableNow ends with the micro-batch that runs again
        query.run()
    first, again, rest = query.batches
    assert first == again
    assert rest == list(range(300, 400))
    assert query.offset(0)["events"] == planned


def test_rows_of_a_replayed_micro_batch_are_written_once(
    spark: SparkSession, client: redis.Redis, query: Numbers, any_server: LocalServer
) -> None:
    add(client, "events", range(100))
    for partitions in (3, 1):
        frame = query.read(min_partitions=partitions).selectExpr("string(n) AS payload")
        query.end(frame.writeStream.format("redis_streams").options(**to(any_server, stream_key="copy")))
        assert sorted(map(int, payloads(client, "copy"))) == list(range(100))
        query.forget_commit(0)


def test_trimming_between_micro_batches_is_counted(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(100))
    query.run()
    add(client, "events", range(100, 200))
    client.xtrim("events", maxlen=40, approximate=False)
    with pytest.raises(StreamingQueryException, match=r"DataLossError.*60 entries of stream 'events'"):
        query.run()
    query.run(fail_on_data_loss=False)
    assert query.batches == [list(range(100)), list(range(160, 200))]
    assert (query.offset(1)["events"]["lost"], query.offset(1)["events"]["n"]) == (60, 200)


@pytest.mark.thorough
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_replay_shortened_by_trimming_fails(client: redis.Redis, query: Numbers, partitions: int) -> None:
    add(client, "events", range(100))
    query.run(min_partitions=partitions)
    query.forget_commit(0)
    client.xtrim("events", maxlen=30, approximate=False)
    with pytest.raises(StreamingQueryException, match="allow_short_replay"):
        query.run(fail_on_data_loss=False)
    query.run(fail_on_data_loss=False, allow_short_replay=True)
    assert query.batches == [list(range(100)), list(range(70, 100))]


@pytest.mark.thorough  # tests/spark/test_source_losses.py shows it without a query
def test_a_replaced_stream_is_detected(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(10))
    query.run()
    client.delete("events")
    add(client, "events", range(20, 25))
    with pytest.raises(StreamingQueryException, match=r"StreamReplacedError.*5 entries were ever added"):
        query.run()
    query.run(fail_on_data_loss=False)
    assert query.batches == [list(range(10)), list(range(20, 25))]


@pytest.mark.thorough  # test_source_batch.py shows it of a batch
def test_invalid_options_fail_the_query(client: redis.Redis, query: Numbers) -> None:
    add(client, "events", range(1))
    for options, text in [
        ({"ending": "5-0"}, "ending is for spark.read"),
        ({"maxOffsetsPerTrigger": "5"}, "unknown option 'maxOffsetsPerTrigger': here it is max_entries_per_trigger"),
        ({"starting": "9999999999999-0"}, "is after the newest entry"),
    ]:
        with pytest.raises(StreamingQueryException, match=text):
            query.run(**options)
