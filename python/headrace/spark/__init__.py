"""Writes Spark DataFrames to Redis Streams, and reads streams into DataFrames.

Needs `pip install headrace[spark]` (pyspark 4.0 or newer, pyarrow 15 or newer).
"""

from headrace.spark.column import xadd_udf
from headrace.spark.dataframe import write
from headrace.spark.datasource import register
from headrace.spark.outcomes import xadd
from headrace.spark.shards import shard
from headrace.spark.summary import WriteSummary

__all__ = ["WriteSummary", "register", "shard", "write", "xadd", "xadd_udf"]
