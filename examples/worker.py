"""Handle the entries of a stream in threads: retries, dead letters, metrics, and SIGTERM, which loses nothing.

    python examples/worker.py                                     # a local server and 500 orders
    python examples/worker.py --url redis://localhost:6379        # your server, until SIGTERM or Ctrl-C

Start as many as you like, each with a name of its own (`--consumer`, by default that of the host). An order that fails
is tried again, later each time, by any of them, and becomes a dead letter after five failures. An order may come twice,
for example after a crash: the key of its row, the stream and the entry ID, makes that harmless. sqlite3 stands in for
any database.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import socket
import sqlite3
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace import Consumer, Dispatcher, Endpoint, Entry, RetryPolicy
from headrace.testing import LocalServer

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (stream TEXT, entry_id TEXT, cents INTEGER NOT NULL, PRIMARY KEY (stream, entry_id))
"""


class Orders:
    """The work: replace it by yours."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with self._connect() as database:
            database.execute(SCHEMA)

    def handle(self, entry: Entry) -> None:
        """Return once the order is stored. An exception makes it fail, with its text as the reason."""
        try:
            cents = int(json.loads(entry["payload"])["cents"])
            with self._connect() as database:
                row = (entry.stream.decode(), entry.id, cents)
                database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row)
        except Exception:
            logging.exception("%s of %s failed, delivery %d", entry.id, entry.stream, entry.deliveries)
            raise

    @contextlib.contextmanager
    def _connect(self):  # type: ignore[no-untyped-def]
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as database, database:
            yield database


def main() -> int:
    parser = argparse.ArgumentParser(description="Handle the entries of a Redis stream in threads.")
    parser.add_argument("database", nargs="?", help="SQLite file (default: a temporary one)")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: one with orders)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable with the server's password")
    parser.add_argument("--stream-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--group", default="billing", help="consumer group (default: %(default)s)")
    parser.add_argument("--consumer", default=socket.gethostname(), help="name of this worker (default: the host's)")
    parser.add_argument("--concurrency", type=int, default=8, help="number of threads (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for an order (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, help="port for Prometheus; needs headrace[prometheus]")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, password_env=arguments.password_env)
        orders = Orders(arguments.database or Path(stack.enter_context(TemporaryDirectory())) / "shop.db")
        consumer = stack.enter_context(
            Consumer(
                endpoint,
                group=arguments.group,
                consumer=arguments.consumer,
                start="0-0",
                max_failures=5 if arguments.url else 1,
                dead_letter_key=f"{arguments.stream_key}:dead",
                retry=RetryPolicy(),
            )
        )
        if arguments.metrics_port is not None:
            serve_metrics(consumer, arguments.metrics_port)
        if not arguments.url:
            produce_orders(endpoint, 500)
            threading.Thread(target=stop_after, args=(consumer, 500), daemon=True).start()
        report = consumer.run(orders.handle, per="entry", concurrency=arguments.concurrency, timeout=arguments.timeout)
        print(f"acknowledged {report.acked:,}, dead {report.dead:,}, given back {report.released:,}")
    return 0


def serve_metrics(consumer: Consumer, port: int) -> None:
    from prometheus_client import REGISTRY, start_http_server

    from headrace.metrics import PrometheusCollector

    REGISTRY.register(PrometheusCollector(consumer))
    start_http_server(port)


def produce_orders(endpoint: Endpoint, count: int) -> None:
    """Every hundredth one cannot be handled."""
    with Dispatcher(endpoint) as dispatcher:
        for number in range(count):
            dispatcher.produce(json.dumps({"order_id": number, "cents": number if number % 100 else "many"}))


def stop_after(consumer: Consumer, count: int) -> None:
    """End the example once all orders are settled. A service runs until SIGTERM."""
    wait = threading.Event().wait
    while (stats := consumer.stats()).acked + stats.dead < count:
        wait(0.05)
    consumer.stop()


if __name__ == "__main__":
    sys.exit(main())
