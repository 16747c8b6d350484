"""Reads CSV records with pyarrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_command.send.arrow import pyarrow_for

__all__ = ["CsvReader"]

_ASCII = bytes(range(128)) + b"x" * 128


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
