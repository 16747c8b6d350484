"""`examples/ordered_accounts.py`, run as a user runs it: members that are killed, and one that is fenced."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace import Dispatcher
from headrace.testing import LocalServer
from support.marks import thorough
from support.paths import ROOT
from support.pipelines import endpoint_to
from support.processes import wait_until
from support.programs import run_file

EXAMPLE = str(ROOT / "examples" / "ordered_accounts.py")


@pytest.mark.parametrize("kills", [3, *thorough(100)])
def test_the_balances_are_the_sums_of_the_payments(kills: int) -> None:
    done = run_file(EXAMPLE, "--kills", str(kills))
    payments = f"{500 * (kills + 1):,}"
    assert done.stdout == f"kills {kills}, payments {payments}, stored {payments}, balances equal\n", done.stderr
    assert done.returncode == 0


def test_the_database_fences_an_earlier_owner(
    tcp_server: LocalServer, connect: Callable[..., Any], tmp_path: Path
) -> None:
    """It is not asked whether the lease is lost: its transaction changes nothing."""
    path = tmp_path / "bank.db"
    endpoint = endpoint_to(tcp_server, stream_key="payments", shards=1)
    client = connect(tcp_server)

    def pay(first: int, end: int) -> None:
        with Dispatcher(endpoint) as dispatcher:
            for number in range(first, end):
                dispatcher.produce(fields={"customer": "ann", "number": number, "amount": 10}, key="ann")

    def stored(database: sqlite3.Connection) -> Any:
        return database.execute("SELECT balance, payments FROM accounts").fetchall()

    arguments = [str(path), "--url", tcp_server.url, "--shards", "1", "--member", "pod-1"]
    pay(1, 51)
    with subprocess.Popen([sys.executable, EXAMPLE, *arguments], stdout=subprocess.PIPE, env=os.environ) as member:
        assert member.stdout is not None
        member.stdout.readline()
        with closing(sqlite3.connect(path, timeout=60)) as database:
            wait_until(lambda: stored(database) == [(500, 50)])
            # A later owner was in the database.
            with database:
                database.execute("UPDATE shards SET epoch = epoch + 1")
            pay(51, 101)
            wait_until(lambda: client.xlen("payments:0") == 100)
            pay(101, 102)
            member.send_signal(signal.SIGTERM)
            assert member.wait() == 0
            assert stored(database) == [(500, 50)]
            assert client.xinfo_groups("payments:0")[0]["last-delivered-id"].decode() == last_stored(database)


def last_stored(database: sqlite3.Connection) -> str:
    return str(database.execute("SELECT last_id FROM shards").fetchone()[0])
