"""Writes Spark DataFrames to Redis Streams, and reads streams into DataFrames.

```python
from headrace.spark import register

register(spark)  # also checks that Spark's workers can run headrace
to = {"host": "redis", "stream_key": "order-events", "password_env": "REDIS_PASSWORD"}
orders.write.format("redis_streams").mode("append").options(**to).save()
spark.read.format("redis_streams").options(**to).load().show()
```

`options()` lists all options of the format, and docs/spark.md is the manual. `write`, `xadd` and `xadd_udf` return the
outcomes of the rows.

Needs `pip install headrace[spark]` (pyspark 4.0 or newer, pyarrow 15 or newer); `options` does not. Each name is
imported on first use.
"""

# As in `headrace`: Jedi reads the type, type checkers treat the name as true.
TYPE_CHECKING: bool = False

if TYPE_CHECKING:
    from headrace.spark.column import xadd_udf
    from headrace.spark.dataframe import write
    from headrace.spark.datasource import register
    from headrace.spark.option_list import options
    from headrace.spark.outcomes import xadd
    from headrace.spark.shards import shard
    from headrace.spark.summary import WriteSummary

__all__ = ["WriteSummary", "options", "register", "shard", "write", "xadd", "xadd_udf"]

_MODULES = {
    "WriteSummary": "summary",
    "options": "option_list",
    "register": "datasource",
    "shard": "shards",
    "write": "dataframe",
    "xadd": "outcomes",
    "xadd_udf": "column",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"headrace.spark.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
