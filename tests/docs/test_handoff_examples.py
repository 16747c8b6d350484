"""The examples that hand entries on, run as a user runs them. tests/read_kills kills them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.paths import ROOT
from support.processes import wait_until
from support.programs import run_file

TO_SQLITE = str(ROOT / "examples" / "to_sqlite.py")
PIPE = str(ROOT / "examples" / "pipe.py")


def run(*arguments: str) -> tuple[str, str, int]:
    done = run_file(*arguments)
    return done.stdout, done.stderr, done.returncode


def add(client: Any, count: int) -> list[bytes]:
    """Add entries with the fields n and, twice, v, whose bytes are not UTF-8."""
    ids: Any = [client.execute_command("XADD", "order-events", "*", "n", n, "v", b"\xff", "v", n) for n in range(count)]
    return list(ids)


def entries(client: Any, key: str) -> list[Any]:
    """The fields of each entry: names and values in their order."""
    reply: Any = client.execute_command("XRANGE", key, "-", "+", NEVER_DECODE=True)
    return [fields for _, fields in reply]


@pytest.fixture
def client(any_server: LocalServer, connect: Callable[..., redis.Redis]) -> Any:
    client = connect(any_server)
    client.response_callbacks.clear()  # replies as they are: fields with equal names
    return client


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


def rows(database: str, query: str = "SELECT payload FROM orders ORDER BY rowid") -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute(query)]


@pytest.mark.parametrize(("example", "last"), [(TO_SQLITE, "rows 2,500, lost 0"), (PIPE, "copied 2,500")])
def test_the_examples_run_without_arguments(example: str, last: str) -> None:
    stdout, stderr, status = run(example)
    assert (stdout.splitlines()[-1], stderr, status) == (last, "", 0)


def test_a_second_run_stores_only_new_entries(any_server: LocalServer, client: Any, database: str) -> None:
    for first in (0, 100):
        for number in range(first, first + 100):
            client.execute_command("XADD", "order-events", "*", "payload", number)
        stdout, stderr, status = run(TO_SQLITE, database, "--url", any_server.url, "--rows", "7")
        assert (stdout.splitlines()[-1], stderr, status) == ("rows 100, lost 0", "", 0)
    assert rows(database) == [str(number) for number in range(200)]


def test_a_second_process_stops(any_server: LocalServer, client: Any, database: str) -> None:
    """Both wait for the first entry; one of them stores it."""
    command = [sys.executable, TO_SQLITE, database, "--url", any_server.url, "--follow"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        wait_until(lambda: client.execute_command("INFO", "clients").count(b"blocked_clients:2\r\n"))
        client.execute_command("XADD", "order-events", "*", "payload", "a")
        wait_until(lambda: any(process.poll() is not None for process in processes))
    finally:
        for process in processes:
            process.terminate()
        ended = [(process.communicate()[1], process.returncode) for process in processes]
    assert any(
        error.endswith("another process reads this stream into this database\n") and code == 1 for error, code in ended
    )
    assert rows(database) == ["a"]


def test_data_loss_stops_the_example_before_the_gap(any_server: LocalServer, client: Any, database: str) -> None:
    add(client, 50)
    assert run(TO_SQLITE, database, "--url", any_server.url)[2] == 0
    add(client, 50)
    client.execute_command("XTRIM", "order-events", "MAXLEN", 20)
    _, stderr, status = run(TO_SQLITE, database, "--url", any_server.url)
    assert status == 1
    assert "DataLossError: stream order-events: 30 entries were trimmed" in stderr
    assert len(rows(database)) == 50
    stdout, stderr, status = run(TO_SQLITE, database, "--url", any_server.url, "--on-loss", "report")
    assert (stdout.splitlines()[-1], stderr, status) == ("rows 20, lost 30", "", 0)


def pipe(server: LocalServer, state: Path, *options: str) -> tuple[str, str, int]:
    return run(PIPE, str(state), "--source", server.url, *options)


def test_entries_are_copied_byte_for_byte(any_server: LocalServer, client: Any, tmp_path: Path) -> None:
    for _ in range(2):
        add(client, 100)
        stdout, stderr, status = pipe(any_server, tmp_path / "pipe.json", "--rows", "7")
        assert (stdout.splitlines()[-1], stderr, status) == ("copied 100", "", 0)
    assert entries(client, "copied-orders") == entries(client, "order-events")
    assert entries(client, "copied-orders")[3] == [b"n", b"3", b"v", b"\xff", b"v", b"3"]


@pytest.mark.parametrize("written", [0, 40, 100])
def test_an_unfinished_range_is_completed(written: int, any_server: LocalServer, client: Any, tmp_path: Path) -> None:
    """As after a crash: the file names a range of 100 entries, and the target has some of them."""
    ids = add(client, written)
    state = tmp_path / "pipe.json"
    saved = {"token": "t", "version": 1, "position": "earliest", "last_id": "0-0", "rows": 0}
    if written:
        # The messages of the range are numbered from 0, so a shorter one is its first part.
        state.write_text(json.dumps(saved | {"last_id": ids[-1].decode(), "rows": written}))
        assert pipe(any_server, state)[2] == 0
    ids += add(client, 100 - written)
    state.write_text(json.dumps(saved | {"last_id": ids[-1].decode(), "rows": 100}))
    add(client, 10)
    stdout, stderr, status = pipe(any_server, state)
    assert (stdout.splitlines()[-1], stderr, status) == ("copied 10", "", 0)
    assert stdout.startswith(f"copying again: 100 entries up to {ids[-1].decode()}\n")
    assert entries(client, "copied-orders") == entries(client, "order-events")
    assert json.loads(state.read_text())["version"] == 2


@pytest.mark.parametrize("how", ["trimmed", "deleted"])
def test_an_incomplete_range_is_not_copied(how: str, any_server: LocalServer, client: Any, tmp_path: Path) -> None:
    ids = add(client, 100)
    state = tmp_path / "pipe.json"
    last = ids[-1].decode()
    saved = {"token": "t", "version": 1, "position": "earliest", "last_id": last, "rows": 100}
    state.write_text(json.dumps(saved))
    if how == "trimmed":
        client.execute_command("XTRIM", "order-events", "MAXLEN", 99)
    else:
        client.execute_command("XDEL", "order-events", ids[50])
    _, stderr, status = pipe(any_server, state)
    assert status == 1
    assert stderr == f"99 of 100 entries up to {last} are left: it is unknown which were copied\n"
    assert entries(client, "copied-orders") == []
    assert json.loads(state.read_text()) == saved


def test_only_one_process_can_use_a_state_file(any_server: LocalServer, client: Any, tmp_path: Path) -> None:
    state = tmp_path / "pipe.json"
    command = [sys.executable, PIPE, str(state), "--source", any_server.url, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "reading from earliest\n"
            assert pipe(any_server, state) == ("", f"another process uses {state}\n", 1)
        finally:
            first.kill()
