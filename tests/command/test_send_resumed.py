"""Imports with a name: killed, resumed, and refused where they cannot go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from command.conftest import HEADRACE, Command
from headrace.testing import LocalServer
from support.marks import refuses_long_strings
from support.processes import wait_until

CHECKPOINT = b"{s}:headrace:import:import"
MARKER = b"{s}:headrace:import"
NAMED = ["--exactly-once", "import"]


def payloads(client: Any) -> list[bytes]:
    return [fields[b"payload"] for _, fields in client.xrange("s")]


def write_rows(path: Path, rows: range) -> None:
    path.write_bytes(b"".join(b"row %d\n" % row for row in rows))


@pytest.mark.thorough
def test_an_import_killed_at_random_is_resumed(any_command: Command, any_server: LocalServer, tmp_path: Path) -> None:
    """Each row once, in order, whatever the process was doing."""
    count, path = 400_000, tmp_path / "rows"
    path.write_bytes(b"".join(b"%d %s\n" % (row, b"x" * 20) for row in range(count)))
    chance = random.Random(0)
    client: Any
    with redis.Redis(unix_socket_path=any_server.unix_socket, protocol=2) as client:
        for _ in range(3):
            before = client.xlen("s")
            with subprocess.Popen(
                [HEADRACE, "send", "s", str(path), *NAMED], env={**os.environ, "HEADRACE_URL": any_server.url}
            ) as process:
                wanted = before + chance.randrange(1, 100_000)
                wait_until(lambda wanted=wanted: client.xlen("s") >= wanted or process.poll() is not None)  # type: ignore[misc]
                process.kill()
            assert process.returncode == -signal.SIGKILL
        ended = any_command("send", "s", str(path), *NAMED)
        assert ended.code == 0, ended.err
        assert "sent before" in ended.err
        assert client.xlen("s") == count
        number, last = 0, b"-"
        while entries := client.xrange("s", min=last, count=50_000):
            for _, fields in entries:
                assert fields[b"payload"].startswith(b"%d " % number)
                number += 1
            last = b"(" + entries[-1][0]
        assert number == count


def test_a_repeated_import_sends_only_the_appended_rows(
    command: Command, server: LocalServer, connect: Callable[..., Any], tmp_path: Path
) -> None:
    client, path = connect(server), tmp_path / "rows"
    write_rows(path, range(10))
    assert command("send", "s", str(path), *NAMED).code == 0
    before = client.info("commandstats").get("cmdstat_xadd", {}).get("calls")
    ended = command("send", "s", str(path), *NAMED)
    assert ended.code == 0
    assert "0 delivered, 10 sent before" in ended.err
    assert client.info("commandstats").get("cmdstat_xadd", {}).get("calls") == before
    write_rows(path, range(15))
    ended = command("send", "s", str(path), *NAMED, "-o", "json", "--progress", "always")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert (report["delivered"], report["deduplicated"], report["skipped"]) == (5, 0, 10)
    assert "5 rows  " in ended.err
    ended = command("send", "s", str(path), *NAMED, "--progress", "always")
    assert "comparing with the earlier run: 15 rows  100 %" in ended.err
    assert "0 rows" not in ended.err
    assert payloads(client) == [b"row %d" % row for row in range(15)]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda data: data.replace(b"row 3\n", b"row x\n"), "the first 10 rows are not those that were read before"),
        (lambda data: b"row new\n" + data, "the first 10 rows are not those that were read before"),
        (lambda data: data.replace(b"row 5\n", b""), "the input has 9 rows, but 10 were read before"),
        (lambda data: data[:-1] + b" more\nand one\n", "the first 10 rows are not those that were read before"),
    ],
    ids=["changed", "inserted", "removed", "the last one changed"],
)
def test_changed_input_is_refused_before_a_row_is_sent(
    any_command: Command, client: Any, tmp_path: Path, edit: Any, text: str
) -> None:
    path = tmp_path / "rows"
    write_rows(path, range(10))
    assert any_command("send", "s", str(path), *NAMED).code == 0
    path.write_bytes(edit(path.read_bytes()))
    ended = any_command("send", "s", str(path), *NAMED)
    assert ended.code == 2
    assert text in ended.err
    assert client.xlen("s") == 10


def test_changed_options_are_refused(any_command: Command, client: Any) -> None:
    data = b'{"a": 1}\n{"a": 2}\n'
    assert any_command("send", "s", "-f", "jsonl", "--payload", "a", *NAMED, stdin=data).code == 0
    ended = any_command("send", "s", "-f", "jsonl", *NAMED, stdin=data)
    assert ended.code == 2
    assert "started with other options: payload=None instead of 'a'" in ended.err
    assert client.xlen("s") == 2


def test_an_expired_marker_is_refused(any_command: Command, client: Any) -> None:
    arguments = ["send", "s", *NAMED, "--token-ttl", "1"]
    ended = any_command(*arguments, stdin=b"a\nb\n")
    assert ended.code == 0
    assert "it can be resumed" in ended.err
    wait_until(lambda: not client.exists(MARKER))
    ended = any_command(*arguments, stdin=b"a\nb\nc\n")
    assert ended.code == 2
    assert "the import could be resumed until" in ended.err
    assert client.xlen("s") == 2


def test_the_token_of_another_batch_is_refused(any_command: Command, client: Any) -> None:
    client.set(MARKER, "3 7")
    ended = any_command("send", "s", *NAMED, stdin=b"a\n")
    assert (ended.code, client.exists("s")) == (2, 0)
    assert "the name is the token of another batch of this stream" in ended.err


def test_an_import_ends_when_another_process_takes_it_over(
    any_command: Command, any_server: LocalServer, client: Any
) -> None:
    """The first one waits for input. Behind the second one it must not write any more."""
    environment = {**os.environ, "HEADRACE_URL": any_server.url}
    with subprocess.Popen(
        [HEADRACE, "send", "s", *NAMED], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as first:
        assert first.stdin is not None
        assert first.stderr is not None
        first.stdin.write(b"a\nb\n")
        first.stdin.flush()
        wait_until(lambda: client.xlen("s") == 2)
        assert any_command("send", "s", *NAMED, stdin=b"a\nb\nc\n").code == 0
        first.stdin.write(b"c\nd\n")
        first.stdin.close()
        error = first.stderr.read().decode()
        assert first.wait() == 1
    assert "another process has taken over the import" in error
    assert payloads(client) == [b"a", b"b", b"c"]


def test_a_resumed_csv_import_does_not_send_the_header(any_command: Command, client: Any, tmp_path: Path) -> None:
    """The header is in a block that is passed over: a block has 262,144 records at most."""
    path, arguments = tmp_path / "a.csv", ["send", "s", str(tmp_path / "a.csv"), "--json", *NAMED]
    rows = "".join(f"{row}\n" for row in range(300_000))
    path.write_text("n\n" + rows)
    assert any_command(*arguments).code == 0
    path.write_text("n\n" + rows + "300000\n")
    ended = any_command(*arguments)
    assert (ended.code, "1 delivered, 300,000 sent before" in ended.err) == (0, True), ended.err
    (last,) = client.xrevrange("s", count=1)
    assert last[1][b"payload"] == b'{"n":"300000"}'
    assert client.xlen("s") == 300_001


def test_the_header_before_a_bad_row_is_not_counted_as_a_row(any_command: Command, client: Any, tmp_path: Path) -> None:
    path, arguments = tmp_path / "a.csv", ["send", "s", str(tmp_path / "a.csv"), "--payload", "n", *NAMED]
    path.write_text("n,m\n1,2\n3\n")
    assert any_command(*arguments).code == 1
    assert payloads(client) == [b"1"]
    path.write_text("n,m\n1,2\n3,4\n")
    ended = any_command(*arguments)
    assert (ended.code, "1 delivered, 1 sent before" in ended.err) == (0, True), ended.err
    assert payloads(client) == [b"1", b"3"]


def test_each_csv_file_has_its_own_header(any_command: Command, client: Any, tmp_path: Path) -> None:
    """Also a file that is given twice."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"n\n{name}\n")
    paths = [str(tmp_path / f"{name}.csv") for name in "abb"]
    arguments = ["send", "s", *paths, "--payload", "n", *NAMED]
    assert any_command(*arguments).code == 0
    assert payloads(client) == [b"a", b"b", b"b"]
    assert "0 delivered, 3 sent before" in any_command(*arguments).err


