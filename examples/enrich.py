"""Read a Redis stream with Spark, compute, and write another stream: each entry once, even if the program is killed.

    python examples/enrich.py                                             # a local server and sample orders
    python examples/enrich.py checkpoint --url redis://localhost:6379     # up to the current newest entry
    python examples/enrich.py checkpoint --url redis://localhost:6379 --follow

Needs `pip install headrace[spark]`. The folder `checkpoint` records the progress of the query in the source as ranges
of entry IDs, which are the same when a micro-batch runs again; the server of the target knows which rows of a
micro-batch it already has. You can kill the program at any moment and start it again with the same folder, within a day
(`token_ttl`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer


def main() -> int:
    parser = argparse.ArgumentParser(description="Enrich the entries of a Redis stream with Spark.")
    parser.add_argument("checkpoint", nargs="?", type=Path, help="folder for the checkpoint (default: a temporary one)")
    parser.add_argument("--url", help="server of both streams (default: start one, with orders)")
    parser.add_argument("--source-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--target-key", default="enriched-orders", help="stream to append to (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="tasks per micro-batch (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="wait for new entries, until Ctrl-C")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        if not arguments.url:
            write_samples(url, arguments.source_key)
        checkpoint = arguments.checkpoint or Path(stack.enter_context(TemporaryDirectory()))
        spark = SparkSession.builder.appName("enrich").config("spark.ui.showConsoleProgress", "false").getOrCreate()
        stack.callback(spark.stop)
        orders = (
            spark.readStream.format("redis_streams")
            .schema("order_id long, cents long")
            .options(url=url, stream_key=arguments.source_key, unpack="json")
            .options(starting="earliest", min_partitions=arguments.partitions)
            .load()
        )
        writer = (
            enrich(orders)
            .writeStream.format("redis_streams")
            .options(url=url, stream_key=arguments.target_key, checkpointLocation=str(checkpoint))
        )
        query = writer.start() if arguments.follow else writer.trigger(availableNow=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        print(f"{rows} orders from {arguments.source_key} to {arguments.target_key}")
    return 0


def enrich(orders: DataFrame) -> DataFrame:
    """Compute without a shuffle, and the same for the same rows, so that a micro-batch can run again."""
    return orders.selectExpr("order_id", "cents / 100 AS total", "if(cents >= 10000, 'large', 'small') AS size")


def write_samples(url: str, key: str) -> None:
    with Dispatcher(Endpoint.from_url(url, stream_key=key)) as dispatcher:
        for number in range(1_000):
            dispatcher.produce(b'{"order_id": %d, "cents": %d}' % (number, number * 37))
        dispatcher.flush().raise_for_failures()


if __name__ == "__main__":
    sys.exit(main())
