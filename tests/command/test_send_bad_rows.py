"""Rows that cannot be read, or that the server refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command.conftest import Command, CommandOn
from headrace.testing import LocalServer
from headrace_command.exit_code import ExitCode
from support.marks import refuses_long_strings, thorough

Connect = Callable[..., Any]

#: Rows 3 and 5 are bad before they are sent; row 4 is refused by the server, whose longest string is 1 MiB.
ROWS = [b'{"a": 1}', b'{"a": 2}', b"nope", b'{"a": "%s"}' % (b"x" * ((1 << 20) + 1)), b'["a"]', b'{"a": 6}']
DATA = b"\n".join(ROWS)
ARGUMENTS = ["-f", "jsonl", "--payload", "a"]


@pytest.fixture
def strict(client: Any) -> Any:
    """A server that takes no string of more than 1 MiB."""
    client.config_set("proto-max-bulk-len", 1 << 20)
    return client


def payloads(client: Any) -> list[bytes]:
    return [fields[b"payload"] for _, fields in client.xrange("s")]


def test_send_stops_at_the_first_bad_row(any_command: Command, client: Any) -> None:
    ended = any_command("send", "s", *ARGUMENTS, stdin=DATA)
    assert ended.code == 1
    assert "headrace: stdin:3: BAD_ROW: the row is not valid JSON: Expecting value at character 0\n" in ended.err
    assert "2 delivered, 1 failed (BAD_ROW 1)" in ended.err
    assert (
        "stopped at the first bad row: the rest was not sent; with --on-bad-row skip or dead-letter it is" in ended.err
    )
    assert payloads(client) == [b"1", b"2"]


@refuses_long_strings
def test_bad_rows_are_skipped(any_command: Command, strict: Any) -> None:
    ended = any_command("send", "s", *ARGUMENTS, "--on-bad-row", "skip", "-o", "json", stdin=DATA)
    assert ended.code == 1
    report = json.loads(ended.out)
    assert (report["delivered"], report["failed_by_code"]) == (3, {"BAD_ROW": 2, "TOO_LARGE": 1})
    assert [(one["place"], one["code"]) for one in report["failures"]] == [
        ("stdin:3", "BAD_ROW"),
        ("stdin:5", "BAD_ROW"),
        ("stdin:4", "TOO_LARGE"),
    ]
    assert payloads(strict) == [b"1", b"2", b"6"]


def test_bad_rows_become_dead_letters(any_command: Command, client: Any) -> None:
    ended = any_command("send", "s", *ARGUMENTS, "--on-bad-row", "dead-letter", "--max-row-bytes", "1m", stdin=DATA)
    assert ended.code == 1
    assert "3 dead letters" in ended.err
    assert payloads(client) == [b"1", b"2", b"6"]
    letters = [dict(fields) for _, fields in client.xrange("s:dead")]
    assert [letter[b"ordinal"] for letter in letters] == [b"3", b"4", b"5"]
    assert letters[0][b"payload"] == b"nope"
    for letter in letters:
        assert (letter[b"stream_key"], letter[b"code"], letter[b"written"]) == (b"s", b"BAD_ROW", b"no")
        assert (letter[b"kind"], letter[b"source"]) == (b"permanent", b"stdin")


def test_dead_letters_of_send_are_listed_shown_and_replayed(any_command: Command, client: Any) -> None:
    sent = any_command("send", "s", *ARGUMENTS, "--on-bad-row", "dead-letter", stdin=b'{"a": 1}\nnope\n')
    assert "1 failed (BAD_ROW 1), 1 dead letter in" in sent.err
    assert "the dead letters are in s:dead: headrace dead-letters list shows them" in sent.err
    listed = any_command("dead-letters", "list", "s:dead", "-o", "jsonl")
    assert "1 letter: 1 of headrace send" in listed.err
    letter = json.loads(listed.out)
    assert (letter["origin"], letter["stream"], letter["place"]) == ("send", "s", "stdin:2")
    shown = any_command("dead-letters", "show", "s:dead", letter["id"])
    assert b"written by     headrace send\n" in shown.out
    assert b"row            stdin:2\n" in shown.out
    assert any_command("dead-letters", "replay", "s:dead", "--all", "--allow-stream", "s", "--yes").code == 0
    assert payloads(client) == [b"1", b"nope"]
    assert client.xlen("s:dead") == 0


def test_dead_letters_of_arrow_rows_are_replayed(any_command: Command, client: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "rows.parquet")
    client.set("s", "no stream")
    file = str(tmp_path / "rows.parquet")
    assert any_command("send", "s", file, "--on-bad-row", "dead-letter").code == 1
    ended = any_command("dead-letters", "replay", "s:dead", "--all", "--to", "t", "--fields", "id", "--yes")
    assert ended.code == 0, ended
    assert [fields[b"id"] for _, fields in client.xrange("t")] == [b"1", b"2"]


def test_rows_that_the_server_refuses_become_dead_letters(any_command: Command, client: Any) -> None:
    client.set("s", "no stream")
    ended = any_command("send", "s", "--on-bad-row", "dead-letter", "--dead-letters", "other", stdin=b"a\nb\n")
    assert ended.code == 1
    assert [fields[b"payload"] for _, fields in client.xrange("other")] == [b"a", b"b"]
    assert {fields[b"code"] for _, fields in client.xrange("other")} == {b"WRONGTYPE"}


@refuses_long_strings
@pytest.mark.parametrize("named", [[], ["--exactly-once", "import"]], ids=["plain", "named"])
def test_the_dead_letter_of_an_oversized_row_has_no_payload(
    any_command: Command, strict: Any, named: list[str]
) -> None:
    """The server takes such a letter no more than the row. Other letters are written as a whole."""
    ended = any_command("send", "s", *ARGUMENTS, "--on-bad-row", "dead-letter", *named, stdin=DATA)
    assert ended.code == 1
    assert "3 delivered, 3 failed (BAD_ROW 2, TOO_LARGE 1), 3 dead letters" in ended.err
    assert payloads(strict) == [b"1", b"2", b"6"]
    letters = {fields[b"ordinal"]: fields for _, fields in strict.xrange("s:dead")}
    assert {ordinal: fields.get(b"payload") for ordinal, fields in letters.items()} == {
        b"3": b"nope",
        b"4": None,
        b"5": b'["a"]',
    }
    assert letters[b"4"][b"message"].endswith(b"; the letter has no row, which is too large for the server")
    replayed = any_command("dead-letters", "replay", "s:dead", "--all", "--to", "t", "--yes")
    assert b"1 not replayed: the letter has no field of its entry: its payload was null, or too large" in replayed.out
    assert [fields[b"payload"] for _, fields in strict.xrange("t")] == [b"nope", b'["a"]']


@refuses_long_strings
@pytest.mark.parametrize("mode", [(), ("--exactly-once", "import"), ("--retry",)], ids=["plain", "named", "retry"])
@pytest.mark.parametrize("larges", [{2}, *thorough({2, 3, 5, 40})], ids=["one", "several"])
def test_rows_after_an_oversized_row_are_delivered_or_become_dead_letters(
    command_on: CommandOn, tcp_server: LocalServer, connect: Connect, mode: tuple[str, ...], larges: set[int]
) -> None:
    """The server closes the connection over it. By TCP other rows have left, and other letters behind its own."""
    client = connect(tcp_server)
    client.config_set("proto-max-bulk-len", 1 << 20)
    rows = [b"x" * ((1 << 20) + 1) if number in larges else b"%d" % number for number in range(1, 51)]
    for attempt in range(5):
        client.delete("s", "s:dead")
        named = (mode[0], f"import-{attempt}") if len(mode) == 2 else mode
        ended = command_on(tcp_server)("send", "s", "--on-bad-row", "dead-letter", *named, stdin=b"\n".join(rows))
        assert ended.code in (ExitCode.FAILED, ExitCode.UNKNOWN), ended
        letters = {int(fields[b"ordinal"]): fields for _, fields in client.xrange("s:dead")}
        assert {row for row, fields in letters.items() if b"payload" not in fields} == larges, ended.err
        if mode:
            assert (set(letters), ended.code) == (larges, ExitCode.FAILED), ended.err
        unknown = {row for row, fields in letters.items() if fields[b"written"] == b"unknown"}
        written = {int(payload) for payload in payloads(client)}
        assert set(range(1, 51)) - set(letters) <= written <= set(range(1, 51)) - (set(letters) - unknown)


def test_bad_csv_records_are_skipped_and_reported_by_line(any_command: Command, client: Any) -> None:
    rows = [b"%d,%d" % (number, number) for number in range(1_000)]
    rows[500] = b"500"
    rows[700] = b"700,x,y"
    rows[900] = b"900,no number"
    data = b"a,b\n" + b"\n".join(rows)
    ended = any_command(
        "send", "s", "-f", "csv", "--types", "b=int64", "--payload", "a", "--on-bad-row", "skip", stdin=data
    )
    assert ended.code == 1
    assert "997 delivered, 3 failed (BAD_ROW 3)" in ended.err
    for line, text in ((502, "1 values instead of 2"), (702, "3 values instead of 2"), (902, "no number")):
        (found,) = [one for one in ended.err.splitlines() if f"stdin:{line}:" in one]
        assert text in found
    assert payloads(client) == [b"%d" % number for number in range(1_000) if number not in (500, 700, 900)]


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("named", [[], ["--exactly-once", "import"]], ids=["plain", "named"])
def test_a_value_of_another_type_is_named_by_line_column_and_value(
    any_command: Command, client: Any, form: str, named: list[str]
) -> None:
    rows = [b"%d,%d" % (number, number) for number in range(3_000)]
    rows[2_000] = b'2000,"B ""x"": ern"'
    data = b"a,the city\n" + b"\n".join(rows)
    data = data.replace(b",", b"," if form == "csv" else b"\t")
    arguments = ["send", "s", "-f", form, "--types", "the city=int64", "--payload", "a", *named]
    ended = any_command(*arguments, stdin=data)
    assert ended.code == 1
    assert "headrace: stdin:2002: BAD_ROW: column 'the city' is not int64: 'B \"x\": ern'\n" in ended.err
    assert payloads(client) == [b"%d" % number for number in range(2_000)]


def test_text_that_is_not_utf8_is_named_by_its_column(any_command: Command, client: Any) -> None:
    arguments = ["send", "s", "-f", "csv", "--json", "--on-bad-row", "skip"]
    ended = any_command(*arguments, stdin=b"a,b\n1,caf\xe9\n2,caf\xc3\xa9\n3,%s\xff\n" % (b"x" * 1_000))
    assert "stdin:2: BAD_ROW: column 'b' is not UTF-8: 'caf\\\\xe9'\n" in ended.err
    assert "stdin:4: BAD_ROW: column 'b' is not UTF-8: 'xxx" in ended.err
    assert len(ended.err) < 400
    assert payloads(client) == ['{"a":"2","b":"café"}'.encode()]


@pytest.mark.parametrize("mode", ["skip", "dead-letter"])
def test_a_type_that_consecutive_rows_do_not_have_is_said_once(any_command: Command, client: Any, mode: str) -> None:
    rows = [b"%d,Bern %d" % (number, number) for number in range(1_000)]
    arguments = ["send", "s", "-f", "csv", "--types", "b=int64", "--payload", "a", "--on-bad-row", mode]
    ended = any_command(*arguments, stdin=b"a,b\n" + b"\n".join(rows) + b"\n7,7\n")
    first, more, *_ = ended.err.split("\n")
    assert first == "headrace: stdin:2: BAD_ROW: column 'b' is not int64: 'Bern 0'"
    assert more == "headrace: … and 999 more"
    assert "1 delivered, 1,000 failed (BAD_ROW 1,000)" in ended.err
    assert (payloads(client), client.xlen("s:dead")) == ([b"7"], 1_000 if mode == "dead-letter" else 0)
    ended = any_command(*arguments, stdin=b"a,b\n1,x\n2,y\n3,3\n4,x\n")
    assert [line.split(":")[2] for line in ended.err.splitlines() if "is not int64" in line] == ["2", "5"]


def test_csv_records_with_quotes_within_values_are_read_apart(any_command: Command, client: Any) -> None:
    """With other records, the second value of such a record would continue on the next line."""
    data = b'a,b\n1,2\n5","x\n3,4\n9\n5,"6\n'
    ended = any_command("send", "s", "-f", "csv", "--payload", "a", "--on-bad-row", "skip", stdin=data)
    assert "stdin:5: BAD_ROW: 1 values instead of 2\n" in ended.err
    assert payloads(client) == [b"1", b'5"', b"3"]


def test_a_csv_record_with_too_many_values_may_hold_any_byte(any_command: Command, client: Any) -> None:
    data = b"a,b\n1,2\n3,\xff,\xfe\n\xff\n4,\xff\n"
    ended = any_command("send", "s", "-f", "csv", "--payload", "a", "--on-bad-row", "skip", stdin=data)
    first, second, total, _ = ended.err.split("\n")
    assert first == "headrace: stdin:3: BAD_ROW: 3 values instead of 2"
    assert second == "headrace: stdin:4: BAD_ROW: 1 values instead of 2"
    assert total.startswith("2 delivered, 2 failed")
    assert payloads(client) == [b"1", b"4"]


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_a_record_with_an_open_quote_is_bad(any_command: Command, client: Any, form: str) -> None:
    """The file was cut within a value, or a quote within it has no pair: what follows is not a value."""
    data = b'a,b\n1,"x\ny"\n2,"x\n3,x\n4,x\n'.replace(b",", b"," if form == "csv" else b"\t")
    arguments = ["send", "s", "-f", form, "--payload", "a", "--on-bad-row", "dead-letter"]
    ended = any_command(*arguments, stdin=data)
    assert ended.code == 1
    assert "stdin:3: BAD_ROW: a quote that opens in this row is not closed before the end of the file" in ended.err
    assert "1 delivered, 1 failed (BAD_ROW 1)" in ended.err
    assert payloads(client) == [b"1"]
    ((_, letter),) = client.xrange("s:dead")
    assert letter[b"payload"] == data.split(b"\n", 3)[3].rstrip(b"\n")
    header = any_command(*arguments, stdin=b'"a,b\n1,2\n')
    assert (header.code, client.xlen("s")) == (2, 1)
    assert "stdin:1: the header cannot be read: unexpected end of data" in header.err


def test_a_carriage_return_alone_ends_no_csv_record(any_command: Command, client: Any) -> None:
    arguments = ["send", "s", "-f", "csv", "--payload", "a"]
    ended = any_command(*arguments, stdin=b"a,b\r1,2\r3,4\r")
    assert (ended.code, client.exists("s")) == (2, 0)
    assert "stdin:1: the header ends with a carriage return alone: lines end with LF or CRLF" in ended.err
    for header, line in (([], 2), (["--header", "a,b"], 1)):
        data = b"a,b\n" * (line - 1) + b"1,2\r3,4\r"
        ended = any_command(*arguments, *header, stdin=data)
        assert (ended.code, client.exists("s")) == (1, 0)
        assert f"stdin:{line}: BAD_ROW: the row has a carriage return outside of quotes" in ended.err
    ended = any_command(*arguments, stdin=b'a,"b\rc"\r\n1,"x\ry"\r\n2,z\r\n3,z\r')
    assert (ended.code, payloads(client)) == (0, [b"1", b"2", b"3"])


def test_half_a_surrogate_pair_is_a_bad_row(any_command: Command, client: Any) -> None:
    """UTF-8 cannot hold it. A row that is sent as it is keeps its escape."""
    rows = [rb'{"a":"\ud83d\ude00"}', rb'{"a":"\ud800"}', rb'{"a":["\udc00"]}', rb'{"a":1,"\udfff":1}']
    for arguments, bad in (
        (["--payload", "a"], (2, 3)),
        (["--fields", "*"], (2, 3, 4)),
        (["--json", "a"], (2, 3)),
        (["--shard-key", "a", "--shards", "2"], (2, 3)),
    ):
        client.flushall()
        command = ["send", "s", "-f", "jsonl", *arguments, "--on-bad-row", "skip", "-o", "json"]
        ended = any_command(*command, stdin=b"\n".join(rows))
        report = json.loads(ended.out)
        assert (ended.code, report["delivered"]) == (1, 4 - len(bad)), ended
        assert [one["place"] for one in report["failures"]] == [f"stdin:{line}" for line in bad]
        escape = report["failures"][0]["message"]
        assert escape == "the row has half a surrogate pair, which is no character: \\ud800"
    client.flushall()
    assert any_command("send", "s", "-f", "jsonl", stdin=b"\n".join(rows)).code == 0
    assert payloads(client) == rows


def test_an_overlong_line_is_one_bad_row(any_command: Command, client: Any) -> None:
    data = b"a\n" + b"x" * 5_000_000 + b"\nb\n"
    ended = any_command("send", "s", "--max-row-bytes", "1k", "--on-bad-row", "skip", stdin=data)
    assert ended.code == 1
    assert "stdin:2: BAD_ROW: the row has more than 1,024 bytes; --max-row-bytes allows more" in ended.err
    assert payloads(client) == [b"a", b"b"]


def test_send_fails_on_an_unreachable_server_even_if_bad_rows_are_skipped(
    any_command: Command, closed_port: int
) -> None:
    url = f"redis://127.0.0.1:{closed_port}"
    ended = any_command("send", "s", "-u", url, "--on-bad-row", "skip", stdin=b"a\n" * 1_000_000)
    assert ended.code == 3
    assert "CONNECT: cannot connect to 127.0.0.1" in ended.err


def test_a_missing_acl_right_and_a_wrong_password_are_reported(any_command: Command, client: Any) -> None:
    client.acl_setuser("u", enabled=True, passwords=["+p"], categories=["-@all"], commands=["+ping"], keys=["*"])
    environment = {"P": "p"}
    options = ["--username", "u", "--password-env", "P"]
    ended = any_command("send", "s", *options, stdin=b"a\n", environment=environment)
    assert (ended.code, "NOPERM" in ended.err) == (3, True), ended
    ended = any_command("send", "s", *options, stdin=b"a\n", environment={"P": "wrong"})
    assert (ended.code, "WRONGPASS" in ended.err) == (3, True), ended


def test_rows_before_the_damage_in_a_file_are_sent(any_command: Command, client: Any, tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % number for number in range(1_000_000))
    (tmp_path / "a.gz").write_bytes(gzip.compress(data)[:-1_000_000])
    ended = any_command("send", "s", str(tmp_path / "a.gz"))
    assert ended.code == 1
    assert "a.gz cannot be read further: " in ended.err
    count = client.xlen("s")
    assert f"{count:,} delivered in" in ended.err
    assert 0 < count < 1_000_000
    (tmp_path / "b.gz").write_bytes(b"not compressed")
    ended = any_command("send", "t", str(tmp_path / "b.gz"))
    assert (ended.code, client.exists("t")) == (2, 0)


def test_send_stops_at_a_file_with_different_columns(any_command: Command, client: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n" + b"1,2\n" * 1_000_000)
    (tmp_path / "b.csv").write_bytes(b"a,c\n1,2\n")
    ended = any_command("send", "s", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert ended.code == 1
    assert "has different columns from" in ended.err
    assert "1,000,000 delivered" in ended.err
    assert client.xlen("s") == 1_000_000


def test_a_cause_that_is_not_a_row_is_shown_once(any_command: Command, client: Any) -> None:
    client.set("s", "no stream")
    ended = any_command("send", "s", stdin=b"x\n" * 1_000)
    first, more, stopped, total, end = ended.err.split("\n")
    assert first.startswith("headrace: WRONGTYPE: ")
    assert first.endswith("; the first row without an entry is stdin:1")
    assert more == "headrace: … and 999 more"
    assert stopped == "stopped where the server refused a row: the rest was not sent"
    assert (total.partition(" in ")[0], end) == ("0 delivered, 1,000 failed (WRONGTYPE 1,000)", "")


def test_a_server_that_is_away_is_named_once(any_command: Command, closed_port: int) -> None:
    ended = any_command("send", "s", "-u", f"redis://127.0.0.1:{closed_port}", stdin=b"x\n" * 1_000)
    assert ended.code == 3
    assert ended.err.count("connection refused") == 1
    assert "headrace: … and 999 more\n" in ended.err
    assert "0 delivered, 1,000 failed (CONNECT 1,000)" in ended.err


def test_each_bad_row_is_shown(any_command: Command, client: Any) -> None:
    ended = any_command("send", "s", "--format", "jsonl", "--json", "--on-bad-row", "skip", stdin=b"nope\n" * 12)
    assert [f"stdin:{number}: BAD_ROW: " in ended.err for number in range(1, 13)] == [True] * 10 + [False] * 2
    assert "headrace: … and 2 more\n" in ended.err
