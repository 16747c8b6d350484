"""The examples, run as a user runs them: each in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.marks import thorough
from support.paths import ROOT
from support.processes import resume, stop, stopped, wait_until

EXAMPLES = ROOT / "examples"
FLIGHTS = 336_776


def run(example: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.thorough
def test_all_flights_reach_the_stream(tcp_server: LocalServer, connect: Callable[..., redis.Redis]) -> None:
    client = connect(tcp_server, decode_responses=True)
    client.xadd("flights", {"payload": "an existing entry"}, id="1-1")
    done = run("flights.py", "--url", tcp_server.url)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    numbers = {
        name: float(n.replace(",", "")) for name, n in re.findall(r"^(\S+) +([\d,]+)", done.stdout, re.MULTILINE)
    }
    assert numbers.pop("entries/s") > 0
    assert numbers == {"rows": FLIGHTS, "delivered": FLIGHTS, "failed": 0}
    assert f"XLEN flights: {FLIGHTS + 1}\n" in done.stdout
    assert client.xlen("flights") == FLIGHTS + 1

    entries: Any = client.xrange("flights", min="(1-1")
    flights = [json.loads(fields.pop("payload")) for _, fields in entries]
    assert {tuple(fields) for _, fields in entries} == {("ts",)}
    by_name = {(flight["carrier"], flight["flight"], flight["time_hour"]): flight for flight in flights}
    assert len(by_name) == FLIGHTS
    # The first line of the file; empty values are left out.
    assert by_name["UA", 1545, "2013-01-01T10:00:00.000Z"] == json.loads(
        """{"year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15,
        "time_hour": "2013-01-01T10:00:00.000Z"}"""
    )
    assert sum("dep_time" not in flight for flight in flights) == 8_255

    # The three newest entries are shown unchanged.
    shown = re.findall(r"^ +(\d+-\d+) (\{.*\})$", done.stdout, re.MULTILINE)
    assert [entry_id for entry_id, _ in shown] == [entry_id for entry_id, _ in reversed(entries[-3:])]
    assert all('"carrier"' in text for _, text in shown)


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["--url", "redis://:hunter2@127.0.0.1:1"], {}, "Connection refused"),
        *thorough((["--url", "redis://127.0.0.1/zero"], {}, "the number of a database")),
        ([], {"HEADRACE_SERVER": "/nowhere/redis-server"}, "/nowhere/redis-server"),
    ],
)
def test_flights_reports_an_unusable_server(arguments: list[str], environment: dict[str, str], text: str) -> None:
    done = run("flights.py", *arguments, **environment)
    assert done.returncode == 1
    assert text in done.stdout
    assert "Starting Spark" not in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# --- outbox.py --------------------------------------------------------------------------------------------------------


TIMEOUTS = "connect_timeout=0.5&command_timeout=0.5"


class Shop:
    """A database with an outbox, and the stream that it drains into."""

    def __init__(self, server: LocalServer, client: redis.Redis, path: Path) -> None:
        self._command = [sys.executable, str(EXAMPLES / "outbox.py"), str(path), "--url", f"{server.url}?{TIMEOUTS}"]
        self._client = client
        done = self.drain()  # creates the table
        assert done.stdout == "waiting 0, set aside 0\n"
        self.database = sqlite3.connect(path, timeout=60)

    def insert_orders(self, first: int, end: int) -> None:
        with self.database:
            rows = ((f"order {number}",) for number in range(first, end))
            self.database.executemany("INSERT INTO outbox (payload) VALUES (?)", rows)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [*self._command, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def drain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False)

    def rows(self, what: str = "count(*)", where: str = "TRUE") -> Any:
        return self.database.execute(f"SELECT {what} FROM outbox WHERE {where}").fetchall()

    @property
    def sent(self) -> list[str]:
        entries: Any = self._client.xrange("order-events")
        return [fields[b"payload"].decode() for _, fields in entries]


@pytest.fixture
def shop(any_server: LocalServer, connect: Callable[..., redis.Redis], tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(any_server, connect(any_server), tmp_path / "shop.db")
    with contextlib.closing(shop.database):
        yield shop


def orders(end: int) -> list[str]:
    return [f"order {number}" for number in range(end)]


def test_the_outbox_runs_without_arguments() -> None:
    done = run("outbox.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["delivered 500, failed 0", "waiting 0, set aside 0"]


def test_the_outbox_drains_in_order(shop: Shop) -> None:
    shop.insert_orders(0, 2_500)
    for _ in range(2):
        done = shop.drain()
        assert (done.returncode, done.stderr) == (0, "")
    shop.insert_orders(2_500, 2_600)
    assert shop.drain("--rows", "7").returncode == 0
    assert shop.sent == orders(2_600)
    assert shop.rows() == [(0,)]


def test_a_crash_between_flush_and_commit_writes_no_row_twice(shop: Shop, any_server: LocalServer) -> None:
    shop.insert_orders(0, 2_500)
    with stopped(any_server):
        process = shop.start()
        wait_until(lambda: shop.rows(where="batch IS NOT NULL") == [(1_000,)])
        shop.database.execute("BEGIN IMMEDIATE")  # blocks the commit of the relay
    wait_until(lambda: len(shop.sent) == 1_000)
    process.kill()
    process.communicate()
    shop.database.rollback()
    assert shop.rows() == [(2_500,)]
    # The next relay cannot ask the server what was written, so it keeps the batch unchanged.
    with stopped(any_server):
        assert shop.drain("--deadline", "0").returncode == 1
    assert shop.rows(where="batch IS NOT NULL") == [(1_000,)]
    done = shop.drain()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("delivered 1,000 (1,000 by an earlier attempt), failed 0\n")
    assert shop.sent == orders(2_500)
    assert shop.rows() == [(0,)]


@pytest.mark.thorough
def test_a_batch_with_an_unknown_outcome_is_sent_again(shop: Shop, any_server: LocalServer) -> None:
    """Without replies it is unknown whether the messages were written: the batch stays and is sent again."""
    shop.insert_orders(0, 200_000)
    process = shop.start("--rows", "200000", "--deadline", "0.5")
    wait_until(lambda: len(shop.sent) >= 1_000)
    stop(any_server)
    try:
        printed, warnings = process.communicate(timeout=60)
    finally:
        resume(any_server)
    assert process.returncode == 1
    # The example does not configure logging: Python prints warnings on stderr.
    began, ended = warnings.splitlines()
    assert re.match(r"retrying \d+ messages to unix://\S+ stream key order-events for up to 0\.5 s: TIMEOUT: ", began)
    assert re.match(r"retries to unix://\S+ stream key order-events were given up after \d+ tries in ", ended)
    assert re.search(r"  row \d+ will be retried: TIMEOUT, ", printed)
    assert shop.rows(where="batch IS NOT NULL AND code IS NULL") == [(200_000,)]
    done = shop.drain()
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"delivered 200,000 \([\d,]+ by an earlier attempt\), failed 0\n", done.stdout)
    assert shop.sent == orders(200_000)


def test_rows_that_fail_permanently_are_set_aside(
    shop: Shop, connect: Callable[..., redis.Redis], any_server: LocalServer
) -> None:
    client = connect(any_server)
    client.set("order-events", "not a stream")
    shop.insert_orders(0, 10)
    done = shop.drain()
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "delivered 0, failed 10",
        f"  row 1 set aside: WRONGTYPE, {shop.rows('message', 'id = 1')[0][0]}",
    ]
    assert lines[2].startswith("  row 2 will be retried: BLOCKED, ")
    assert lines[-1] == "waiting 9, set aside 1"
    assert shop.rows("id, code", "batch IS NULL AND code IS NOT NULL") == [(1, "WRONGTYPE")]

    client.delete("order-events")
    assert shop.drain().stdout.splitlines() == ["delivered 9, failed 0", "waiting 0, set aside 1"]
    with shop.database:
        shop.database.execute("UPDATE outbox SET code = NULL")
    assert shop.drain().returncode == 0
    assert shop.sent == [*orders(10)[1:], "order 0"]
