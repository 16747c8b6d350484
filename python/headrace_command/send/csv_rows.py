"""Rows that are CSV or TSV records."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from headrace_command.send.arrow import pyarrow_for
from headrace_command.send.block import Block
from headrace_command.send.layout import Layout
from headrace_command.send.prepared import Prepared
from headrace_command.send.raw_rows import too_long
from headrace_command.usage_error import UsageError

__all__ = ["CsvRows"]

_ENDS = "lines end with LF or CRLF"


class CsvRows:
    """Each row is a CSV record. Its values stay text, unless their column has a type.

    Args:
        max_row_bytes: The most bytes of a row.
        delimiter: The character between two values.
        header: The names of the columns; None: the first record of each file has them.
        types: The types of columns, as named by pyarrow.
        layout: Which part of a row becomes the entry.
    """

    def __init__(
        self, max_row_bytes: int, delimiter: str, header: list[str] | None, types: dict[str, str], layout: Layout
    ) -> None:
        self._pa = pyarrow_for("csv")
        from pyarrow import csv as arrow_csv

        self._csv = arrow_csv
        # JSON is text; a field can hold any byte.
        self._untyped = self._pa.string() if layout.is_json else self._pa.binary()
        self._max_row_bytes = max_row_bytes
        self._delimiter = delimiter
        self._given = header
        self._types = {name: self._type(name, text) for name, text in types.items()}
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
        tables = self._parsed(rows, indices, bad)
        indices = [at for at in indices if at not in bad]
        table = self._pa.concat_tables(tables) if tables else self._empty()
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
            problem = f"ends with a carriage return alone: {_ENDS}" if records else "is empty"
            raise UsageError(f"{block.place(0)}: the header {problem}")
        return records[0]

    def _parsed(self, rows: list[bytes], indices: list[int], bad: dict[int, str]) -> list[Any]:
        """The tables of these rows. Rows that do not parse are located by bisection."""
        if not indices:
            return []
        wrong: list[tuple[int | None, str]] = []

        def note(row: Any) -> str:
            wrong.append((row.number, f"{row.actual_columns} values instead of {row.expected_columns}"))
            return "skip"

        try:
            table = self._read(b"\n".join(rows[at] for at in indices), note)
        except (self._pa.ArrowInvalid, self._pa.ArrowNotImplementedError) as error:
            table, problem = None, re.sub(r"Row #\d+: ", "", str(error))
        else:
            problem = wrong[0][1] if wrong else ""
        if table is not None and not wrong and len(table) == len(indices):
            return [table]
        if len(indices) == 1:
            if b"\r" in rows[indices[0]].removesuffix(b"\r") and not problem:
                problem = f"the row has a carriage return outside of quotes: {_ENDS}"
            bad[indices[0]] = problem or "the row is not a CSV record"
            return []
        half = len(indices) // 2
        return self._parsed(rows, indices[:half], bad) + self._parsed(rows, indices[half:], bad)

    def _read(self, data: bytes, note: Any) -> Any:
        read = self._csv
        types = {name: self._types.get(name, self._untyped) for name in self._header}
        return read.read_csv(
            io.BytesIO(data),
            read_options=read.ReadOptions(column_names=self._header, use_threads=False, block_size=len(data) + 1),
            parse_options=read.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=read.ConvertOptions(column_types=types, strings_can_be_null=False),
        )

    def _type(self, name: str, text: str) -> Any:
        try:
            return self._pa.type_for_alias(text)
        except ValueError:
            raise UsageError(
                f"--types {name}={text}: pyarrow knows no such type; int64, double, bool, date32 …"
            ) from None

    def _empty(self) -> Any:
        types = {name: self._types.get(name, self._untyped) for name in self._header}
        return self._pa.table({name: self._pa.array([], its) for name, its in types.items()})
