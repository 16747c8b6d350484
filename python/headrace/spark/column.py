"""An outcome per row as a column: `df.withColumn("outcome", xadd_udf(endpoint)("body"))`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa

from headrace.dispatcher import Dispatcher, DispatcherOptions
from headrace.spark import interpreter, worker

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql._typing import UserDefinedFunctionLike

    from headrace.endpoint import Endpoint

__all__ = ["xadd_udf"]

#: Fields of the struct that the function returns, in the order of the columns of a report.
RETURN_TYPE: Final = "entry_id string, kind string, code string, message string, written string"


def xadd_udf(endpoint: Endpoint, **options: Unpack[DispatcherOptions]) -> Callable[..., Column]:
    """Make a Spark function that writes a row's payload and returns a struct with its outcome.

    ```python
    from headrace import Endpoint
    from headrace.spark import xadd_udf

    endpoint = Endpoint(host="redis", stream_key="order-events", password_env="REDIS_PASSWORD")
    sent = orders.withColumn("outcome", xadd_udf(endpoint)("body")).cache()
    sent.select("id", "outcome.entry_id", "outcome.code").show()

    spark.udf.register("xadd", xadd_udf(endpoint))
    spark.sql("CREATE TABLE sent AS SELECT id, xadd(body) AS outcome FROM orders")
    ```

    The function takes one to four columns, by position or by name: `payload` (string or binary), `message_id`
    (integer or string; the caller's name for the row, for exactly once), `stream_key` (the row's own stream key;
    null means the endpoint's) and `shard_key` (the key that selects the row's shard, if the endpoint has `shards`). It
    returns a struct: `entry_id` if the row was delivered, else `kind`, `code`, `message`, `written` (see
    `headrace.Failure`). A row that fails does not fail the job: check `outcome.code`. Rows go over one connection per
    Python worker; the outcomes of each record batch (`spark.sql.execution.arrow.maxRecordsPerBatch` rows) arrive before
    the next batch is sent. On Spark 4.1 and later it is an `arrow_udf`. On 4.0 it is a `pandas_udf`: this needs pandas,
    and integers above 2**53 in a `message_id` with nulls lose their last digits.

    **When it is the wrong tool.** Spark decides when to compute a column. The function is declared non-deterministic,
    which limits this, but: a column that is never read is never computed (`.count()` writes nothing, nor does a
    `select` of other columns); two actions write twice, and so does one action with a sort or a `repartitionByRange`
    after the column; `show`, `head` and `limit` write only some rows. A task that Spark runs again writes its rows
    again. So let one action read the column, and save or cache its result before any further use. To write a DataFrame,
    use the data source `redis_streams` or `headrace.spark.write`, which write once per action; for outcomes as a
    DataFrame, `headrace.spark.xadd`.

    Args:
        endpoint: Where and how entries are stored. It is pickled for the executors: give `password_env` or
            `password_file` rather than a password.
        **options: Options of `headrace.Dispatcher`.

    Raises:
        ConfigError: An option of the dispatcher is unknown or wrong, or Spark runs in local mode and its workers cannot
            run headrace (`PYSPARK_PYTHON`). A column of a type that cannot be written fails the job before anything is
            sent.
    """
    # Raises for a wrong option here rather than in a task, and opens no connection.
    Dispatcher(endpoint, **options)
    interpreter.check()
    # Spark 4.0 has no arrow_udf.
    return _with_arrow(endpoint, options) if hasattr(_functions(), "arrow_udf") else _with_pandas(endpoint, options)


def _functions() -> Any:
    from pyspark.sql import functions

    return functions


def _with_arrow(endpoint: Endpoint, options: Mapping[str, Any]) -> UserDefinedFunctionLike:
    def xadd(
        payload: pa.Array, message_id: pa.Array = None, stream_key: pa.Array = None, shard_key: pa.Array = None
    ) -> pa.Array:
        columns = {"payload": payload, "message_id": message_id, "stream_key": stream_key, "shard_key": shard_key}
        outcomes = _write(endpoint, options, **columns)
        return outcomes.to_struct_array().combine_chunks()

    function: UserDefinedFunctionLike = _functions().arrow_udf(xadd, returnType=RETURN_TYPE).asNondeterministic()
    return function


def _with_pandas(endpoint: Endpoint, options: Mapping[str, Any]) -> UserDefinedFunctionLike:
    import pandas as pd

    def xadd(payload: Any, message_id: Any = None, stream_key: Any = None, shard_key: Any = None) -> Any:
        columns = {"payload": payload, "message_id": message_id, "stream_key": stream_key, "shard_key": shard_key}
        for name in ("message_id", "shard_key"):
            if columns[name] is not None and columns[name].dtype.kind == "f":
                columns[name] = columns[name].astype("Int64")  # pandas turns integers with nulls into floats
        arrays = {name: _array(series) for name, series in columns.items() if series is not None}
        return _write(endpoint, options, **arrays).to_pandas()

    # Spark derives the kind of function from these; pandas need not be installed when this module is imported.
    names = ("payload", "message_id", "stream_key", "shard_key")
    hints = {**dict.fromkeys(names, pd.Series), "return": pd.DataFrame}
    xadd.__annotations__ = hints
    function: UserDefinedFunctionLike = _functions().pandas_udf(xadd, returnType=RETURN_TYPE).asNondeterministic()
    return function


def _array(series: Any) -> pa.Array:
    array = pa.array(series, from_pandas=True)
    # pandas keeps no type for a batch of nulls.
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


def _write(endpoint: Endpoint, options: Mapping[str, Any], **columns: pa.Array | None) -> pa.Table:
    """Write a record batch, and return the outcomes of its rows, in order."""
    given = {name: column for name, column in columns.items() if column is not None}
    batch = pa.RecordBatch.from_arrays(list(given.values()), names=list(given))
    with worker.dispatcher(endpoint, options) as dispatcher:
        layout: dict[str, Any] = {name: name for name in given}
        dispatcher.produce_batch(batch, **layout)
        return pa.table(dispatcher.flush().to_arrow()).drop_columns(["message_id"])
