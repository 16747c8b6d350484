"""Rows that are CSV or TSV records."""

from __future__ import annotations

import csv
import io

from headrace_command.send.block import Block
from headrace_command.send.csv_faults import LINE_ENDS, CsvFaults
from headrace_command.send.csv_reader import CsvReader
from headrace_command.send.csv_type import CsvType
from headrace_command.send.layout import Layout
from headrace_command.send.prepared import Prepared
from headrace_command.send.raw_rows import too_long
from headrace_command.usage_error import UsageError

__all__ = ["CsvRows"]


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
            table, indices, found = CsvFaults(self._reader, columns, stops=self._stops).find(rows, indices)
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
            problem = f"ends with a carriage return alone: {LINE_ENDS}" if records else "is empty"
            raise UsageError(f"{block.place(0)}: the header {problem}")
        return records[0]


def _type(name: str, text: str) -> CsvType:
    try:
        return CsvType(text)
    except ValueError:
        raise UsageError(
            f"--types {name}={text}: pyarrow reads no such type from CSV; int64, double, bool, date32 …"
        ) from None
