"""The type of a CSV column."""

from __future__ import annotations

import re

from headrace_command.send.arrow import pyarrow_for

__all__ = ["CsvType"]

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
