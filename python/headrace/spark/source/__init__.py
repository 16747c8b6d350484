"""Reads Redis Streams into Spark: what the data source `redis_streams` does for `spark.read` and `spark.readStream`."""
