"""An outcome per row: `df.mapInArrow(xadd(endpoint, …), xadd.schema)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Unpack

import pyarrow as pa

from headrace.dispatcher import Dispatcher
from headrace.spark import interpreter, worker
from headrace.spark.keywords import split
from headrace.tables import LAYOUT, documented, signature

if TYPE_CHECKING:
    from headrace.endpoint import Endpoint
    from headrace.report import DeliveryReport
    from headrace.spark.keywords import Keywords

__all__ = ["xadd"]


#: `xadd` is its only instance, so that the function carries its schema.
class Xadd:
    """Make a function for `DataFrame.mapInArrow` that writes each row and returns a row with its outcome.

    ```python
    from headrace import Endpoint
    from headrace.spark import xadd

    endpoint = Endpoint(host="redis", stream_key="order-events", password_env="REDIS_PASSWORD")
    outcomes = orders.mapInArrow(xadd(endpoint, payload="body", message_id="id"), xadd.schema)
    outcomes.groupBy("kind", "code").count().show()
    ```

    Each partition's record batches go straight to the native producer, over one connection per Python worker; rows
    never become Python objects. Each input row has one output row: `message_id`, `entry_id`, and, if the row failed,
    `kind`, `code`, `message`, `written` (see `headrace.Failure`). A row that fails does not fail the job: check `code`.
    With `only_failed=True` only failures have output rows, which saves Spark most of the work.

    **One action.** Spark runs the function whenever it runs the plan: twice for two actions, twice for a sort or a
    `repartitionByRange` downstream, and only for some rows under a `limit`, which `show` and `head` imply. So run one
    action, without a sort or limit after it, or save or cache the outcomes first; take counts in the same pass with
    `DataFrame.observe` or `groupBy`. A task that Spark runs again writes its rows again: at least once.

    Args:
        endpoint: Where and how entries are stored. It is pickled for the executors: give `password_env` or
            `password_file` rather than a password.
        payload: Column with the payload, string or binary. Default `"payload"`, unless `fields`, `fields_from` or
            `json` is given.
        fields: Columns that become one field each, as text; a null is left out.
        json: True: the payload is the whole row as JSON, as `to_json` writes it. A sequence of names: these columns.
        message_id: Column that names the row in the outcomes, integer or string. Default, also for null: the row's
            ordinal in its partition.
        stream_key: Column with the row's own stream key; null means the endpoint's.
        entry_id: Column with the row's own entry ID (`"1713091234567-0"`, `"1713091234567-*"`); null means `*`.
        rows_per_entry: Rows per entry, with `payload` or `json`; default 1, or 10,000 with `arrow_ipc`. An entry holds
            rows of one record batch, whose size is `spark.sql.execution.arrow.maxRecordsPerBatch`.
        arrow_ipc: True: the payload of an entry is an Arrow IPC stream of many rows.
        {options}
        only_failed: True: output rows only for the rows that failed. Default False.
        **options: Options of `headrace.Dispatcher`.

    Raises:
        ConfigError: An option of the dispatcher is unknown or wrong, or Spark runs in local mode and its workers cannot
            run headrace (`PYSPARK_PYTHON`). A column that does not exist or has a type that cannot be written fails the
            job before anything is sent.
    """

    #: The columns of the outcomes, for `mapInArrow`.
    schema: Final = "message_id string, entry_id string, kind string, code string, message string, written string"

    def __call__(
        self,
        endpoint: Endpoint,
        *,
        only_failed: bool = False,
        **options: Unpack[Keywords],
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        layout, dispatcher_options = split(options)
        # Raises for a wrong option here rather than in a task, and opens no connection.
        Dispatcher(endpoint, **dispatcher_options)
        interpreter.check()

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with worker.dispatcher(endpoint, dispatcher_options) as dispatcher:
                for batch in batches:
                    dispatcher.produce_batch(batch, **layout)
                    yield from _outcomes(dispatcher.poll(), only_failed)
                yield from _outcomes(dispatcher.flush(), only_failed)

        return write

    def __repr__(self) -> str:
        return "<Xadd: headrace.spark.xadd>"


Xadd.__doc__ = documented(Xadd.__doc__, LAYOUT)
Xadd.__call__.__signature__ = signature(Xadd.__call__, LAYOUT.values(), more=True)  # type: ignore[attr-defined]

xadd = Xadd()


def _outcomes(report: DeliveryReport, only_failed: bool) -> Iterator[pa.RecordBatch]:
    return iter(pa.RecordBatchReader.from_stream(report.to_arrow(only_failed=only_failed)))
