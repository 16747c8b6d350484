"""Writes Spark DataFrames to Redis Streams.

Needs `pip install headrace[spark]` (pyspark 4.0 or newer, pyarrow 15 or newer).
"""

from headrace.spark.arrow import xadd

__all__ = ["xadd"]
