"""Writes Spark DataFrames to Redis Streams.

Needs `pip install headrace[spark]` (pyspark 4.0 or newer, pyarrow 15 or newer).
"""

from headrace.spark.arrow import xadd
from headrace.spark.datasource import register
from headrace.spark.summary import WriteSummary
from headrace.spark.udf import xadd_udf
from headrace.spark.write import write

__all__ = ["WriteSummary", "register", "write", "xadd", "xadd_udf"]
