"""The writers that Spark ships to its tasks, for batch and for streaming."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource

from headrace.dispatcher import Dispatcher
from headrace.errors import ConfigError
from headrace.report import DeliveryReport
from headrace.spark import worker
from headrace.spark.dead_letters import DeadLetters
from headrace.spark.failures import Written, check_limits, delivery_error, failed_rows, server_stayed_away, total
from headrace.spark.layout import Layout
from headrace.spark.options import Settings

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """What Spark 4.0 takes for one: it hands record batches to any writer that is a DataSourceArrowWriter."""


__all__ = ["BatchWriter", "StreamWriter"]

logger = logging.getLogger("headrace.spark")

#: Where outcomes are settled in groups: what a group has at most, so that its rows can be kept until then.
GROUP_ROWS = 65_536
GROUP_BYTES = 16 * 1024 * 1024

#: How Spark names, for its tasks, the query and its micro-batch. The same since Spark 2.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        transaction = self._settings.transaction
        token = None
        if transaction is not None:
            token = (_token(self._settings, transaction.app_id), transaction.version)
        return Partition(self._settings, self._layout, token, None).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written, and see how many rows failed in all."""
        _commit(self._settings, messages, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written all the same."""
        _abort(self._settings, messages, "")


class StreamWriter(StreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition of a micro-batch."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        token = None
        if self._settings.exactly_once:
            if query is None or batch is None:
                text = "exactly_once needs the query and the micro-batch, which Spark does not tell; 'off' does not"
                raise ConfigError(text, option="exactly_once")
            token = (_token(self._settings, query), int(batch))
        return Partition(self._settings, self._layout, token, None if batch is None else int(batch)).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Log what was written, and see how many rows failed in all."""
        _commit(self._settings, messages, f"micro-batch {batchId}: ")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Log what was written all the same."""
        _abort(self._settings, messages, f"micro-batch {batchId}: ")


class Partition:
    """One task: writes the rows of a partition and counts what became of them.

    With `on_failure="fail"` outcomes are looked at as they come, and the first failure ends the task once everything in
    flight has its outcome. Otherwise rows are written in groups that are kept until all their outcomes are known. A
    server that stays away ends the task in any case.
    """

    def __init__(self, settings: Settings, layout: Layout, token: tuple[str, int] | None, batch_id: int | None) -> None:
        task = _task()
        self._settings = settings
        self._layout = layout
        self._token = token
        self._batch_id = batch_id
        self._number = task.partitionId()
        self._attempt = task.attemptNumber()
        self._written = Written(partitions=(self._number,))

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows.

        Raises:
            DeliveryError: Rows failed, and the failure policy does not take it.
        """
        written, settings = self._written, self._settings
        with ExitStack() as resources:
            dispatcher = resources.enter_context(worker.dispatcher(settings.endpoint, settings.dispatcher, text=True))
            before = dispatcher.stats()
            if self._token is not None:
                dispatcher.begin(*self._token)
            if settings.failure.on_failure == "fail":
                self._write_all(dispatcher, batches)
            else:
                self._write_groups(dispatcher, batches, resources)
            written.add_stats(before, dispatcher.stats())
        if self._attempt and self._token is None:
            # What the attempts before this one wrote is not known: each may have written all of these rows.
            written.possible_duplicates += self._attempt * written.delivered
        level = logging.WARNING if written.failed else logging.INFO
        logger.log(level, "partition %d, attempt %d: %s to %s", self._number, self._attempt, written, settings.endpoint)
        if settings.failure.on_failure == "fail":
            check_limits(written, settings.failure, settings.endpoint, whole=False)
        return written

    def _write_all(self, dispatcher: Dispatcher, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            dispatcher.produce_batch(batch, **self._layout.arguments)
            self._count(dispatcher.poll())
            if self._written.failed:
                break
        self._count(dispatcher.flush())

    def _count(self, report: DeliveryReport) -> list[pa.Table]:
        """Count the outcomes of the rows that come next, and return the failures."""
        first = self._written.rows
        self._written.add(report)
        if not report.failed_by_code:
            return []
        named = self._layout.message_id is not None
        failed = list(failed_rows(report, self._number, first, named=named))
        for table in failed:
            self._written.add_first(table)
        return failed

    def _write_groups(self, dispatcher: Dispatcher, batches: Iterator[pa.RecordBatch], resources: ExitStack) -> None:
        letters = None
        if self._settings.failure.on_failure == "dead_letter":
            key = self._settings.endpoint.stream_key
            options = self._settings.dispatcher
            letters = DeadLetters(self._settings.dead_letters, options, self._layout, key, self._batch_id, resources)
        group: list[pa.RecordBatch] = []
        for batch in batches:
            dispatcher.produce_batch(batch, **self._layout.arguments)
            group.append(batch)
            if sum(b.num_rows for b in group) >= GROUP_ROWS or sum(b.nbytes for b in group) >= GROUP_BYTES:
                self._settle(dispatcher, group, letters)
                group = []
        self._settle(dispatcher, group, letters)

    def _settle(self, dispatcher: Dispatcher, group: list[pa.RecordBatch], letters: DeadLetters | None) -> None:
        """Wait for the outcomes of a group, and let the failure policy have its failures."""
        failed = self._count(dispatcher.flush())
        if not failed:
            return
        if self._settings.retries and server_stayed_away(failed, exactly_once=self._token is not None):
            # No fault of the rows, and each group of them would wait for the server anew.
            reason = f"the server stayed away; on_failure={self._settings.failure.on_failure} is for rows"
            raise delivery_error(self._written, self._settings.endpoint, reason)
        check_limits(self._written, self._settings.failure, self._settings.endpoint, whole=False)
        if letters is not None:
            for table in failed:
                letters.write(table, group)
                self._written.dead_letters += len(table)
        if self._token is not None:
            dispatcher.skip_failed()


def _commit(settings: Settings, messages: list[WriterCommitMessage | None], what: str) -> None:
    written = total(messages)
    check_limits(written, settings.failure, settings.endpoint, whole=True)
    if not written.failed:
        logger.info("%s%s to %s", what, written, settings.endpoint)
        return
    first = "".join(f"\n  {failure}" for failure in written.first_failures)
    logger.warning("%s%s to %s%s", what, written, settings.endpoint, first)


def _abort(settings: Settings, messages: list[WriterCommitMessage | None], what: str) -> None:
    written = total(messages)
    unfinished = sum(message is None for message in messages)
    logger.error(
        "%sthe write to %s was given up: %d of %d partitions did not end; of the others: %s",
        *(what, settings.endpoint, unfinished, len(messages), written),
    )


def _token(settings: Settings, name: str) -> str:
    """Rows are numbered in each partition; a message ID is the same wherever its row is."""
    return name if settings.by_message_id else f"{name}:{_task().partitionId()}"


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("a writer writes in a task of Spark")
    return task
