"""The numbers of shards as a column: `df.repartition(12, shard("customer", 12))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from headrace import _headrace
from headrace.spark import interpreter

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["shard"]


def shard(column: Column | str, shards: int, shard_hash: Literal["murmur2", "crc32"] = "murmur2") -> Column:
    """Return the number of the shard that rows with the keys in `column` go to, as a column of integers.

    ```python
    from headrace.spark import shard

    by_shard = orders.repartition(12, shard("customer", 12))
    by_shard.write.format("redis_streams").mode("append").options(shards=12, shard_key="customer", **where).save()
    ```

    All rows of a shard are then in one task, which needs fewer connections and, with `exactly_once`, sends fuller
    script calls. Nothing else needs it: rows reach their shards from any partition.

    Args:
        column: The keys: a column of text, bytes or integers, or its name. For a null, which has no shard, the result
            is null.
        shards: As the option `shards` of the endpoint, from 1 to 1,024.
        shard_hash: As the option `shard_hash` of the endpoint.

    Raises:
        ConfigError: `shards` or `shard_hash` is out of range, or Spark runs in local mode and its workers cannot run
            headrace (`PYSPARK_PYTHON`). A column of another type fails the job.
    """
    from pyspark.sql import functions

    # Raises for a wrong argument here rather than in a task.
    numbers_of(pa.array([], pa.string()), shards, shard_hash)
    interpreter.check()

    def number(keys: pa.Array) -> pa.Array:
        return numbers_of(keys, shards, shard_hash)

    if hasattr(functions, "arrow_udf"):
        number.__annotations__ = {"keys": pa.Array, "return": pa.Array}
        made: Any = functions.arrow_udf(number, returnType="int")
    else:
        made = _with_pandas(shards, shard_hash)
    result: Column = made(column)
    return result


def numbers_of(keys: pa.Array, shards: int, shard_hash: str) -> pa.Array:
    """Return the shard number of each key."""
    batch = pa.RecordBatch.from_arrays([keys], names=["key"])
    return pa.table(_headrace.shard_numbers(batch, shards, shard_hash)).column(0).combine_chunks()


def _with_pandas(shards: int, shard_hash: str) -> Any:
    """Make the function for Spark 4.0, which has no `arrow_udf`."""
    import pandas as pd
    from pyspark.sql import functions

    def number(keys: Any) -> Any:
        if keys.dtype.kind == "f":
            keys = keys.astype("Int64")  # pandas turns integers with nulls into floats
        array = pa.array(keys, from_pandas=True)
        array = array.cast(pa.string()) if pa.types.is_null(array.type) else array
        return numbers_of(array, shards, shard_hash).to_pandas(integer_object_nulls=True).astype("Int32")

    number.__annotations__ = {"keys": pd.Series, "return": pd.Series}
    return cast("Any", functions).pandas_udf(number, returnType="int")
