"""Read a Redis stream with Spark into Parquet files: each entry once, even if the program is killed.

    python examples/to_parquet.py                                            # a local server and sample orders
    python examples/to_parquet.py orders --url redis://localhost:6379        # up to the current newest entry
    python examples/to_parquet.py orders --url redis://localhost:6379 --follow

Needs `pip install headrace[spark]`. The folder has the files and, in `_checkpoint`, the progress of the query. You can
kill the program at any moment and start it again with the same folder: a micro-batch that runs again has the same rows,
and readers see only the files of micro-batches that were committed (`_spark_metadata`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy the entries of a Redis stream into Parquet files with Spark.")
    parser.add_argument("folder", nargs="?", type=Path, help="folder for the files (default: a temporary one)")
    parser.add_argument("--url", help="server of the stream (default: start one, with orders)")
    parser.add_argument("--source-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--per-file", type=int, default=100_000, help="entries per micro-batch (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="wait for new entries, until Ctrl-C")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        if not arguments.url:
            write_samples(url, arguments.source_key)
        folder = arguments.folder or Path(stack.enter_context(TemporaryDirectory()))
        spark = SparkSession.builder.appName("to_parquet").config("spark.ui.showConsoleProgress", "false").getOrCreate()
        stack.callback(spark.stop)
        orders = (
            spark.readStream.format("redis_streams")
            .schema("entry_id string, timestamp timestamp, order_id long, cents long")
            .options(url=url, stream_key=arguments.source_key, unpack="json", metadata="entry_id,timestamp")
            .options(starting="earliest", max_entries_per_trigger=arguments.per_file)
            # Spark 4.0 and 4.1 do not pass the trigger to a source.
            .options(available_now=not arguments.follow)
            .load()
        )
        writer = (
            orders.selectExpr("*", "date(timestamp) AS day")
            .writeStream.format("parquet")
            .partitionBy("day")
            .options(path=str(folder), checkpointLocation=str(folder / "_checkpoint"))
        )
        query = writer.start() if arguments.follow else writer.trigger(availableNow=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            query.awaitTermination()
        print(f"{spark.read.parquet(str(folder)).count()} orders in {folder}")
    return 0


def write_samples(url: str, key: str) -> None:
    with Dispatcher(Endpoint.from_url(url, stream_key=key)) as dispatcher:
        for number in range(1_000):
            dispatcher.produce(b'{"order_id": %d, "cents": %d}' % (number, number * 37))
        dispatcher.flush().raise_for_failures()


if __name__ == "__main__":
    sys.exit(main())
