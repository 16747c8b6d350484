"""Kills during Spark streams into Redis: drivers, workers and servers die, and each row is checked at the end.

One *run* is a streaming query into one stream, from its first row to its last, from text files or from another stream
(`feed`). A plan, made from a seed, says what goes wrong meanwhile (`plan`). The query's driver is a separate process
(`driver`, `pool`), killed and replaced; inside Spark a wrapper around the data source makes tasks and commits fail
(`traps`); the server is killed and restarted (`run`). At the end redis-py reads the stream, and each row must be there
once, in order (`check`). The laboratory `spark-kills` does many runs.
"""
