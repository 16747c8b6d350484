"""One action that writes a DataFrame and says what became of it: `write(df, endpoint)`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.dispatcher import Dispatcher
from headrace.errors import ConfigError
from headrace.report import FIRST_FAILURES
from headrace.retry import RetryPolicy
from headrace.spark import interpreter, worker
from headrace.spark.failures import delivery_error
from headrace.spark.layout import Layout, resolve
from headrace.spark.options import FailurePolicy, LayoutOptions, Settings, Transaction
from headrace.spark.progress import shown
from headrace.spark.summary import FAILURES, RESULT, PartitionResult, WriteSummary, total

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.endpoint import Endpoint

__all__ = ["write"]

logger = logging.getLogger("headrace.spark")


def write(
    df: DataFrame,
    endpoint: Endpoint,
    *,
    payload: str | None = None,
    fields: Sequence[str] | None = None,
    json: bool | Sequence[str] = False,
    message_id: str | None = None,
    stream_key: str | None = None,
    entry_id: str | None = None,
    ignore_columns: Sequence[str] | Literal["*"] = (),
    rows_per_entry: int | None = None,
    arrow_ipc: bool = False,
    codec: Literal["lz4", "zstd"] | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    failures: bool = False,
    failures_per_partition: int = 1_000,
    progress: bool | None = None,
    **options: Any,
) -> WriteSummary:
    """Write each row of a DataFrame, now, and return what became of them.

    ```python
    from headrace import Endpoint
    from headrace.spark import write

    endpoint = Endpoint(host="redis", stream_key="order-events", password_env="REDIS_PASSWORD")
    print(write(orders, endpoint, payload="body", message_id="id"))

    summary = write(orders, endpoint, payload="body", message_id="id", failures=True)
    summary.failures.where("kind = 'permanent'").show()
    ```

    This is an action: Spark computes the DataFrame and writes it once. The counts and the failures come back with the
    same pass, so that nothing that is asked of the summary writes anything again. Works with Spark Connect. Rows that
    failed, once all others were tried, raise, or are handed back with `failures=True`.

    **Delivery.** Without `txn_app_id` at least once: a row whose reply was lost is sent again (`retry`), and so are the
    rows of a task that Spark runs again; `possible_duplicates` counts both. (Not those that only a speculative copy of
    a task wrote, or one that was lost with its executor: `spark.speculation` is better off.) With `txn_app_id` and
    `txn_version` each row is written once, however often this is called with the same DataFrame: see `exactly_once`
    of `headrace.Dispatcher`; rows that failed are tried again. The rows of each partition must come again in the same
    order, which is so for tables and files, and not for what follows a shuffle, without a sort within partitions.

    Args:
        df: The rows. A streaming DataFrame is refused by Spark: use `foreachBatch`, or the data source.
        endpoint: Where and how entries are stored. It travels to the executors: give `password_env` or `password_file`
            rather than a password.
        payload: Column with the payload, string or binary. By convention, without `fields`, `json` and `arrow_ipc`, the
            one called `payload`, else the only one left that is string or binary, else the row as JSON.
        fields: Columns that become a field each, as text; a null is left out.
        json: True: the payload is the row as JSON, as `to_json` writes it. A sequence of names: these columns.
        message_id: Column that names the row in the failures, integer or string. By convention the one called
            `message_id`. Without it, and where it is null, the row's ordinal in its partition.
        stream_key: Column with the row's own stream key; null means the endpoint's. By convention the one called
            `stream_key`.
        entry_id: Column with the row's own entry ID (`"1713091234567-0"`, `"1713091234567-*"`); null means `*`. By
            convention the one called `entry_id`.
        ignore_columns: Columns that shall not be written; `"*"`: all that are left. Any other column that would be left
            out is an error.
        rows_per_entry: As of `headrace.spark.xadd`; likewise `arrow_ipc` and `codec`.
        arrow_ipc: See `rows_per_entry`.
        codec: See `rows_per_entry`.
        txn_app_id: Exactly once: a name for what is written, such as the job's; together with `txn_version`.
        txn_version: Exactly once: the number of this write, 0 and up. A higher one is a new write; what comes with a
            lower one than was seen before is taken for written already.
        failures: True: rows that failed do not raise, but are in `failures` of the summary. Default False.
        failures_per_partition: Rows that each partition puts into `failures` at most, for they pass through the
            driver's memory. Default 1,000; 0 and up. The counts are always of all. For outcomes without a limit take
            `headrace.spark.xadd`.
        progress: None (default): show a bar of Spark's tasks in a terminal or a notebook, if tqdm is installed
            (`pip install headrace[progress]`) and Spark shows none of its own there. True: show it on stderr whatever
            that is. False: never.
        **options: Options of `headrace.Dispatcher`. `retry` is `RetryPolicy()` unless given, without `txn_app_id` with
            `retry_unknown=True`; `exactly_once` is `"auto"` with `txn_app_id`.

    Raises:
        DeliveryError: Rows failed, and `failures` is False. All others were written.
        ConfigError: An option is unknown or wrong, or names no column, or Spark runs in local mode and its workers
            cannot run headrace (`PYSPARK_PYTHON`); nothing was sent.
        SchemaError: A column would not be written, or cannot be; nothing was sent.
    """
    transaction = _transaction(txn_app_id, txn_version, options)
    _check_number("failures_per_partition", failures_per_partition)
    columns = LayoutOptions(
        payload=payload,
        fields=tuple(fields) if fields is not None else None,
        json=json if isinstance(json, bool) else tuple(json),
        message_id=message_id,
        stream_key_column=stream_key,
        entry_id=entry_id,
        ignore_columns=tuple(ignore_columns),
        rows_per_entry=rows_per_entry,
        arrow_ipc=arrow_ipc,
        codec=codec,
    )
    options = {
        "retry": RetryPolicy(retry_unknown=transaction is None),
        **({"exactly_once": "auto"} if transaction else {}),
        **options,
    }
    # Opens no connection, and tells of a wrong option or column before any task starts.
    layout = resolve(_Settings(endpoint, options, columns, FailurePolicy(), transaction), df.schema)
    task = _task(endpoint, options, layout, transaction, failures_per_partition if failures else FIRST_FAILURES)
    interpreter.check()
    started = time.monotonic()
    with shown(df.sparkSession, progress, "Writing to Redis"):
        result = df.mapInArrow(task, RESULT).toArrow()
    seconds = time.monotonic() - started
    written, failed = total(result)
    summary = WriteSummary(
        delivered=written.delivered,
        deduplicated=written.deduplicated,
        failed_by_code=dict(written.failed_by_code),
        possible_duplicates=written.possible_duplicates,
        retries=written.retries,
        retry_wait_seconds=written.retry_wait_seconds,
        bytes_sent=written.bytes_sent,
        partitions=len(written.partitions),
        seconds=seconds,
        first_failures=written.first_failures,
        failures=df.sparkSession.createDataFrame(failed, FAILURES) if failures else None,
    )
    logger.info("%s to %s", summary, endpoint)
    if summary.failed and not failures:
        raise delivery_error(written, endpoint)
    return summary


@dataclass(frozen=True)
class _Settings(Settings):
    """What the keyword arguments say: values that have their types, where the data source has texts."""

    dispatcher: dict[str, Any]

    def make_dispatcher(self) -> Dispatcher:
        return Dispatcher(self.endpoint, **self.dispatcher)


def _transaction(app_id: Any, version: Any, options: Mapping[str, Any]) -> Transaction | None:
    """Check what names the write, if anything does."""
    exactly_once = options.get("exactly_once")
    if app_id is None and version is None:
        if exactly_once not in (None, "off"):
            raise ConfigError(
                "exactly_once needs txn_app_id and txn_version, which name the rows", option="exactly_once"
            )
        return None
    if app_id is None or version is None:
        missing = "txn_app_id" if app_id is None else "txn_version"
        raise ConfigError(f"txn_app_id and txn_version belong together: {missing} is missing", option=missing)
    if exactly_once == "off":
        raise ConfigError("exactly_once 'off' and txn_app_id exclude each other", option="exactly_once")
    if not isinstance(app_id, str) or not app_id:
        raise ConfigError(f"txn_app_id must be a str that is not empty, got {app_id!r}", option="txn_app_id")
    _check_number("txn_version", version)
    return Transaction(app_id, version)


def _check_number(option: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ConfigError(f"{option} must be an int of 0 and up, got {value!r}", option=option)


def _task(
    endpoint: Endpoint, options: Mapping[str, Any], layout: Layout, transaction: Transaction | None, keep: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function that writes a partition, and gives back its counts and its first failures."""

    def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        partition, attempt = (task.partitionId(), task.attemptNumber()) if task else (0, 0)
        result = PartitionResult(partition, keep, named=layout.message_id is not None)
        with worker.dispatcher(endpoint, options) as dispatcher:
            before = dispatcher.stats()
            if transaction is not None:
                by_message_id = options.get("exactly_once_key") == "message_id"
                token = transaction.app_id if by_message_id else f"{transaction.app_id}:{partition}"
                dispatcher.begin(token, transaction.version)
            for batch in batches:
                dispatcher.produce_batch(batch, **layout.arguments)
                result.add(dispatcher.poll())
            result.add(dispatcher.flush())
            result.written.add_stats(before, dispatcher.stats())
        if attempt and transaction is None:
            # What the attempts before this one wrote is not known: each may have written all of these rows.
            result.written.possible_duplicates += attempt * result.written.delivered
        level = logging.WARNING if result.written.failed else logging.INFO
        logger.log(level, "partition %d, attempt %d: %s to %s", partition, attempt, result.written, endpoint)
        yield from result.to_arrow()

    return write_partition
