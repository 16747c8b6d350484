"""Rows that are CSV or TSV records, and which of them are bad."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from headrace_command.exit_code import UsageError
from headrace_command.send.csv_reader import CsvReader, CsvType
from headrace_command.send.rows import Block, Layout, Prepared, too_long

__all__ = ["CsvRows"]

_LINE_ENDS = "lines end with LF or CRLF"
#: How many rows are looked at together.
_RUN = 4_096


class CsvRows:
    """Each row is a CSV record. Its values stay text, unless their column has a type.

    Args:
        max_row_bytes: The most bytes of a row.
        delimiter: The character between two values.
        header: The names of the columns; None: the first record of each file has them.
        types: The types of columns, as named by pyarrow.
        layout: Which part of a row becomes the entry.
        stops: Whether nothing is produced after the first bad row.
    """

    def __init__(
        self,
        max_row_bytes: int,
        delimiter: str,
        header: list[str] | None,
        types: dict[str, str],
        layout: Layout,
        *,
        stops: bool,
    ) -> None:
        self._reader = CsvReader(delimiter)
        # JSON is text; a field can hold any byte.
        self._untyped = CsvType("string" if layout.is_json else "binary")
        self._max_row_bytes = max_row_bytes
        self._delimiter = delimiter
        self._given = header
        self._types = {name: _type(name, text) for name, text in types.items()}
        self._stops = stops
        self._layout = layout
        self._file: str | None = None
        self._header = header or []

    def prepare(self, block: Block) -> Prepared:
        """Parse the records. One with a wrong number of values, or a value of the wrong type, is bad."""
        rows: list[bytes] = block.rows
        begin = self._begin(block)
        limit = self._max_row_bytes
        bad = {at: too_long(limit) for at, row in enumerate(rows) if len(row) > limit}
        # Only the last record of a file can have an open quote: it has all lines up to the end.
        if rows and len(rows) - 1 not in bad and rows[-1].count(b'"') % 2 == 1:
            bad[len(rows) - 1] = "a quote that opens in this row is not closed before the end of the file"
        indices = [at for at in range(begin, len(rows)) if at not in bad and rows[at] not in (b"", b"\r")]
        columns = [(name, self._types.get(name, self._untyped)) for name in self._header]
        types = {name: its.arrow for name, its in columns}
        try:
            table = self._reader.table([rows[at] for at in indices], types, self._header)
        except self._reader.pa.ArrowInvalid:
            table, indices, found = _Faults(self._reader, columns, stops=self._stops).find(rows, indices)
            bad |= found
        return Prepared(block, indices, bad, table=table, layout=self._layout.arguments(table.schema))

    def pass_over(self, block: Block, /) -> int:
        """Keep the header, if the block begins with it, and return how many rows it has."""
        return self._begin(block)

    def _begin(self, block: Block) -> int:
        """The index of the first record that is a row. A block may be prepared again, and so may its header."""
        if self._given is not None or block.first > 1 or not block.rows:
            return 0
        names = self._names(block)
        if self._file is not None and names != self._header:
            raise UsageError(f"{block.file} has different columns from {self._file}: {', '.join(names)}")
        self._file, self._header = block.file, names
        if unknown := self._types.keys() - set(names):
            raise UsageError(f"--types names a column that does not exist: {', '.join(sorted(unknown))}")
        return 1

    def _names(self, block: Block) -> list[str]:
        try:
            text = block.rows[0].decode()
            records = list(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{block.place(0)}: the header cannot be read: {error}") from None
        if len(records) != 1:
            problem = f"ends with a carriage return alone: {_LINE_ENDS}" if records else "is empty"
            raise UsageError(f"{block.place(0)}: the header {problem}")
        return records[0]


def _type(name: str, text: str) -> CsvType:
    try:
        return CsvType(text)
    except ValueError:
        raise UsageError(
            f"--types {name}={text}: pyarrow reads no such type from CSV; int64, double, bool, date32 …"
        ) from None


class _Faults:
    """Finds the rows of a block that are bad, in a time that grows with the rows, whichever of them are bad.

    Args:
        reader: Reads them.
        columns: The names and types of the columns.
        stops: Whether only the first bad row matters.
    """

    def __init__(self, reader: CsvReader, columns: Sequence[tuple[str, CsvType]], *, stops: bool) -> None:
        self._reader = reader
        self._columns = columns
        self._names = [name for name, _ in columns]
        self._types = {name: its.arrow for name, its in columns}
        self._stops = stops

    def find(self, rows: list[bytes], indices: list[int]) -> tuple[Any, list[int], dict[int, str]]:
        """Return the table of the good rows, their indices, and why the others are bad.

        Args:
            rows: The rows of a block.
            indices: Which of them are looked at.
        """
        tables, good, bad = [self._table(rows, [])], [], dict[int, str]()
        for begin in range(0, len(indices), _RUN):
            parts = self._good(rows, indices[begin : begin + _RUN], bad)
            tables += [self._table(rows, part) for part in parts]
            good += [at for part in parts for at in part]
            if bad and self._stops:
                break
        return self._reader.pa.concat_tables(tables), good, bad

    def _table(self, rows: list[bytes], indices: list[int]) -> Any:
        return self._reader.table([rows[at] for at in indices], self._types, self._names)

    def _good(self, rows: list[bytes], indices: list[int], bad: dict[int, str]) -> list[list[int]]:
        """Return the good rows, in parts that can be read together, and add the others to the bad ones."""
        try:
            self._table(rows, indices)
        except self._reader.pa.ArrowInvalid:
            parts = self._records(rows, indices, bad)
            self._find_misfits(rows, parts, bad)
            end = min(bad, default=len(rows)) if self._stops else len(rows)
            return [[at for at in part if at < end and at not in bad] for part in parts]
        return [indices]

    def _records(self, rows: list[bytes], indices: list[int], bad: dict[int, str]) -> list[list[int]]:
        """Find the rows that are records. Rows of which pyarrow makes more or fewer records are halved."""
        read = [rows[at] for at in indices]
        count, others = self._reader.count(read, self._names)
        good = [at for place, at in enumerate(indices) if place not in others]
        if count + len(others) == len(indices) and (not others or self._are_apart(read, others)):
            for place, values in others.items():
                bad[indices[place]] = f"{values} values instead of {len(self._names)}"
            return [good]
        if len(indices) == 1:
            has_cr = b"\r" in read[0].removesuffix(b"\r")
            problem = f"the row has a carriage return outside of quotes: {_LINE_ENDS}"
            bad[indices[0]] = problem if has_cr else "the row is not a CSV record"
            return []
        half = len(indices) // 2
        parts = self._records(rows, indices[:half], bad)
        return parts if bad and self._stops else parts + self._records(rows, indices[half:], bad)

    def _are_apart(self, read: list[bytes], others: dict[int, int]) -> bool:
        """Whether these rows, and the rest, are the same records when they are read apart."""
        good = [row for place, row in enumerate(read) if place not in others]
        return self._reader.count(good, self._names) == (len(good), {}) and self._reader.count(
            [read[place] for place in others], self._names
        ) == (0, dict(enumerate(others.values())))

    def _find_misfits(self, rows: list[bytes], parts: list[list[int]], bad: dict[int, str]) -> None:
        """Find the rows with a value that is not of the type of its column."""
        types = dict.fromkeys(self._names, self._reader.pa.binary())
        tables = [(part, self._reader.table([rows[at] for at in part], types, self._names)) for part in parts]
        for number, (name, its) in enumerate(self._columns):
            if its.takes_all:
                continue
            values = dict.fromkeys(value for _, table in tables for value in table[number].unique().to_pylist())
            misfits = {value for value in values if its.refuses(value)}
            misfits |= self._misfits(its, [value for value in values if value not in misfits])
            for part, table in tables if misfits else ():
                for at, value in zip(part, table[number].to_pylist(), strict=True):
                    if value in misfits:
                        bad.setdefault(at, its.problem(name, value))

    def _misfits(self, its: CsvType, values: list[bytes]) -> set[bytes]:
        """Those of the values that are not of a type. They are few, so they are found by halving."""
        quoted = [b'"%s"' % value.replace(b'"', b'""') for value in values]
        try:
            self._reader.table(quoted, {"": its.arrow}, [""])
        except self._reader.pa.ArrowInvalid:
            if len(values) == 1:
                return set(values)
        else:
            return set()
        half = len(values) // 2
        found = self._misfits(its, values[:half])
        return found if found and self._stops else found | self._misfits(its, values[half:])
