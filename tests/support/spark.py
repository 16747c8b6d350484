"""A small Spark for tests: in this process, on two threads, with real Python workers."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

#: A variable that only Spark's workers have, not this process, and its value.
WORKER_VARIABLE = "HEADRACE_TEST_WORKER_PASSWORD"
WORKER_PASSWORD = "hunter2-of-the-workers"


def worker_password() -> str:
    """The password, where the variable is set."""
    return os.environ[WORKER_VARIABLE]


@contextmanager
def start_spark() -> Iterator[SparkSession]:
    """Start Spark `local[2]`, and stop it at the end of the block. It takes about five seconds."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("headrace tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", tempfile.gettempdir())
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(f"spark.executorEnv.{WORKER_VARIABLE}", WORKER_PASSWORD)
        .getOrCreate()
    )
    # Spark installs its own handler for the rest of the process; other tests need the old one for Ctrl-C.
    signal.signal(signal.SIGINT, ctrl_c)
    spark.sparkContext.setLogLevel("OFF")  # jobs that fail on purpose
    try:
        yield spark
    finally:
        spark.stop()
