"""Reads CSV records with pyarrow, and the types of their columns."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_command.send.inputs import pyarrow_for

__all__ = ["CsvReader", "CsvType"]

_ASCII = bytes(range(128)) + b"x" * 128
_INTEGER = rb"(-?0*[0-9]{1,20})|0[xX][0-9A-Fa-f]{1,16}"
_FLOAT = rb"[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|(?i:nan|inf).*)"
_DATE = rb"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = rb"[0-9]{2}(?::?[0-9]{2}){0,2}"
#: What pyarrow reads as a value, at most, without white space around it. The group of an integer is decimal.
_FORMS = {
    "int": _INTEGER,
    "uint": _INTEGER,
    "duration": _INTEGER,
    "float": _FLOAT,
    "double": _FLOAT,
    "bool": rb"1|0|true|True|TRUE|false|False|FALSE",
    "date": _DATE,
    "time": _TIME,
    "timestamp": rb"%s(?:[ T]%s)?" % (_DATE, _TIME),
    "null": rb"(?!)",
}
#: The most digits of a fraction of a second, by unit.
_DIGITS = {"ms": 3, "us": 6, "ns": 9}
#: The most characters of a value in a message.
_SHOWN = 60


class CsvReader:
    """Reads CSV records with pyarrow.

    Args:
        delimiter: The character between two values.
    """

    def __init__(self, delimiter: str) -> None:
        self.pa = pyarrow_for("csv")
        from pyarrow import csv

        self._csv = csv
        self._delimiter = delimiter

    def table(self, rows: Sequence[bytes], types: Mapping[str, Any], names: list[str]) -> Any:
        """Return the table of some rows.

        Raises:
            ArrowInvalid: A row is not a record of as many values as there are columns, or a value is not of its type.
        """
        if not rows:
            return self.pa.table([self.pa.array([], types[name]) for name in names], names)
        table = self._read(rows, types, names, None)
        if len(table) != len(rows):
            raise self.pa.ArrowInvalid(f"{len(rows)} rows are {len(table)} CSV records")
        return table

    def count(self, rows: Sequence[bytes], names: list[str]) -> tuple[int, dict[int, int]]:
        """Return how many records some rows have, and the number of values of each record with another number.

        Returns:
            The number of records with as many values as there are columns, and of the others, by their places among
            all records, the number of values.
        """
        others: dict[int, int] = {}

        def note(row: Any) -> str:
            others[row.number - 1] = row.actual_columns
            return "skip"

        if not rows:
            return 0, others
        # pyarrow decodes what it passes to a handler. A character that is not ASCII ends no value.
        plain = [row.translate(_ASCII) for row in rows]
        try:
            return len(self._read(plain, dict.fromkeys(names, self.pa.binary()), names, note)), others
        except self.pa.ArrowInvalid:
            return 0, {}

    def _read(
        self, rows: Sequence[bytes], types: Mapping[str, Any], names: list[str], note: Callable[[Any], str] | None
    ) -> Any:
        read, data = self._csv, b"\n".join(rows)
        return read.read_csv(
            io.BytesIO(data),
            read_options=read.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            parse_options=read.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=read.ConvertOptions(column_types=types, strings_can_be_null=False),
        )


class CsvType:
    """The type of a CSV column.

    Args:
        text: Its name, as pyarrow knows it.

    Raises:
        ValueError: pyarrow has no such type, or does not read it from CSV.
    """

    def __init__(self, text: str) -> None:
        pa = pyarrow_for("csv")
        from pyarrow import csv

        self.arrow = pa.type_for_alias(text)
        options = csv.ConvertOptions(column_types={"": self.arrow})
        try:
            csv.read_csv(pa.py_buffer(b"\n"), csv.ReadOptions(column_names=[""]), convert_options=options)
        except NotImplementedError as error:
            raise ValueError(str(error)) from None
        self._text = text
        self._nulls = {null.encode() for null in options.null_values}
        kind, _, unit = str(self.arrow).rstrip("]").partition("[")
        kind = kind.rstrip("0123456789")
        self._is_text = kind.endswith("string")
        #: Whether each value is of the type.
        self.takes_all = kind.endswith("binary")
        form = _FORMS.get(kind, b".*")
        if kind in ("time", "timestamp") and unit in _DIGITS:
            form += rb"(?:\.[0-9]{1,%d})?" % _DIGITS[unit]
        self._form = re.compile(rb"\s*(?:%s)\s*" % form, re.DOTALL)
        count = 1 << self.arrow.bit_width if form is _INTEGER else 0
        self._range = range(count) if kind == "uint" else range(-count // 2, count // 2)

    def refuses(self, value: bytes) -> bool:
        """Whether pyarrow certainly does not read a value as one of the type."""
        if self._is_text:
            return not _is_utf8(value)
        if value in self._nulls:
            return False
        found = self._form.fullmatch(value)
        return not found or (found.lastindex is not None and int(found[1]) not in self._range)

    def problem(self, column: str, value: bytes) -> str:
        """Return why a row with a value that is not of the type is bad."""
        shown = value.decode(errors="backslashreplace")
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
        return f"column {column!r} is not {'UTF-8' if self._is_text else self._text}: {shown!r}"


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
