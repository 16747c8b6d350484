"""Keep the balances of customers in SQLite: their payments in order, each once, however many processes work or die.

    python examples/ordered_accounts.py                          # a local server, three members, some are killed
    python examples/ordered_accounts.py --kills 100
    python examples/ordered_accounts.py bank.db --url redis://localhost:6379 --member pod-1     # one, until Ctrl-C

Payments of a customer are in one shard, which one member at a time owns. A member may believe that it owns a shard
that another one has taken, because it was suspended for example. So the database fences: with the balances, each
transaction stores the epoch of the owner and the ID of the last entry. A transaction of an earlier owner changes
nothing, and entries that are returned again are recognised. sqlite3 stands in for any database with transactions.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace import Dispatcher, Endpoint, ShardBatch, ShardConsumer
from headrace.testing import LocalServer

SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (customer TEXT PRIMARY KEY, balance INTEGER NOT NULL, payments INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shards (stream BLOB PRIMARY KEY, epoch INTEGER NOT NULL, last_id TEXT NOT NULL);
"""

#: Changes no row if a later owner of the shard was here.
FENCE = """
INSERT INTO shards VALUES (:stream, :epoch, :last_id)
ON CONFLICT (stream) DO UPDATE SET epoch = :epoch, last_id = :last_id WHERE epoch <= :epoch
"""

#: The payments of a customer are numbered: this one must be the next.
PAY = """
INSERT INTO accounts
SELECT :customer, :amount, 1 WHERE :number = 1 OR EXISTS (SELECT 1 FROM accounts WHERE customer = :customer)
ON CONFLICT (customer) DO UPDATE SET balance = balance + :amount, payments = payments + 1 WHERE payments = :number - 1
"""

CUSTOMERS = 50
PAYMENTS_PER_KILL = 500


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep balances in SQLite: payments in order, each once.")
    parser.add_argument("database", nargs="?", help="SQLite file (default: a temporary one)")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: one with payments)")
    parser.add_argument("--stream-key", default="payments", help="name of the shards (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=6, help="number of the shards (default: %(default)s)")
    parser.add_argument("--member", help="be one member with this name, until Ctrl-C")
    parser.add_argument(
        "--lease", type=float, default=10.0, help="seconds until others take over (default: %(default)s)"
    )
    parser.add_argument(
        "--kills", type=int, default=5, help="without --member: how many are killed (default: %(default)s)"
    )
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, shards=arguments.shards)
        path = arguments.database or str(Path(stack.enter_context(TemporaryDirectory())) / "bank.db")
        database = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)))
        database.executescript(SCHEMA)
        if arguments.member:
            work(database, endpoint, arguments.member, arguments.lease)
            return 0
        command = [sys.executable, __file__, path, "--url", url, "--stream-key", arguments.stream_key]
        command += ["--shards", str(arguments.shards), "--lease", "1"]
        return rehearse(database, endpoint, command, arguments.kills)


def work(database: sqlite3.Connection, endpoint: Endpoint, member: str, lease: float) -> None:
    with ShardConsumer(endpoint, group="accounts", member=member, lease=lease, batch_rows=100) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        signal.signal(signal.SIGINT, lambda *_: consumer.stop())
        print("ready", flush=True)
        for batch in consumer:
            if store(database, batch):
                consumer.commit(batch)


def store(database: sqlite3.Connection, batch: ShardBatch) -> bool:
    """Store a batch in one transaction, unless a later owner of its shard was here. Returns whether that is done."""
    with transaction(database):
        found = database.execute("SELECT last_id FROM shards WHERE stream = ?", (batch.stream,)).fetchone()
        fence = {"stream": batch.stream, "epoch": batch.epoch, "last_id": batch.last_id}
        if found and order(found[0]) > order(batch.last_id):
            fence["last_id"] = found[0]  # all of it was stored before
        if not database.execute(FENCE, fence).rowcount:
            return False
        for entry in batch:
            if found and order(entry.id) <= order(found[0]):
                continue  # stored before, and not committed
            payment = {"customer": entry["customer"].decode()}
            payment |= {name: int(entry[name]) for name in ("number", "amount")}
            if not database.execute(PAY, payment).rowcount:
                raise RuntimeError(f"payment {payment['number']} of {payment['customer']} is not the next one")
    return True


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One that no other process is in: it writes what it has read."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def order(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))


def rehearse(database: sqlite3.Connection, endpoint: Endpoint, command: list[str], kills: int) -> int:
    """Kill members while payments come, and compare the balances with the sum of all payments."""
    chance = random.Random(kills)
    paid = dict.fromkeys((f"customer {number}" for number in range(CUSTOMERS)), 0)
    count = 0
    members: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("pod-0", "pod-1", "pod-2"):
            members[name] = start(command, name)
        for _ in range(kills):
            count = pay(endpoint, paid, count, chance)
            time.sleep(chance.uniform(0.0, 0.1))
            name = chance.choice(sorted(members))
            members[name].kill()
            members[name].communicate()
            members[name] = start(command, name)
        count = pay(endpoint, paid, count, chance)
        while payments(database) < count:
            if any(member.poll() is not None for member in members.values()):
                print("a member has ended", file=sys.stderr)
                return 1
            time.sleep(0.05)
    finally:
        for member in members.values():
            member.terminate()
        for member in members.values():
            member.communicate()
    balances = dict(database.execute("SELECT customer, balance FROM accounts"))
    is_equal = balances == {customer: amount for customer, amount in paid.items() if customer in balances}
    stored = payments(database)
    print(f"kills {kills:,}, payments {count:,}, stored {stored:,}, balances {'equal' if is_equal else 'WRONG'}")
    return 0 if is_equal and stored == count else 1


def start(command: list[str], name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*command, "--member", name], stdout=subprocess.PIPE, text=True)


def pay(endpoint: Endpoint, paid: dict[str, int], count: int, chance: random.Random) -> int:
    """Write payments, and return how many there are now."""
    with Dispatcher(endpoint) as dispatcher:
        for number in range(count, count + PAYMENTS_PER_KILL):
            customer, amount = f"customer {number % CUSTOMERS}", chance.randint(-100, 100)
            fields = {"customer": customer, "number": str(number // CUSTOMERS + 1), "amount": str(amount)}
            dispatcher.produce(fields=fields, key=customer)
            paid[customer] += amount
    return count + PAYMENTS_PER_KILL


def payments(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT coalesce(sum(payments), 0) FROM accounts").fetchone()[0])


if __name__ == "__main__":
    sys.exit(main())