def test_a_repeated_parquet_import_sends_no_row_again(any_command: Command, client: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": range(200_000)}), tmp_path / "a.parquet")
    arguments = ["send", "s", str(tmp_path / "a.parquet"), *NAMED]
    assert any_command(*arguments).code == 0
    assert "0 delivered, 200,000 sent before" in any_command(*arguments).err
    assert client.xlen("s") == 200_000
    pq.write_table(pa.table({"n": range(200_001)}), tmp_path / "a.parquet")
    ended = any_command(*arguments)
    assert ended.code == 2
    assert "other options: sha256=" in ended.err


def test_skipped_rows_are_not_sent_when_an_import_is_resumed(any_command: Command, client: Any) -> None:
    arguments = ["send", "s", "-f", "jsonl", "--payload", "a", "--on-bad-row", "skip", *NAMED]
    data = b'{"a": 1}\nnope\n{"a": 3}\n'
    assert any_command(*arguments, stdin=data).code == 1
    ended = any_command(*arguments, stdin=data + b'nope\n{"a": 5}\n')
    assert ended.code == 1
    assert "1 delivered, 3 sent before, 1 failed (BAD_ROW 1)" in ended.err
    assert payloads(client) == [b"1", b"3", b"5"]
    assert client.exists(CHECKPOINT)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_corrected_row_is_sent_with_the_rows_after_it(any_command: Command, client: Any, bad: int) -> None:
    arguments = ("send", "s", "-f", "jsonl", "--payload", "a", *NAMED)
    rows = [b'{"a": %d}' % number for number in range(3)]
    wrong = rows.copy()
    wrong[bad] = b"nope"
    for _ in range(2):
        stopped = any_command(*arguments, stdin=b"\n".join(wrong))
        assert stopped.code == 1
        assert f"stdin:{bad + 1}: BAD_ROW: the row is not valid JSON" in stopped.err
        assert "the rest was not sent; correct the row, and run the command again" in stopped.err
        assert payloads(client) == [b"%d" % number for number in range(bad)]
    resumed = any_command(*arguments, stdin=b"\n".join(rows))
    assert resumed.code == 0, resumed
    assert payloads(client) == [b"0", b"1", b"2"]


# Rows that the server refuses: its longest string is 1 MiB.

LARGE = b"x" * ((1 << 20) + 1)


@pytest.fixture
def strict(client: Any) -> Any:
    """A server that takes no string of more than 1 MiB."""
    client.config_set("proto-max-bulk-len", 1 << 20)
    return client


@refuses_long_strings
@pytest.mark.parametrize("large", [0, 2, 4])
def test_a_row_that_the_server_refused_can_be_corrected(any_command: Command, strict: Any, large: int) -> None:
    rows = [b"%d" % number for number in range(5)]
    wrong = [*rows[:large], LARGE, *rows[large + 1 :]]
    for _ in range(2):
        stopped = any_command("send", "s", *NAMED, stdin=b"\n".join(wrong))
        assert stopped.code == 1
        assert f"stdin:{large + 1}: TOO_LARGE: " in stopped.err
        assert "1 failed (TOO_LARGE 1) in" in stopped.err
        assert "the rest was not sent; correct the row, and run the command again" in stopped.err
        assert payloads(strict) == rows[:large]
    resumed = any_command("send", "s", *NAMED, stdin=b"\n".join(rows))
    assert resumed.code == 0, resumed
    assert payloads(strict) == rows


@refuses_long_strings
@pytest.mark.parametrize("form", ["lines", "jsonl"])
def test_only_rows_that_the_server_refuses_are_skipped(any_command: Command, strict: Any, form: str) -> None:
    """Each of them divides the block. With blank lines, which are no rows."""
    large = LARGE if form == "lines" else b'"%s"' % LARGE
    rows = [b"0", large, b"2", large, large, b"5", b"6", large]
    data = (b"\n\n" if form == "jsonl" else b"\n").join(rows)
    arguments = ["send", "s", "-f", form, "--on-bad-row", "skip", *NAMED, "-o", "json"]
    ended = any_command(*arguments, stdin=data)
    assert ended.code == 1
    report = json.loads(ended.out)
    assert (report["delivered"], report["failed_by_code"], report["skipped"]) == (4, {"TOO_LARGE": 4}, 0)
    assert report["unknown"] == 0
    assert [one["place"] for one in report["failures"]] == [
        f"stdin:{line * (2 if form == 'jsonl' else 1) - (form == 'jsonl')}" for line in (2, 4, 5, 8)
    ]
    ended = any_command(*arguments, stdin=data + b"\n9\n")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert (report["delivered"], report["failed"]) == (1, 0)
    assert payloads(strict) == [b"0", b"2", b"5", b"6", b"9"]


def test_bad_rows_become_dead_letters_once(any_command: Command, client: Any, tmp_path: Path) -> None:
    """Also where the command runs again behind its end, and where rows were appended."""
    data = b'{"a": 1}\nnope\n["a"]\n{"a": 4}\nlast\n'
    arguments = ["send", "s", "-f", "jsonl", "--payload", "a", "--on-bad-row", "dead-letter", *NAMED]
    ended = any_command(*arguments, stdin=data)
    assert (ended.code, "2 delivered, 3 failed (BAD_ROW 3), 3 dead letters" in ended.err) == (1, True), ended.err
    again = any_command(*arguments, stdin=data + b'none\n{"a": 7}\n')
    assert (again.code, "1 delivered, 5 sent before, 1 failed (BAD_ROW 1), 1 dead letter" in again.err) == (1, True)
    assert payloads(client) == [b"1", b"4", b"7"]
    assert [fields[b"ordinal"] for _, fields in client.xrange("s:dead")] == [b"2", b"3", b"5", b"6"]


def test_arrow_rows_that_cannot_be_sent_become_dead_letters_once(
    any_command: Command, client: Any, tmp_path: Path
) -> None:
    """What is before and behind them is in the stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [None, "1", "2", None, "4", None]}), tmp_path / "a.parquet")
    file = str(tmp_path / "a.parquet")
    arguments = ["send", "s", file, "--payload", "n", "--on-bad-row", "dead-letter", *NAMED]
    ended = any_command(*arguments)
    assert (ended.code, "3 delivered, 3 failed (NULL_PAYLOAD 3), 3 dead letters" in ended.err) == (1, True), ended.err
    again = any_command(*arguments)
    assert (again.code, "0 delivered, 6 sent before" in again.err) == (0, True), again.err
    assert payloads(client) == [b"1", b"2", b"4"]
    assert [fields[b"ordinal"] for _, fields in client.xrange("s:dead")] == [b"1", b"4", b"6"]


@refuses_long_strings
def test_refused_and_unsendable_arrow_rows_are_skipped_or_stop_the_import(
    any_command: Command, strict: Any, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [None, "1", LARGE.decode(), None, "4", None]}), tmp_path / "a.parquet")
    arguments = ["send", "s", str(tmp_path / "a.parquet"), "--payload", "n", "--exactly-once"]
    ended = any_command(*arguments, "skips", "--on-bad-row", "skip")
    assert (ended.code, "2 delivered, 4 failed (NULL_PAYLOAD 3, TOO_LARGE 1) in" in ended.err) == (1, True), ended.err
    for delivered in ("1 delivered", "0 delivered, 2 sent before"):
        ended = any_command(*arguments, "stops")
        assert (ended.code, f"{delivered}, " in ended.err) == (1, True), ended.err
    assert payloads(strict) == [b"1", b"4", b"1"]


@pytest.mark.parametrize("on_bad_row", ["stop", "skip", "dead-letter"])
def test_a_server_error_ends_the_import_without_losing_rows(any_command: Command, client: Any, on_bad_row: str) -> None:
    """It is no fault of a row: `skip` passes none over, and no row becomes a dead letter."""
    arguments = ["send", "s", "--on-bad-row", on_bad_row, *NAMED]
    client.set("s", "no stream")
    ended = any_command(*arguments, stdin=b"a\nb\nc\n")
    assert ended.code == 1
    assert "1 failed (WRONGTYPE 1)" in ended.err
    assert (
        "stopped where the server refused a row: the rest was not sent; run the command again, and it continues"
        in ended.err
    )
    assert not client.exists("s:dead")
    client.delete("s")
    assert any_command(*arguments, stdin=b"a\nb\nc\n").code == 0
    assert payloads(client) == [b"a", b"b", b"c"]


def test_the_next_run_writes_the_dead_letters_that_a_failed_run_did_not(any_command: Command, client: Any) -> None:
    """The rows of the block are in the stream by then."""
    data = b'{"a": 1}\nnope\n{"a": 3}\n'
    arguments = ["send", "s", "-f", "jsonl", "--payload", "a", "--on-bad-row", "dead-letter", *NAMED]
    client.acl_setuser("u", enabled=True, passwords=["+p"], categories=["+@all"], keys=["s", "{s}*"])
    user = ["--username", "u", "--password-env", "P"]  # who may not write letters
    ended = any_command(*arguments, *user, stdin=data, environment={"P": "p"})
    assert ended.code != 0
    assert "NOPERM" in ended.err
    assert payloads(client) == [b"1", b"3"]
    assert not client.exists("s:dead")
    again = any_command(*arguments, stdin=data)
    assert again.code == 1
    assert "0 delivered, 2 sent before, 1 failed (BAD_ROW 1), 1 dead letter" in again.err
    assert payloads(client) == [b"1", b"3"]
    assert [fields[b"payload"] for _, fields in client.xrange("s:dead")] == [b"nope"]
