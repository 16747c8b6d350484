"""`df.writeStream.format("redis_streams")` in real Spark: micro-batches, restarts, replays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.testing import LocalServer
from support.datasource import payloads, stored, to
from support.marks import thorough

Connect = Callable[..., redis.Redis]


class Lines:
    """A folder of text files that a stream reads, one file per micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder / "lines"
        self._folder.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.written: list[str] = []

    def add(self, count: int) -> None:
        """Add a file of `count` lines."""
        lines = [f"line {n}" for n in range(len(self.written), len(self.written) + count)]
        path = self._folder / f"{len(self.written):06}.txt"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + len(self.written),) * 2)  # Spark reads the oldest file first
        self.written += lines

    def read(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", "1").text(str(self._folder))

    def forget_commit(self, batch: int) -> None:
        """Remove the commit of a micro-batch, as if the driver had died before it: it runs again."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def start(lines: Lines, server: LocalServer, frame: DataFrame | None = None, **options: Any) -> StreamingQuery:
    """Start a query that ends when all files are written."""
    frame = lines.read() if frame is None else frame
    write = frame.writeStream.format("redis_streams").trigger(availableNow=True)
    return write.option("checkpointLocation", str(lines.checkpoint)).options(**to(server, **options)).start()


def run(lines: Lines, server: LocalServer, **options: Any) -> StreamingQuery:
    query = start(lines, server, **options)
    assert query.awaitTermination(60)
    return query


# --- micro-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", ["auto", *thorough("off")])
def test_every_line_is_written_once_across_restarts(
    client: redis.Redis, any_server: LocalServer, lines: Lines, exactly_once: str
) -> None:
    for count in (3, 2):
        lines.add(count)
    run(lines, any_server, exactly_once=exactly_once)
    assert payloads(client) == lines.written
    lines.add(4)
    query = run(lines, any_server, exactly_once=exactly_once)
    assert payloads(client) == lines.written
    assert [progress.batchId for progress in query.recentProgress if progress.numInputRows] == [2]


def test_rows_of_several_columns_are_written_as_json(
    client: redis.Redis, any_server: LocalServer, lines: Lines
) -> None:
    lines.add(3)
    run(lines, any_server, frame=lines.read().selectExpr("value", "length(value) AS n"), message_id="value")
    assert payloads(client) == [json.dumps({"value": line, "n": 6}, separators=(",", ":")) for line in lines.written]


def test_invalid_options_fail_the_query_before_any_row_is_written(
    client: redis.Redis, any_server: LocalServer, lines: Lines
) -> None:
    lines.add(1)
    for options, text in [
        ({"strem_key": "x"}, "unknown option 'strem_key'; did you mean 'stream_key'?"),
        ({"txn_app_id": "job"}, "txn_app_id is for batch writes"),
        ({"payload": "nope"}, "payload names an unknown column"),
    ]:
        with pytest.raises(StreamingQueryException, match=text):
            run(lines, any_server, **options)
    assert client.dbsize() == 0


def test_other_output_modes_are_refused(client: redis.Redis, any_server: LocalServer, lines: Lines) -> None:
    lines.add(1)
    counts = lines.read().groupBy("value").count().writeStream.format("redis_streams")
    counts = counts.options(**to(any_server, checkpointLocation=str(lines.checkpoint)))
    # The second text is Spark's own: it has no update mode for Python data sources.
    for mode, text in (("complete", "use 'append', or foreachBatch"), ("update", "does not support Update mode")):
        with pytest.raises(StreamingQueryException, match=text):
            counts.outputMode(mode).start().awaitTermination(60)
    assert client.dbsize() == 0


def test_dead_letters_name_their_micro_batch(client: redis.Redis, any_server: LocalServer, lines: Lines) -> None:
    client.set("text", "not a stream")
    for count in (2, 2):
        lines.add(count)
    frame = lines.read().selectExpr("value AS payload", "if(value = 'line 3', 'text', null) AS stream_key")
    run(lines, any_server, frame=frame, on_failure="dead_letter", dead_letter_key="dead")
    assert payloads(client) == ["line 0", "line 1", "line 2"]
    (letter,) = stored(client, "dead").values()
    assert (letter["payload"], letter["batch_id"], letter["ordinal"]) == (b"line 3", b"1", b"1")


# --- exactly once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exactly_once", "entries"), [("auto", 6), *thorough(("script", 6)), ("off", 9)])
def test_a_replayed_micro_batch_is_deduplicated_unless_exactly_once_is_off(
    client: redis.Redis, any_server: LocalServer, lines: Lines, exactly_once: str, entries: int
) -> None:
    for count in (3, 3):
        lines.add(count)
    run(lines, any_server, exactly_once=exactly_once)
    lines.forget_commit(1)
    run(lines, any_server, exactly_once=exactly_once)
    assert client.xlen("events") == entries
    assert sorted(set(payloads(client))) == sorted(lines.written)


def test_a_replayed_micro_batch_with_failed_rows_is_deduplicated(
    client: redis.Redis, any_server: LocalServer, lines: Lines
) -> None:
    """Written rows are deduplicated. Dead letters may be duplicated: a row is rather reported twice than lost."""
    client.set("text", "not a stream")
    lines.add(5)
    frame = lines.read().selectExpr("value AS payload", "if(value = 'line 2', 'text', null) AS stream_key")
    for _ in range(2):
        run(lines, any_server, frame=frame, on_failure="dead_letter", dead_letter_key="dead")
        lines.forget_commit(0)
    assert payloads(client) == [line for line in lines.written if line != "line 2"]
    assert {fields["payload"] for fields in stored(client, "dead").values()} == {b"line 2"}


def test_rows_after_a_refused_one_become_dead_letters(
    client: redis.Redis, any_server: LocalServer, lines: Lines
) -> None:
    """They are not written either, to keep the order of the stream."""
    for count in (4, 2):
        lines.add(count)
    frame = lines.read().selectExpr("value AS payload", "if(value = 'line 2', '1-0', null) AS entry_id")
    run(lines, any_server, frame=frame, on_failure="dead_letter", dead_letter_key="dead", entry_id="entry_id")
    assert payloads(client) == ["line 0", "line 1", "line 4", "line 5"]
    letters = [(fields["payload"], fields["code"]) for fields in stored(client, "dead").values()]
    assert letters == [(b"line 2", b"ERR"), (b"line 3", b"BLOCKED")]


def test_a_failed_micro_batch_continues_where_it_failed(
    client: redis.Redis, any_server: LocalServer, lines: Lines
) -> None:
    client.set("text", "not a stream")
    lines.add(5)
    frame = lines.read().selectExpr("value AS payload", "if(value = 'line 2', 'text', null) AS stream_key")
    with pytest.raises(StreamingQueryException, match=r"\(WRONGTYPE 1\)"):
        run(lines, any_server, frame=frame)
    client.delete("text")
    run(lines, any_server, frame=frame)
    assert sorted(payloads(client)) == [line for line in lines.written if line != "line 2"]
    assert payloads(client, "text") == ["line 2"]
