"""Drain an outbox table into a Redis stream: each row once and in order, even across crashes.

    python examples/outbox.py                                         # a local server and sample orders
    python examples/outbox.py shop.db --url redis://localhost:6379    # your server; creates the table if needed

An application writes its rows and the messages about them in one transaction; this relay sends the messages. It is
plain Python, and sqlite3 stands in for any database.

Each batch of rows gets a token, which is committed before anything is sent. The rows stay in the table until each has a
known outcome. After a crash, even between the last reply and the commit, the same rows are sent again under the same
token, and the server skips those that are already in the stream. It remembers a token for a day (`token_ttl`). Run one
relay at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace import DeliveryReport, Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalServer

SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    payload    TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    batch      TEXT,                                     -- the token of the batch that the row belongs to
    code       TEXT,                                     -- the code of a permanent failure; set to NULL to try again
    message    TEXT                                      -- and its message
);
CREATE INDEX IF NOT EXISTS outbox_batch ON outbox (batch, id);
"""

CLAIM = """
UPDATE outbox SET batch = ? WHERE id IN (
    SELECT id FROM outbox WHERE batch IS NULL AND code IS NULL ORDER BY id LIMIT ?
)
"""

#: The rows of a batch, always in the same order: the server identifies a message by its token and its position.
ROWS = "SELECT id, payload FROM outbox WHERE batch = ? ORDER BY id"


def main() -> int:
    parser = argparse.ArgumentParser(description="Drain an outbox table into a Redis stream.")
    parser.add_argument("database", nargs="?", help="SQLite file (default: a temporary one with 2,500 orders)")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: start one)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable with the server's password")
    parser.add_argument("--stream-key", default="order-events", help="stream to append to (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="rows per batch (default: %(default)s)")
    parser.add_argument(
        "--deadline",
        type=float,
        default=30,
        help="seconds to retry while the server is unavailable (default: %(default)s)",
    )
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, password_env=arguments.password_env)
        path = arguments.database or Path(stack.enter_context(TemporaryDirectory())) / "shop.db"
        database = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=60)))
        database.executescript(SCHEMA)
        if not arguments.database:
            insert_orders(database, 2_500)
        return drain(database, endpoint, arguments.rows, RetryPolicy(deadline=arguments.deadline))


def insert_orders(database: sqlite3.Connection, count: int) -> None:
    """Insert messages as an application does; it would insert the orders themselves in the same transaction."""
    with database:
        orders = ((f'{{"order_id": {number}}}',) for number in range(count))
        database.executemany("INSERT INTO outbox (payload) VALUES (?)", orders)


def drain(database: sqlite3.Connection, endpoint: Endpoint, rows: int, retry: RetryPolicy) -> int:
    """Send batches until no row is left or none can be delivered, and return the exit status."""
    with Dispatcher(endpoint, exactly_once="script", retry=retry) as dispatcher:
        for batch in batches(database, rows):
            dispatcher.begin(batch)
            for id_, payload in database.execute(ROWS, (batch,)):
                dispatcher.produce(payload, message_id=id_)
            report = dispatcher.flush()
            earlier = f" ({report.deduplicated:,} by an earlier attempt)" if report.deduplicated else ""
            print(f"delivered {report.delivered:,}{earlier}, failed {len(report.failed):,}")
            for failure in report.failed[:10]:
                action = "will be retried" if failure.kind == "retryable" else "set aside"
                print(f"  row {failure.message_id} {action}: {failure.code}, {failure.message}")
            if not record_outcomes(database, batch, report) or not report.delivered:
                break
    waiting, set_aside = database.execute("SELECT count(*) - count(code), count(code) FROM outbox").fetchone()
    print(f"waiting {waiting:,}, set aside {set_aside:,}")
    return 1 if waiting or set_aside else 0


def batches(database: sqlite3.Connection, rows: int) -> Iterator[str]:
    """Yield the tokens of the batches to send, beginning with one that an earlier run did not finish."""
    while True:
        unfinished = database.execute("SELECT batch FROM outbox WHERE batch IS NOT NULL LIMIT 1").fetchone()
        if unfinished is not None:
            yield unfinished[0]
            continue
        token = str(uuid.uuid4())
        with database:
            if not database.execute(CLAIM, (token, rows)).rowcount:
                return
        yield token


def record_outcomes(database: sqlite3.Connection, batch: str, report: DeliveryReport) -> bool:
    """Record the outcomes of a batch in one transaction. If any is unknown, change nothing and return False.

    The server identifies a message by its token and its position, so the batch must stay as it is until it is known for
    each row whether it was written.
    """
    if any(failure.written == "unknown" for failure in report.failed):
        return False
    with database:
        for failure in report.failed:
            # Retryable rows join the next batch; permanent failures keep their code and are not sent again.
            reason = (failure.code, failure.message) if failure.kind == "permanent" else (None, None)
            update = "UPDATE outbox SET batch = NULL, code = ?, message = ? WHERE id = ?"
            database.execute(update, (*reason, failure.message_id))
        database.execute("DELETE FROM outbox WHERE batch = ?", (batch,))
    return True


if __name__ == "__main__":
    sys.exit(main())
