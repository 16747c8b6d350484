"""Read a Redis stream into an SQLite table: each entry once, even across crashes.

    python examples/to_sqlite.py                                             # a local server and sample orders
    python examples/to_sqlite.py shop.db --url redis://localhost:6379        # your server, up to its newest entry
    python examples/to_sqlite.py shop.db --url redis://localhost:6379 --follow

The position of the reader is stored in the same transaction as the rows, so the database never has one without the
other, and no entry ID needs to be looked up. sqlite3 stands in for any database with transactions.

The position is moved only from where this process found it. If two processes are started by mistake, one stops with an
error, and no row is stored twice.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from headrace import Dispatcher, Endpoint, Reader
from headrace.testing import LocalServer

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (entry_id TEXT NOT NULL, payload TEXT);
CREATE TABLE IF NOT EXISTS position (stream_key TEXT PRIMARY KEY, text TEXT NOT NULL);
"""

FIND = "SELECT text FROM position WHERE stream_key = ?"

#: Changes no row if another process has moved the position, or stored the first one.
MOVE = """
INSERT INTO position VALUES (:stream_key, :new)
ON CONFLICT (stream_key) DO UPDATE SET text = :new WHERE text = :old
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Read a Redis stream into an SQLite table.")
    parser.add_argument("database", nargs="?", help="SQLite file (default: a temporary one)")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: one with orders)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable with the server's password")
    parser.add_argument("--stream-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8_192, help="maximum rows per transaction (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="wait for new entries, until Ctrl-C")
    parser.add_argument(
        "--on-loss",
        choices=["fail", "report"],
        default="fail",
        help="if entries were trimmed before they were read: stop, or count them and continue (default: %(default)s)",
    )
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, password_env=arguments.password_env)
        if not arguments.url:
            produce_orders(endpoint, 2_500)
        path = arguments.database or Path(stack.enter_context(TemporaryDirectory())) / "shop.db"
        database = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=60)))
        database.executescript(SCHEMA)
        end = None if arguments.follow else "latest"
        with contextlib.suppress(KeyboardInterrupt):
            return copy(database, endpoint, end, arguments.rows, arguments.on_loss)
    return 0


def produce_orders(endpoint: Endpoint, count: int) -> None:
    with Dispatcher(endpoint) as dispatcher:
        for number in range(count):
            dispatcher.produce(f'{{"order_id": {number}}}')


def copy(
    database: sqlite3.Connection, endpoint: Endpoint, end: str | None, rows: int, on_loss: Literal["fail", "report"]
) -> int:
    """Store batch after batch, and return the exit status."""
    found = database.execute(FIND, (endpoint.stream_key,)).fetchone()
    position = found[0] if found else None
    print(f"reading from {position or 'the oldest entry'}", flush=True)
    stored = 0
    with Reader(
        endpoint,
        start=position or "earliest",
        end=end,
        fields=["payload"],
        metadata=["entry_id"],
        batch_rows=rows,
        on_loss=on_loss,
    ) as reader:
        for batch in reader:
            move = {"stream_key": endpoint.stream_key, "old": position, "new": batch.position}
            with database:  # one transaction
                if not database.execute(MOVE, move).rowcount:
                    print("another process reads this stream into this database", file=sys.stderr)
                    return 1
                database.executemany("INSERT INTO orders VALUES (:entry_id, :payload)", batch.to_pylist())
            position = batch.position
            stored += batch.num_rows
        print(f"rows {stored:,}, lost {reader.lost:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
