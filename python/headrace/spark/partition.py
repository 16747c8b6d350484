"""The writer of a partition: the data source and `headrace.spark.write` run it in each task."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from headrace.spark import worker
from headrace.spark.commit import PartitionCommit, check_limits, delivery_error
from headrace.spark.dead_letters import DeadLetters
from headrace.spark.failures import failed_rows, is_server_unreachable

if TYPE_CHECKING:
    from headrace.dispatcher import Dispatcher
    from headrace.report import DeliveryReport
    from headrace.spark.layout import ColumnLayout
    from headrace.spark.settings import WriteSettings
    from headrace.spark.transaction import Transaction

__all__ = ["PartitionWriter", "current_task"]

logger = logging.getLogger("headrace.spark")

#: The largest group of rows that is kept until all its outcomes are known.
GROUP_ROWS = 65_536
GROUP_BYTES = 16 * 1024 * 1024


class PartitionWriter:
    """Writes the rows of one partition in one task, and counts their outcomes.

    `on_failure` selects how:

    - `"fail"`: outcomes are counted as they arrive. The first failure ends the task, once everything in flight has
      its outcome.
    - `"collect"`: outcomes are counted as they arrive, and all rows are written.
    - `"report"`, `"dead_letter"`: rows are written in groups, each kept until all its outcomes are known. A server
      that stays unreachable ends the task.

    Args:
        settings: Where and how to write.
        layout: The columns of the record batches.
        transaction: The name of the write, for exactly once.
        batch_id: The micro-batch of a streaming query.
        keep: With `"collect"`: how many failures to keep in `failures`.
    """

    def __init__(
        self,
        settings: WriteSettings,
        layout: ColumnLayout,
        transaction: Transaction | None,
        *,
        batch_id: int | None = None,
        keep: int = 0,
    ) -> None:
        task = current_task()
        self._settings = settings
        self._layout = layout
        self._transaction = transaction
        self._batch_id = batch_id
        self._room = keep
        self._number = task.partitionId()
        self._attempt = task.attemptNumber()
        self._first = 0
        self._commit = PartitionCommit(partitions=(self._number,))
        #: The first failures, as tables of `failed_rows`.
        self.failures: list[pa.Table] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartitionCommit:
        """Write all rows.

        Raises:
            DeliveryError: More rows failed than the failure policy allows.
        """
        commit, settings = self._commit, self._settings
        with ExitStack() as resources:
            lent = worker.dispatcher(settings.endpoint, settings.dispatcher, text=settings.text)
            dispatcher = resources.enter_context(lent)
            before = dispatcher.stats()
            # A lent dispatcher continues counting, unless the task begins a batch.
            self._first = 0 if self._transaction is not None else before.messages
            if self._transaction is not None:
                token = self._transaction.token(self._number, by_message_id=settings.by_message_id)
                dispatcher.begin(token, self._transaction.version)
            if settings.failure.on_failure in ("fail", "collect"):
                self._write_all(dispatcher, batches)
            else:
                self._write_groups(dispatcher, batches, resources)
            commit.add_stats(before, dispatcher.stats())
        if self._attempt and self._transaction is None:
            # Each earlier attempt may have written all of these rows, and its outcomes are not known here.
            commit.possible_duplicates += self._attempt * commit.delivered
        level = logging.WARNING if commit.failed else logging.INFO
        logger.log(level, "partition %d, attempt %d: %s to %s", self._number, self._attempt, commit, settings.endpoint)
        if settings.failure.on_failure == "fail":
            check_limits(commit, settings.failure, settings.endpoint, whole=False)
        return commit

    def _write_all(self, dispatcher: Dispatcher, batches: Iterator[pa.RecordBatch]) -> None:
        stops = self._settings.failure.on_failure == "fail"
        for batch in batches:
            dispatcher.produce_batch(batch, **self._layout.arguments)
            self._count(dispatcher.poll())
            if stops and self._commit.failed:
                break
        self._count(dispatcher.flush())

    def _write_groups(self, dispatcher: Dispatcher, batches: Iterator[pa.RecordBatch], resources: ExitStack) -> None:
        letters = None
        if self._settings.failure.on_failure == "dead_letter":
            letters = DeadLetters(self._settings, self._layout, self._batch_id, resources, self._first)
        group: list[pa.RecordBatch] = []
        for batch in batches:
            dispatcher.produce_batch(batch, **self._layout.arguments)
            group.append(batch)
            if sum(b.num_rows for b in group) >= GROUP_ROWS or sum(b.nbytes for b in group) >= GROUP_BYTES:
                self._end_group(dispatcher, group, letters)
                group = []
        self._end_group(dispatcher, group, letters)

    def _end_group(self, dispatcher: Dispatcher, group: list[pa.RecordBatch], letters: DeadLetters | None) -> None:
        """Wait for the outcomes of a group, and apply the failure policy to its failures."""
        failed = self._count(dispatcher.flush())
        if not failed:
            return
        policy = self._settings.failure
        if self._settings.retries and is_server_unreachable(failed, exactly_once=self._transaction is not None):
            # The rows are not at fault, and each further group would wait for the server again.
            reason = f"server unreachable until retry_deadline; on_failure={policy.on_failure} only covers row errors"
            raise delivery_error(self._commit, self._settings.endpoint, reason)
        check_limits(self._commit, policy, self._settings.endpoint, whole=False)
        if letters is not None:
            for table in failed:
                letters.write(table, group)
                self._commit.dead_letters += len(table)
        if self._transaction is not None:
            dispatcher.skip_failed()

    def _count(self, report: DeliveryReport) -> list[pa.Table]:
        """Count the outcomes of the next rows, and return the failures that the policy needs."""
        first = self._commit.rows
        self._commit.add(report)
        collects = self._settings.failure.on_failure == "collect"
        if report.ok or (collects and not self._room):
            return []
        failed = list(failed_rows(report, self._number, first, named=self._layout.message_id is not None))
        for table in failed:
            self._commit.add_first(table)
            if self._room:
                self.failures.append(table.slice(0, self._room))
                self._room -= len(self.failures[-1])
        return failed


def current_task() -> TaskContext:
    """The Spark task that runs in this thread."""
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("a partition can only be written in a Spark task")
    return task
