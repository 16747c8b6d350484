"""Which values of CSV are of which type: pyarrow decides."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv

from headrace_command.send.csv_rows import CsvRows
from headrace_command.send.rows import Block, Layout
from support.marks import thorough

NUMBERS = [
    "1",
    " 1 ",
    "\t1",
    "007",
    "-1",
    "-0",
    "+1",
    "1_0",
    "1.0",
    "1e3",
    ".5",
    ".",
    "0x1F",
    "0XfF",
    "-0x1",
    "0x",
    "x",
]
LARGE = [
    *("127", "128", "-128", "-129", "255", "256", "32767", "32768", "65535", "65536", "2147483647", "2147483648"),
    *("4294967295", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("18446744073709551615", "18446744073709551616", "0" * 30 + "1", "9" * 5000, "0xff", "0x0ff", "0x" + "f" * 16),
]
FLOATS = [
    "1e400",
    "1E+5",
    "-.5e-3",
    "1e",
    "1d",
    "nan",
    "NaN",
    "NAN",
    "nan(1)",
    "inf",
    "-Infinity",
    "+inf",
    "infin",
    "1,5",
]
WORDS = ["", "null", "NULL", "NA", "n/a", "#N/A", "None", "-", "Bern", "café", "\xa0", 'a "b"', "a\nb", "a\r\nb", " "]
BOOLEANS = ["0", "true", "True", "TRUE", "tRue", "false", "FALSE", " true", "yes", "t"]
DATES = ["2024-02-29", "2023-02-29", " 2024-01-01 ", "0000-01-01", "9999-12-31", "2024-1-3", "20240131", "2024-13-01"]
TIMES = [
    "12",
    "12:34",
    "1234",
    "12:34:56",
    "123456",
    " 12:34:56",
    "24:00:00",
    "12:60",
    "12:34:56.1",
    "12:34:56.1234567",
]
VALUES = [
    *NUMBERS,
    *LARGE,
    *FLOATS,
    *WORDS,
    *BOOLEANS,
    *DATES,
    *TIMES,
    *(f"2024-02-29{between}{time}{zone}" for between in "T " for time in TIMES for zone in ("", "Z", "+01:00")),
]
TYPES = [
    *("int64", "uint8", "float", "double", "bool", "null", "string", "binary", "date32", "date64"),
    *("time32[s]", "time64[ns]", "timestamp[s]", "timestamp[ns]", "duration[ms]"),
    *thorough("int8", "int16", "int32", "uint16", "uint32", "uint64", "large_string", "large_binary"),
    *thorough("time32[ms]", "time64[us]", "timestamp[ms]", "timestamp[us]"),
    *thorough("duration[s]", "duration[us]", "duration[ns]"),
]


def read(text: bytes, arrow: Any) -> Any:
    """What pyarrow reads from a record; None if it refuses it."""
    options = csv.ConvertOptions(column_types={"v": arrow, "n": pa.string()}, strings_can_be_null=False)
    names = csv.ReadOptions(column_names=["n", "v"])
    try:
        return csv.read_csv(io.BytesIO(text), names, csv.ParseOptions(newlines_in_values=True), options)
    except pa.ArrowInvalid:
        return None


def bits(table: Any) -> Any:
    """The values of a table, of which each NaN equals itself."""
    column = table["v"].combine_chunks()
    of_floats = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return table["n"].to_pylist(), column.view(of_floats.get(column.type, column.type))


@pytest.mark.parametrize("name", TYPES)
def test_the_rows_are_those_that_pyarrow_reads(name: str) -> None:
    arrow = pa.type_for_alias(name)
    quoted = ['"{}"'.format(value.replace('"', '""')) for value in VALUES]
    plain = [value for value in VALUES if not set(value) & set(',"\n')]
    lines = [f"{number},{value}".encode() for number, value in enumerate([*quoted, *plain])]
    lines.append(b"0,\xff")
    expected = [table for line in lines if (table := read(line, arrow)) is not None]
    assert 0 < len(expected) <= len(lines)
    rows = CsvRows(1 << 20, ",", ["n", "v"], {"v": name, "n": "string"}, Layout(), stops=False)
    prepared = rows.prepare(Block("a.csv", 1, lines, 0))
    assert bits(prepared.table) == bits(pa.concat_tables(expected)), prepared.bad
    assert len(prepared.indices) == len(expected)
    assert sorted({*prepared.indices, *prepared.bad}) == list(range(len(lines)))


@contextmanager
def readings() -> Iterator[list[str]]:
    """Notes each call of pyarrow."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "_read":
            calls.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "skip"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int64", "Bern {}"),
        ("int32", "21474{:05}9"),
        ("double", "{},5"),
        ("bool", "yes {}"),
        ("date32", "31.12.{}"),
        ("timestamp[s]", "2024-01-01T12:00:00.{}Z"),
        ("string", "\xff{}"),
        ("binary", '{}","x'),
    ],
)
def test_a_type_that_no_row_has_is_noticed_in_a_few_readings(name: str, value: str, *, stops: bool) -> None:
    """As many readings as rows took minutes."""
    lines = [f'{number},"{value.format(number)}"'.encode("latin-1") for number in range(5_000)]
    rows = CsvRows(1 << 20, ",", ["n", "v"], {"v": name}, Layout(), stops=stops)
    with readings() as calls:
        prepared = rows.prepare(Block("a.csv", 1, lines, 0))
    assert 0 < len(calls) < 30
    assert (min(prepared.bad), list(prepared.indices)) == (0, [])
    assert stops or len(prepared.bad) == len(lines)
