"""Drains an outbox table into a Redis stream: every row once, in order, whatever crashes on the way.

    python examples/outbox.py                                         # a server and orders of its own
    python examples/outbox.py shop.db --url redis://localhost:6379    # your server; makes the table, if there is none

An application writes its rows and the messages that tell of them in one transaction; this carries the messages over.
It is plain Python, and sqlite3 stands for any database.

Each batch of rows gets a token that is committed before anything is sent, and its rows stay until the database knows
what became of each. So after a crash, even one between the last reply and the commit, the same rows are sent again
under the same token, and the server recognises those that are in the stream already. (For a day: `token_ttl`.) Run one
of these at a time.
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
    batch      TEXT,                                     -- the token under which the row is being sent
    code       TEXT,                                     -- why it never can be: nobody tries again before this is null
    message    TEXT
);
CREATE INDEX IF NOT EXISTS outbox_batch ON outbox (batch, id);
"""

CLAIM = """
UPDATE outbox SET batch = ? WHERE id IN (
    SELECT id FROM outbox WHERE batch IS NULL AND code IS NULL ORDER BY id LIMIT ?
)
"""

#: The rows of a batch. Their order is part of the bargain: token and place name a message for ever.
ROWS = "SELECT id, payload FROM outbox WHERE batch = ? ORDER BY id"


def main() -> int:
    parser = argparse.ArgumentParser(description="Drain an outbox table into a Redis stream.")
    parser.add_argument("database", nargs="?", help="SQLite file (default: one of its own, with 2,500 orders)")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: start one)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable that holds the server's password")
    parser.add_argument("--stream-key", default="order-events", help="stream to append to (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--deadline", type=float, default=30, help="seconds to wait for a server (%(default)s)")
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, password_env=arguments.password_env)
        path = arguments.database or Path(stack.enter_context(TemporaryDirectory())) / "shop.db"
        database = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=60)))
        database.executescript(SCHEMA)
        if not arguments.database:
            take_orders(database, 2_500)
        return drain(database, endpoint, arguments.rows, RetryPolicy(deadline=arguments.deadline))


def take_orders(database: sqlite3.Connection, count: int) -> None:
    """What an application does. The orders themselves would be in the same transaction."""
    with database:
        orders = ((f'{{"order_id": {number}}}',) for number in range(count))
        database.executemany("INSERT INTO outbox (payload) VALUES (?)", orders)


def drain(database: sqlite3.Connection, endpoint: Endpoint, rows: int, retry: RetryPolicy) -> int:
    """Send batches until nothing is left, or nothing moves. Returns the exit status."""
    with Dispatcher(endpoint, exactly_once="script", retry=retry) as dispatcher:
        for batch in batches(database, rows):
            dispatcher.begin(batch)
            for id_, payload in database.execute(ROWS, (batch,)):
                dispatcher.produce(payload, message_id=id_)
            report = dispatcher.flush()
            before = f", {report.deduplicated:,} of them before" if report.deduplicated else ""
            print(f"delivered {report.delivered:,}{before}; failed {len(report.failed):,}")
            for failure in report.failed[:10]:
                advice = "to be retried" if failure.kind == "retryable" else "set aside"
                print(f"  row {failure.message_id} {advice}: {failure.code}, {failure.message}")
            if not settle(database, batch, report) or not report.delivered:
                break
    waiting, aside = database.execute("SELECT count(*) - count(code), count(code) FROM outbox").fetchone()
    print(f"waiting {waiting:,}, set aside {aside:,}")
    return 1 if waiting or aside else 0


def batches(database: sqlite3.Connection, rows: int) -> Iterator[str]:
    """The tokens of the batches that are to be sent: first of one that a crash has left, just as it was."""
    while True:
        left = database.execute("SELECT batch FROM outbox WHERE batch IS NOT NULL LIMIT 1").fetchone()
        if left is not None:
            yield left[0]
            continue
        token = str(uuid.uuid4())
        with database:
            if not database.execute(CLAIM, (token, rows)).rowcount:
                return
        yield token


def settle(database: sqlite3.Connection, batch: str, report: DeliveryReport) -> bool:
    """Note what became of a batch, in one transaction. False: that is not known yet, and it stays as it is.

    A message is known by its token and its number, so rows may leave their batch only when it is known of each whether
    it was written.
    """
    if any(failure.written == "unknown" for failure in report.failed):
        return False
    with database:
        for failure in report.failed:
            # What was not written and may be later comes with the next batch.
            reason = (failure.code, failure.message) if failure.kind == "permanent" else (None, None)
            update = "UPDATE outbox SET batch = NULL, code = ?, message = ? WHERE id = ?"
            database.execute(update, (*reason, failure.message_id))
        database.execute("DELETE FROM outbox WHERE batch = ?", (batch,))
    return True


if __name__ == "__main__":
    sys.exit(main())
