"""`on_failure` on each server, with all that can go wrong in one write, and its dead letters written again."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.datasource import InterceptingServer, Options, payloads, save, stored, writer
from support.marks import refuses_long_strings
from support.paths import ROOT

Connect = Callable[..., redis.Redis]

MANUAL = ROOT / "docs" / "spark.md"

ROWS = 100
NULLS = {n for n in range(ROWS) if n % 10 == 3}
WRONG = {n for n in range(ROWS) if n % 10 == 5}
BIG = {n for n in range(ROWS) if n % 10 == 7}
GOOD = set(range(ROWS)) - NULLS - WRONG - BIG
CODES = {"NULL_PAYLOAD": len(NULLS), "WRONGTYPE": len(WRONG), "OOM": len(BIG)}


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> redis.Redis:
    client = connect(server)
    client.set("text", "not a stream")
    return client


class Memory:
    """The answer of a server without memory for some rows, until `full` is reset."""

    def __init__(self) -> None:
        self.full = True

    def __call__(self, command: list[bytes]) -> bytes | None:
        if self.full and command[1] == b"events" and any(b"big" in argument for argument in command):
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        return None


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def options(server: LocalServer, memory: Memory) -> Iterator[Options]:
    """Options for the server, which has no memory for some rows of the stream `events`."""
    with InterceptingServer(server, memory) as intercepted:
        yield {"host": "127.0.0.1", "port": intercepted.port, "stream_key": "events"}


def everything(spark: SparkSession, *more: str) -> DataFrame:
    """Rows of two partitions: without a payload, for a key that is no stream, too large, and good ones."""
    return spark.range(0, ROWS, 1, 2).selectExpr(
        "id AS message_id",
        "case id % 10 when 3 then null when 7 then concat('big', id) else concat('p', id) end AS body",
        "if(id % 10 = 5, 'text', null) AS stream_key",
        *more,
    )


def written(client: redis.Redis) -> list[int]:
    """The numbers of the rows in the stream."""
    return sorted(int(payload.removeprefix("p")) for payload in payloads(client))


def test_failed_rows_fail_the_write_by_default(spark: SparkSession, client: redis.Redis, options: Options) -> None:
    with pytest.raises(PythonException) as caught:
        writer(everything(spark), options).save()
    text = str(caught.value)
    assert "15 of 50 rows were not written to redis://127.0.0.1" in text
    for code in CODES:
        assert f"{code} 5" in text
    rows = written(client)
    assert len(rows) == len(set(rows)) >= len(GOOD) // 2
    assert set(rows) <= GOOD


def test_on_failure_report_writes_all_good_rows(spark: SparkSession, client: redis.Redis, options: Options) -> None:
    options |= {"on_failure": "report", "max_failed_rows": 30}
    writer(everything(spark), options).save()
    assert written(client) == sorted(GOOD)
    with pytest.raises(AnalysisException, match=r"30 of 100 rows .*: more than max_failed_rows=29"):
        writer(everything(spark), options | {"max_failed_rows": 29}).save()


@pytest.mark.parametrize("layout", ["payload", "json"])
def test_dead_letters_are_written_again(
    spark: SparkSession,
    client: redis.Redis,
    server: LocalServer,
    options: Options,
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
) -> None:
    """By the example of docs/spark.md, verbatim; afterwards the streams hold all rows of the DataFrame."""
    if layout == "payload":
        frame, body = everything(spark), "body"
        left = NULLS  # what has no payload cannot be written
    else:
        frame, body = everything(spark, "id % 7 AS more"), "to_json(struct(message_id, body, more))"
        left = set()
    writer(frame, {**options, "on_failure": "dead_letter", "dead_letter_key": "dead"}).save()
    letters = stored(client, "dead").values()
    codes = {code: count for code, count in CODES.items() if left or code != "NULL_PAYLOAD"}
    assert Counter(fields["code"].decode() for fields in letters) == codes

    memory.full = False
    client.delete("text")
    (example,) = re.findall(r"```python\n([^`]*client\.xdel\(\"dead\", entry_id\)\n[^`]*)```", MANUAL.read_text())
    monkeypatch.setenv("REDIS_URL", server.url)
    names = {"os": os, "pa": pa, "headrace": headrace, "Dispatcher": Dispatcher, "Endpoint": Endpoint, "client": client}
    exec(example, names)
    assert {int(fields["message_id"]) for fields in stored(client, "dead").values()} == left
    rows = frame.selectExpr("coalesce(stream_key, 'events') AS key", f"{body} AS payload").dropna().collect()
    assert len(rows) == ROWS - len(left)
    for key in ("events", "text"):
        assert sorted(payloads(client, key)) == sorted(row.payload for row in rows if row.key == key), key


@pytest.mark.thorough
def test_dead_letters_refused_for_memory_fail_the_task(
    spark: SparkSession, client: redis.Redis, server: LocalServer
) -> None:
    """A real server without memory has none for dead letters either: the task fails rather than lose rows."""
    frame = spark.range(0, 300, 1, 1).selectExpr(
        "id AS message_id",
        f"case when id % 10 = 3 then null when id < 100 then 'small' else repeat('big', {20_000}) end AS body",
        "if(id % 10 = 5 and id < 100, 'text', null) AS stream_key",
    )
    memory: Any = client.info("memory")
    client.config_set("maxmemory", memory["used_memory"] + 4 * 1024 * 1024)
    client.config_set("maxmemory-policy", "noeviction")
    with pytest.raises(PythonException) as caught:
        save(frame, server)
    text = str(caught.value)
    for code in ("NULL_PAYLOAD 30", "WRONGTYPE 10", "OOM "):
        assert code in text
    assert "give the server more memory, or bound the stream with maxlen" in text
    with pytest.raises(PythonException, match=r"\(OOM \d+\): these are dead letters; without them rows would be lost"):
        save(frame, server, on_failure="dead_letter", dead_letter_key="dead")
    client.config_set("maxmemory", 1)
    before = client.xlen("events")
    save(frame, server, on_failure="report")
    assert client.xlen("events") == before
    with pytest.raises(
        PythonException, match=r"300 of 300 rows .*\(OOM 270, NULL_PAYLOAD 30\): more than max_failed_rows"
    ):
        save(frame, server, on_failure="report", max_failed_rows=299)


@refuses_long_strings
@pytest.mark.parametrize("retry", ["true", "false"])
@pytest.mark.parametrize("layout", ["payload", "json"])
def test_the_dead_letter_of_a_row_that_is_too_large_omits_the_row(
    spark: SparkSession, client: redis.Redis, server: LocalServer, layout: str, retry: str
) -> None:
    """The server refuses such a letter like the row. Without retries each costs other letters their connection."""
    client.config_set("proto-max-bulk-len", 1 << 20)
    large, wrong = {20, 21, 60}, {5, 22, 61}
    frame = spark.range(0, 80, 1, 1).selectExpr(
        "id AS message_id",
        f"repeat('x', if(id in (20, 21, 60), {(1 << 20) + 1}, 10)) AS body",
        "if(id in (5, 22, 61), 'text', null) AS stream_key",
    )
    layouts = {"payload": {}, "json": {"json": "message_id,body"}}
    save(frame, server, on_failure="dead_letter", dead_letter_key="dead", retry=retry, **layouts[layout])
    letters = {int(fields["message_id"]): fields for fields in stored(client, "dead").values()}
    content = {"payload": "payload", "json": "row"}[layout]
    assert {row for row, fields in letters.items() if content not in fields} == large
    why = b"; the letter has no row, which is too large for the server"
    assert {row for row, fields in letters.items() if fields["message"].endswith(why)} == large
    assert {row for row, fields in letters.items() if fields["code"] == b"TOO_LARGE"} >= {20}
    assert set(letters) >= large | wrong
    if retry == "true":
        assert set(letters) == large | wrong
    # Each row is in the stream, or in a dead letter, or in both, if it had not been known.
    unknown = {row for row, fields in letters.items() if fields["written"] == b"unknown"}
    assert len(stored(client)) in range(80 - len(letters), 80 - len(letters) + len(unknown) + 1)
