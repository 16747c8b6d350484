"""`headrace send` refuses input that is not what its name says, before anything is sent."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command.conftest import Command

TABLE = pa.table({"id": [1, 2]})
ROWS = [{"id": 1}, {"id": 2}]


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(TABLE, out)
    return out.getvalue()


def arrow(opens: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    with opens(out, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return out.getvalue()


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as writer:
        writer.writestr("sheet.xml", "<a/>")
    return out.getvalue()


CSV = b"id\n1\n2\n"
ARRAY = json.dumps(ROWS).encode()
PRETTY = json.dumps(ROWS, indent=2).encode()
REFUSED = {
    "a Parquet file": ("x.csv", parquet(), "x.csv is a Parquet file: give --format parquet"),
    "a Parquet file without an extension": ("x", parquet(), "x is a Parquet file: give --format parquet"),
    "an Arrow file": ("x.jsonl", arrow(pa.ipc.new_file), "x.jsonl is an Arrow file: give --format arrow"),
    "an Arrow stream": ("x.txt", arrow(pa.ipc.new_stream), "x.txt is an Arrow stream: give --format arrow"),
    "a spreadsheet": ("x.csv", archive(), "x.csv is a ZIP archive, as .xlsx is: save it as CSV"),
    "gzip": ("x.csv", gzip.compress(CSV), "x.csv is compressed with gzip: its name must end with .gz"),
    "gzip in gzip": ("x.csv.gz", gzip.compress(gzip.compress(CSV)), "x.csv.gz is compressed with gzip"),
    "UTF-16": ("x.csv", "id\n1\n".encode("utf-16"), "x.csv is text in UTF-16: save it as UTF-8"),
    "NUL bytes": ("x.csv", b"id\n\0\n", "x.csv has NUL bytes: it is not csv, whatever its name says"),
    "a JSON array": (
        "x.json",
        ARRAY,
        "x.json looks like a JSON array, and each of its lines would be a row: jq -c '.[]'",
    ),
    "a JSON array in lines": ("x.json", PRETTY, "looks like a JSON array"),
    "a JSON array of one line each": ("x.jsonl", ARRAY.replace(b", {", b",\n{"), "looks like a JSON array"),
    "a JSON array as text": ("x.txt", PRETTY, "looks like a JSON array"),
    "a JSON value in lines": ("x.json", PRETTY[3:], "x.json looks like JSON, with a value on several lines"),
    "an unknown extension": (
        "x.dat",
        CSV,
        "the extension .dat of x.dat is that of no format: give --format, one of lines",
    ),
    "a spreadsheet by its name": ("x.xlsx", CSV, "the extension .xlsx of x.xlsx is that of no format"),
}


Write = Callable[[str, bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file, and returns its path."""

    def write(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_something_else_is_refused(any_command: Command, client: Any, write: Write, what: str) -> None:
    name, content, text = REFUSED[what]
    path = write(name, content)
    ended = any_command("send", "s", path)
    assert (ended.code, ended.out) == (2, b"")
    assert text in ended.err.replace(path, name)
    assert not client.exists("s")


@pytest.mark.parametrize("what", ["a Parquet file", "an Arrow stream", "gzip", "a JSON array in lines", "UTF-16"])
def test_stdin_that_is_something_else_is_refused(any_command: Command, client: Any, what: str) -> None:
    _, content, text = REFUSED[what]
    ended = any_command("send", "s", stdin=content)
    assert ended.code == 2
    assert "stdin is " in ended.err if "is " in text else "stdin looks like a JSON array" in ended.err
    assert not client.exists("s")


SENT = {
    "a Parquet file": ("x.pq", parquet(), 2),
    "a Parquet file, .parq": ("x.parq", parquet(), 2),
    "an Arrow file": ("x.feather", arrow(pa.ipc.new_file), 2),
    "JSON lines, .ndjson": ("x.ndjson", b'{"id": 1}\n{"id": 2}\n', 2),
    "JSON lines, .json": ("x.json", b'{"id": 1}\n{"id": 2}\n', 2),
    "a JSON value": ("x.json", b'{"id": 1}', 1),
    "arrays of one line each": ("x.jsonl", b"[1]\n[2]\n", 2),
    "a log": ("x.log", b"[2026-11-29] a\n[2026-11-29] b\n", 2),
    "a log of brackets": ("x", b"[info] {x}\n[{thread}] y\n", 2),
    "a long line of JSON": ("x.jsonl", json.dumps({"text": "ä" * 5_000}).encode() + b"\n", 1),
    "text that begins like another file": ("x.txt", b"PAR1, BZh and PK\n", 1),
    "JSON lines of which the first is wrong": ("x.jsonl", b'{"id": 01, "name": "a"}\n{"id": 2}\n', 2),
    "brackets without an end": ("x.jsonl", b"[" * 3_000 + b"\n{}\n", 2),
    "an empty file": ("x.json", b"", 0),
}


@pytest.mark.parametrize("what", SENT)
def test_what_is_as_its_name_says_is_sent(any_command: Command, client: Any, write: Write, what: str) -> None:
    name, content, count = SENT[what]
    ended = any_command("send", "s", write(name, content))
    assert ended.code == 0, ended.err
    assert client.xlen("s") == count


def test_lines_that_are_asked_for_may_be_anything(any_command: Command, client: Any, write: Write) -> None:
    names = [write(f"{number}.json", content) for number, (_, content, _) in enumerate(REFUSED.values())]
    ended = any_command("send", "s", *names, "--format", "lines")
    assert ended.code == 0, ended.err
    lines = [line for _, content, _ in REFUSED.values() for line in content.splitlines() if content]
    assert client.xlen("s") >= len(REFUSED)
    assert len(lines) >= len(REFUSED)


def test_files_of_several_formats_are_refused(any_command: Command, client: Any, write: Write) -> None:
    first, second = write("a.csv", CSV), write("b.jsonl", b'{"id": 1}\n')
    ended = any_command("send", "s", first, second)
    assert ended.code == 2
    assert f"{first} has the format csv, and {second} jsonl: give --format, or send them one by one" in ended.err
    assert not client.exists("s")
