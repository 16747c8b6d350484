"""The commit message of a task, and the logs of task and driver. The task runs without Spark here."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StructType

from headrace import DeliveryError
from headrace.spark import partition as of_spark
from headrace.spark import worker
from headrace.spark.commit import PartitionCommit
from headrace.spark.datasource import BatchWriter, RedisStreams
from headrace.spark.failures import RowFailure
from headrace.testing import LocalServer
from support.datasource import payloads, stored, to

pytestmark = pytest.mark.usefixtures("text_key")

Connect = Callable[..., redis.Redis]

ROWS = pa.RecordBatch.from_pydict(
    {
        "payload": ["body-0", None, "body-2", "body-3"],
        "message_id": ["a", "b", "c", "d"],
        "stream_key": ["events", "events", "text", None],
    }
)


class Task:
    """The part of `TaskContext` that a writer uses."""

    def __init__(self, partition: int, attempt: int) -> None:
        self._numbers = partition, attempt

    def partitionId(self) -> int:  # noqa: N802
        return self._numbers[0]

    def attemptNumber(self) -> int:  # noqa: N802
        return self._numbers[1]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, "headrace.spark")
    yield caplog
    for lent in worker._idle.values():
        lent.close()
    worker._idle.clear()


def make(server: LocalServer, **options: Any) -> BatchWriter:
    schema = StructType().add("payload", "string").add("message_id", "string").add("stream_key", "string")
    given = {name: str(value) for name, value in to(server, **options).items()}
    return RedisStreams(given).writer(schema, overwrite=False)


def run(
    monkeypatch: pytest.MonkeyPatch, writer: BatchWriter, *batches: pa.RecordBatch, partition: int = 0, attempt: int = 0
) -> PartitionCommit:
    monkeypatch.setattr(of_spark, "current_task", lambda: Task(partition, attempt))
    written = pickle.loads(pickle.dumps(writer)).write(iter(batches))
    again = pickle.loads(pickle.dumps(written))
    assert again == written
    assert isinstance(again, PartitionCommit)
    return again


def test_the_commit_message_counts_the_outcomes_of_a_task(
    monkeypatch: pytest.MonkeyPatch, client: redis.Redis, any_server: LocalServer, log: pytest.LogCaptureFixture
) -> None:
    writer = make(any_server, on_failure="report")
    written = run(monkeypatch, writer, ROWS, ROWS, partition=3)
    assert (written.partitions, written.delivered, written.failed, written.rows) == ((3,), 4, 4, 8)
    assert written.failed_by_code == {"NULL_PAYLOAD": 2, "WRONGTYPE": 2}
    assert (written.deduplicated, written.possible_duplicates, written.retries, written.dead_letters) == (0, 0, 0, 0)
    assert [(f.message_id, f.code, f.partition, f.ordinal) for f in written.first_failures] == [
        ("b", "NULL_PAYLOAD", 3, 1),
        ("c", "WRONGTYPE", 3, 2),
        ("b", "NULL_PAYLOAD", 3, 5),
        ("c", "WRONGTYPE", 3, 6),
    ]
    sent = 4 * len(b"XADD events * payload body-0 ts 2026-04-14T12:00:00Z")
    assert sent < written.bytes_sent < 4 * sent
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "partition 3, attempt 0: 4 rows delivered, 4 failed (NULL_PAYLOAD 2, WRONGTYPE 2), "
        f"{written.bytes_sent:,} bytes sent to unix://{any_server.unix_socket} stream key events"
    )


def test_rows_of_a_second_attempt_are_possible_duplicates(
    monkeypatch: pytest.MonkeyPatch, client: redis.Redis, any_server: LocalServer
) -> None:
    batch = ROWS.slice(0, 1)
    assert run(monkeypatch, make(any_server), batch).possible_duplicates == 0
    assert run(monkeypatch, make(any_server), batch, attempt=1).possible_duplicates == 1
    assert payloads(client) == ["body-0", "body-0"]


def test_a_transaction_deduplicates_rows(
    monkeypatch: pytest.MonkeyPatch, client: redis.Redis, any_server: LocalServer
) -> None:
    writer = make(any_server, txn_app_id="job", txn_version="1", on_failure="dead_letter", dead_letter_key="dead")
    first = run(monkeypatch, writer, ROWS)
    assert (first.delivered, first.deduplicated, first.failed, first.dead_letters) == (2, 0, 2, 2)
    second = run(monkeypatch, writer, ROWS, attempt=1)
    assert (second.delivered, second.possible_duplicates) == (second.deduplicated, 0)
    assert payloads(client) == ["body-0", "body-3"]
    assert len(stored(client, "dead")) == 2 + second.failed


def test_a_failure_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, client: redis.Redis, any_server: LocalServer
) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield ROWS.slice(0, 1)
        raise RuntimeError("Spark lost the rows")

    monkeypatch.setattr(of_spark, "current_task", lambda: Task(0, 0))
    with pytest.raises(RuntimeError, match="Spark lost the rows"):
        make(any_server).write(broken())
    assert not worker._idle
    assert payloads(client) == ["body-0"]


def failure(partition: int, ordinal: int, code: str) -> RowFailure:
    return RowFailure(f"id-{ordinal}", "permanent", code, "the words of the server", "no", partition, ordinal)


def test_the_commit_sums_and_logs_the_counts_of_all_tasks(
    any_server: LocalServer, log: pytest.LogCaptureFixture
) -> None:
    one = PartitionCommit(
        partitions=(0,), delivered=1_000, deduplicated=10, retries=3, bytes_sent=5_000, possible_duplicates=2
    )
    one.retry_wait_seconds = 1.5
    two = PartitionCommit(partitions=(1,), delivered=500, first_failures=tuple(failure(1, n, "OOM") for n in range(10)))
    two.failed_by_code.update({"OOM": 11})
    two.dead_letters = 11
    two.retry_wait_seconds = 2
    three = PartitionCommit(partitions=(2,), first_failures=(failure(2, 5, "WRONGTYPE"),))
    three.failed_by_code.update({"OOM": 1, "WRONGTYPE": 20})
    summed = PartitionCommit.sum([one, None, two, three])
    assert summed.partitions == (0, 1, 2)
    assert (summed.delivered, summed.failed, summed.rows) == (1_500, 32, 1_532)
    assert summed.retry_wait_seconds == 3.5
    assert len(summed.first_failures) == 10

    make(any_server).commit([one])
    assert [(record.levelno, record.getMessage()) for record in log.records] == [
        (
            logging.INFO,
            "1,000 rows delivered, 0 failed, 10 deduplicated, 3 retries, 2 possible duplicates, 1.5 s of retry waits, "
            f"5,000 bytes sent to unix://{any_server.unix_socket} stream key events",
        )
    ]
    log.clear()
    make(any_server, on_failure="report").commit([one, two, three])
    (record,) = log.records
    assert record.levelno == logging.WARNING
    lines = record.getMessage().splitlines()
    assert lines[0].startswith(
        "1,500 rows delivered, 32 failed (WRONGTYPE 20, OOM 12), 10 deduplicated, 11 dead letters"
    )
    assert lines[1] == (
        "  row 0 of partition 1, message ID 'id-0': OOM (permanent, written: no): the words of the server"
    )
    assert len(lines) == 11


def test_the_commit_enforces_the_limits(any_server: LocalServer) -> None:
    written = PartitionCommit(partitions=(0,), delivered=90, first_failures=(failure(0, 1, "OOM"),))
    written.failed_by_code.update({"OOM": 10})
    make(any_server, on_failure="report", max_failed_rows=10, max_failed_ratio=0.1).commit([written])
    with pytest.raises(DeliveryError) as caught:
        make(any_server, on_failure="report", max_failed_ratio=0.09).commit([written])
    error = caught.value
    assert (error.failed, error.delivered, error.failed_by_code) == (10, 90, {"OOM": 10})
    assert error.failures == written.first_failures
    assert str(error).splitlines() == [
        f"10 of 100 rows were not written to unix://{any_server.unix_socket} stream key events (OOM 10): "
        "more than max_failed_ratio=0.09",
        "  row 1 of partition 0, message ID 'id-1': OOM (permanent, written: no): the words of the server",
        "  and 9 more",
        "OOM: give the server more memory, or bound the stream with maxlen; "
        'error_overrides={"OOM": "retryable"} waits for it',
    ]


def test_an_abort_is_logged(any_server: LocalServer, log: pytest.LogCaptureFixture) -> None:
    make(any_server).abort([PartitionCommit(partitions=(0,), delivered=7), None])
    (record,) = log.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        f"the write to unix://{any_server.unix_socket} stream key events was aborted: "
        "1 of 2 partitions did not finish; the others: 7 rows delivered, 0 failed, 0 bytes sent"
    )
