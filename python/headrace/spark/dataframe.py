"""One action that writes a DataFrame and summarises the outcomes: `write(df, endpoint)`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import pyarrow as pa

from headrace.dispatcher import DispatcherOptions
from headrace.report import FIRST_FAILURES
from headrace.retry import RetryPolicy
from headrace.spark import interpreter
from headrace.spark.commit import delivery_error
from headrace.spark.keywords import split
from headrace.spark.layout import ColumnLayout, resolve
from headrace.spark.partition import PartitionWriter
from headrace.spark.progress import progress_bar
from headrace.spark.settings import ColumnOptions, FailurePolicy, WriteSettings
from headrace.spark.summary import FAILURES, RESULT, WriteSummary, from_result, to_result
from headrace.spark.transaction import Transaction, check_integer
from headrace.tables import LAYOUT, documented, signature

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.endpoint import Endpoint
    from headrace.spark.keywords import Keywords

__all__ = ["write"]

logger = logging.getLogger("headrace.spark")


def write(
    df: DataFrame,
    endpoint: Endpoint,
    *,
    ignore_columns: Sequence[str] | Literal["*"] = (),
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    failures: bool = False,
    failures_per_partition: int = 1_000,
    progress: bool | None = None,
    **options: Unpack[Keywords],
) -> WriteSummary:
    """Write each row of a DataFrame now, and return a summary of the outcomes.

    ```python
    from headrace import Endpoint
    from headrace.spark import write

    endpoint = Endpoint(host="redis", stream_key="order-events", password_env="REDIS_PASSWORD")
    print(write(orders, endpoint, payload="body", message_id="id"))

    summary = write(orders, endpoint, payload="body", message_id="id", failures=True)
    summary.failures.where("kind = 'permanent'").show()
    ```

    This is an action: Spark computes the DataFrame and writes it once. The counts and the failures come from the same
    pass, so reading the summary does not write again. It works with Spark Connect. If rows fail, a `DeliveryError` is
    raised once all others have been tried; with `failures=True` the failures are returned instead.

    **Delivery.** Without `txn_app_id`, delivery is at least once: a row whose reply was lost is sent again (`retry`),
    and so are the rows of a task that Spark runs again; `possible_duplicates` counts both. (It misses rows written only
    by a speculative copy of a task, or by a task that was lost with its executor: leave `spark.speculation` off.) With
    `txn_app_id` and `txn_version` each row is written once, however often the function is called with the same
    DataFrame (see `exactly_once` of `headrace.Dispatcher`); rows that failed are tried again. The rows of each
    partition must come in the same order each time. Those of tables and files do; those of a shuffle do not, unless
    they are sorted within partitions.

    Args:
        df: The rows. Spark refuses a streaming DataFrame: use `foreachBatch`, or the data source.
        endpoint: Where and how entries are stored. It is pickled for the executors: give `password_env` or
            `password_file` rather than a password.
        payload: Column with the payload, string or binary. By convention, without `fields`, `fields_from`, `json` and
            `arrow_ipc`, the one called `payload`, else the only remaining string or binary column, else the row as
            JSON.
        fields: Columns that become one field each, as text; a null is left out.
        json: True: the payload is the row as JSON, as `to_json` writes it. A sequence of names: these columns.
        message_id: Column that names the row in the failures, integer or string. By convention the one called
            `message_id`. Without it, and for null: the row's ordinal in its partition.
        stream_key: Column with the row's own stream key; null means the endpoint's. By convention the one called
            `stream_key`.
        entry_id: Column with the row's own entry ID (`"1713091234567-0"`, `"1713091234567-*"`); null means `*`. By
            convention the one called `entry_id`.
        ignore_columns: Columns to leave out; `"*"`: all that have no other role. Any other column without a role is an
            error.
        {options}
        txn_app_id: Exactly once: a name for the write, such as the job's; needs `txn_version`.
        txn_version: Exactly once: the number of this write, 0 and up. A higher number is a new write; rows with a lower
            number than the latest count as written.
        failures: True: failed rows do not raise, but are returned in `failures` of the summary. Default False.
        failures_per_partition: The maximum number of rows that each partition adds to `failures`: they pass through
            the driver's memory. Default 1,000; 0 and up. The counts always include all. For outcomes without a limit
            use `headrace.spark.xadd`.
        progress: None (default): show a bar of Spark's tasks in a terminal or a notebook, if tqdm is installed
            (`pip install headrace[progress]`) and Spark shows no bar of its own there. True: always show it, on stderr.
            False: never.
        **options: Options of `headrace.Dispatcher`. `retry` defaults to `RetryPolicy()`, without `txn_app_id` to
            `RetryPolicy(retry_unknown=True)`; with `txn_app_id`, `exactly_once` defaults to `"auto"`.

    Raises:
        DeliveryError: Rows failed, and `failures` is False. All others were written.
        ConfigError: An option is unknown or wrong, or names an unknown column, or Spark runs in local mode and its
            workers cannot run headrace (`PYSPARK_PYTHON`); nothing was sent.
        SchemaError: A column has no role, or a type that cannot be written; nothing was sent.
    """
    layout_options, dispatcher_options = split(options)
    transaction = Transaction.from_options(txn_app_id, txn_version, dispatcher_options.get("exactly_once"))
    check_integer("failures_per_partition", failures_per_partition)
    columns = ColumnOptions(layout_options, tuple(ignore_columns))
    completed: DispatcherOptions = {
        "retry": RetryPolicy(retry_unknown=transaction is None),
        "exactly_once": "auto" if transaction else "off",
        **dispatcher_options,
    }
    settings = WriteSettings(endpoint, completed, columns, FailurePolicy("collect"), transaction, text=False)
    # Checks all options and columns before any task starts, and opens no connection.
    layout = resolve(settings, df.schema)
    task = _task(settings, layout, failures_per_partition if failures else FIRST_FAILURES)
    interpreter.check()
    started = time.monotonic()
    with progress_bar(df.sparkSession, progress, "Writing to Redis"):
        result = df.mapInArrow(task, RESULT).toArrow()
    seconds = time.monotonic() - started
    commit, failed = from_result(result)
    summary = WriteSummary(
        delivered=commit.delivered,
        deduplicated=commit.deduplicated,
        failed_by_code=dict(commit.failed_by_code),
        possible_duplicates=commit.possible_duplicates,
        retries=commit.retries,
        retry_wait_seconds=commit.retry_wait_seconds,
        bytes_sent=commit.bytes_sent,
        partitions=len(commit.partitions),
        seconds=seconds,
        first_failures=commit.first_failures,
        failures=df.sparkSession.createDataFrame(failed, FAILURES) if failures else None,
    )
    logger.info("%s to %s", summary, endpoint)
    if summary.failed and not failures:
        raise delivery_error(commit, endpoint)
    return summary


def _task(
    settings: WriteSettings, layout: ColumnLayout, keep: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function that writes a partition and returns its counts and first failures."""

    def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartitionWriter(settings, layout, settings.transaction, keep=keep)
        commit = writer.write(batches)
        yield from to_result(commit, writer.failures)

    return write_partition


write.__doc__ = documented(write.__doc__, LAYOUT)
write.__signature__ = signature(write, LAYOUT.values(), more=True)  # type: ignore[attr-defined]
