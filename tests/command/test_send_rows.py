"""What `headrace send` makes of its input."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command.conftest import HEADRACE, Command
from headrace.testing import LocalServer

#: What lines may hold.
LINES = [b"plain", b"", b"caf\xc3\xa9", b"\xff\xfe", b"a\0b", b"  spaces  ", b'"', b"\x1b[31m"]


def payloads(client: Any, stream: str = "s") -> list[bytes]:
    return [fields[b"payload"] for _, fields in client.xrange(stream)]


def rows(client: Any, stream: str = "s") -> list[dict[bytes, bytes]]:
    found = [dict(fields) for _, fields in client.xrange(stream)]
    for fields in found:
        assert fields.pop(b"ts").endswith(b"Z")
    return found


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("last", [b"", b"unterminated"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
def test_lines_are_sent_byte_for_byte(any_command: Command, client: Any, end: bytes, last: bytes, mark: bytes) -> None:
    ended = any_command("send", "s", stdin=mark + end.join([*LINES, last]))
    assert (ended.code, ended.out) == (0, b"")
    assert payloads(client) == LINES + ([last] if last else [])


#: Runs a command and prints the most kilobytes that it took. In a process of its own: at first, a child has the size
#: of its parent.
PEAK = """
import resource, subprocess, sys

subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_rows_without_an_outcome_take_a_bounded_amount_of_memory(any_server: LocalServer, tmp_path: Path) -> None:
    """Many times the 16 MiB after which the outcomes are waited for."""
    environment = {**os.environ, "HEADRACE_URL": any_server.url}

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.txt"
        with path.open("wb") as file:
            file.writelines([b"x" * 99_999 + b"\n"] * rows)
        command = [sys.executable, "-c", PEAK, HEADRACE, "send", "s", str(path), "--maxlen", "1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout) * 1024

    growth = peak(2_000) - peak(10)
    assert growth < 64 << 20, f"{growth:,}"


def test_empty_input_creates_no_stream(any_command: Command, client: Any) -> None:
    assert any_command("send", "s").code == 0
    assert client.exists("s") == 0


def test_json_lines_are_sent_unchanged(any_command: Command, client: Any) -> None:
    lines = [b'{"a": 1.10}', b'{ "b":[1 ,2] }', b"not looked at"]
    assert any_command("send", "s", "-f", "jsonl", stdin=b"\n\n".join(lines) + b"\n \n").code == 0
    assert payloads(client) == lines


def test_members_of_json_objects_are_sent_as_payloads_and_fields(any_command: Command, client: Any) -> None:
    data = b'{"n": 1.10, "big": 12345678901234567890123, "t": "caf\xc3\xa9", "no": null, "deep": {"a": [true]}}\n'
    assert any_command("send", "s", "-f", "jsonl", "--payload", "n", stdin=data).code == 0
    assert any_command("send", "s", "-f", "jsonl", "--payload", "t", stdin=data).code == 0
    assert any_command("send", "s", "-f", "jsonl", "--payload", "deep", stdin=data).code == 0
    assert any_command("send", "s", "-f", "jsonl", "--json", "t,n,absent", stdin=b'{"n": 1, "t": "x"}').code == 0
    assert payloads(client) == [b"1.10", "café".encode(), b'{"a":[true]}', b'{"t":"x","n":1}']
    assert any_command("send", "f", "-f", "jsonl", "--fields", "*", stdin=data).code == 0
    expected = {
        b"n": b"1.10",
        b"big": b"12345678901234567890123",
        b"t": "café".encode(),
        b"deep": b'{"a":[true]}',
    }
    assert [dict(fields) for _, fields in client.xrange("f")] == [expected]


CSV = b'id,name\n007,"a ""quoted"", b"\n,"x\r\ny"\n8,caf\xc3\xa9\n'
CSV_ROWS = [
    {b"id": b"007", b"name": b'a "quoted", b'},
    {b"id": b"", b"name": b"x\r\ny"},
    {b"id": b"8", b"name": "café".encode()},
]


def test_csv_values_stay_text(any_command: Command, client: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(CSV)
    assert any_command("send", "s", str(path)).code == 0
    assert rows(client) == CSV_ROWS
    assert any_command("send", "t", "-f", "tsv", stdin=b"id\tname\r\n1\ta,b\r\n\r\n2\t\r\n").code == 0
    assert rows(client, "t") == [{b"id": b"1", b"name": b"a,b"}, {b"id": b"2", b"name": b""}]


def test_csv_without_a_header_gets_names_and_types_from_the_options(any_command: Command, client: Any) -> None:
    arguments = ["send", "s", "-f", "csv", "--header", "id,price", "--types", "id=int64,price=double", "--json"]
    assert any_command(*arguments, stdin=b"007,1.50\n8,2").code == 0
    assert payloads(client) == [b'{"id":7,"price":1.5}', b'{"id":8,"price":2.0}']


def test_non_utf8_csv_keeps_its_bytes(any_command: Command, client: Any) -> None:
    assert any_command("send", "s", "-f", "csv", "--payload", "a", stdin=b"a,b\n\xff,1\n").code == 0
    assert payloads(client) == [b"\xff"]


def test_each_csv_file_has_its_own_header(any_command: Command, client: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_bytes(CSV)
    assert any_command("send", "s", str(tmp_path / "a.csv"), str(tmp_path / "b.csv")).code == 0
    assert rows(client) == CSV_ROWS * 2


TABLE = pa.table({"id": [1, 2, None], "name": ["a", None, "c"], "price": [1.5, 2.0, 3.25]})
TABLE_ROWS = [
    {b"id": b"1", b"name": b"a", b"price": b"1.5"},
    {b"id": b"2", b"price": b"2.0"},
    {b"name": b"c", b"price": b"3.25"},
]


def test_parquet_and_arrow_files_are_sent(any_command: Command, client: Any, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", TABLE.schema) as file:
        file.write_table(TABLE)
    with pa.ipc.new_stream(tmp_path / "b.arrow", TABLE.schema) as stream:
        stream.write_table(TABLE)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        assert any_command("send", name, str(tmp_path / name)).code == 0
        assert rows(client, name) == TABLE_ROWS
    ended = any_command(
        "send",
        "s",
        "-f",
        "arrow",
        "--payload",
        "name",
        "--on-bad-row",
        "skip",
        stdin=(tmp_path / "b.arrow").read_bytes(),
    )
    assert ended.code == 1
    assert "stdin:2: NULL_PAYLOAD" in ended.err
    assert payloads(client) == [b"a", b"c"]


def test_parquet_from_a_pipe_is_refused(any_command: Command) -> None:
    ended = any_command("send", "s", "-f", "parquet", stdin=b"PAR1")
    assert (ended.code, ended.err) == (2, "headrace: parquet is read from its end: give a file instead of stdin\n")


def test_compressed_files_are_decompressed(any_command: Command, client: Any, tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % number for number in range(1_000))
    makers: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    for ending, compress in makers.items():
        (tmp_path / f"a.jsonl.{ending}").write_bytes(compress(data))
    (tmp_path / "a.jsonl.zst").write_bytes(pa.compress(data, "zstd", asbytes=True))
    for ending in (*makers, "zst"):
        assert any_command("send", ending, str(tmp_path / f"a.jsonl.{ending}")).code == 0
        assert payloads(client, ending) == data.split()


def test_rows_are_sharded_by_a_member(any_command: Command, client: Any) -> None:
    data = b"".join(b'{"k": "%d", "n": %d}\n' % (number % 5, number) for number in range(100))
    arguments = ["-f", "jsonl", "--shards", "3", "--shard-key", "k"]
    assert any_command("send", "s", *arguments, stdin=data).code == 0
    assert any_command("send", "f", *arguments, "--fields", "n", stdin=data).code == 0
    counts = [client.xlen(f"s:{shard}") for shard in range(3)]
    assert sum(counts) == 100
    assert all(count % 20 == 0 for count in counts)
    assert counts == [client.xlen(f"f:{shard}") for shard in range(3)]


def test_trimming_and_field_names_follow_the_options(any_command: Command, client: Any) -> None:
    arguments = ["--maxlen", "3", "--no-maxlen-approximate", "--payload-field", "p", "--ts-field", ""]
    assert any_command("send", "s", *arguments, stdin=b"1\n2\n3\n4\n5\n").code == 0
    assert [dict(fields) for _, fields in client.xrange("s")] == [{b"p": b"3"}, {b"p": b"4"}, {b"p": b"5"}]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--payload", "a"], "--payload needs rows with names: --format jsonl, csv, tsv, parquet, arrow"),
        (["-f", "jsonl", "--types", "a=int64"], "--types is for csv and tsv; the format is jsonl"),
        (["-f", "csv", "--types", "a"], "--types must be NAME=TYPE, separated by commas, got 'a'"),
        (["-f", "csv", "--types", "a=nope", "--header", "a"], "pyarrow reads no such type from CSV"),
        (["-f", "csv", "--types", "a=float16", "--header", "a"], "--types a=float16: pyarrow reads no such type"),
        (["-f", "csv", "--types", "b=int64"], "--types names a column that does not exist: b"),
        (["-f", "csv", "--payload", "b"], 'no column "b" (columns: a)'),
        (["--max-row-bytes", "0"], "--max-row-bytes must be from 1 to 512m, got '0'"),
        (["--shard-key", "a", "-f", "jsonl"], "--shard-key needs --shards"),
        (["--exactly-once", "a", "--shards", "2"], "--exactly-once is for one stream: not with --shards"),
        (["--dead-letters", "d"], "--dead-letters needs --on-bad-row dead-letter"),
        (["--window-max-entries", "x"], "--window-max-entries must be an integer of at least 1, got 'x'"),
        (["/nowhere/a.csv"], "there is no file '/nowhere/a.csv'"),
        (["-", "-"], "stdin ('-') is given twice"),
        (["--tls-key", "-----BEGIN X"], "--tls-key takes the path of a file"),
    ],
)
def test_invalid_arguments_are_refused_before_a_row_is_sent(
    any_command: Command, client: Any, arguments: list[str], text: str
) -> None:
    ended = any_command("send", "s", *arguments, stdin=b"a\n1\n")
    assert ended.code == 2, ended
    assert text in ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert client.exists("s") == 0
