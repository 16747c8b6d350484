"""Data on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from headrace_command.escape import printable

__all__ = ["Output"]

_WIDEST = 100
#: A terminal without a size reports 0.
_NARROWEST = 20


class Output:
    """Writes data to stdout, as UTF-8 in every locale.

    Args:
        form: "text", "json" or "jsonl".
    """

    def __init__(self, form: str = "text") -> None:
        self.form = form
        self.is_terminal = sys.stdout.isatty()
        self._out = sys.stdout.buffer

    def text(self, line: str) -> None:
        """Write a line of text, escaped on a terminal."""
        shown = printable(line) if self.is_terminal else line
        self._out.write(shown.encode("utf-8", "surrogateescape") + b"\n")

    def payload(self, value: bytes, end: bytes = b"\n") -> None:
        """Write bytes as they are; on a terminal, without control characters."""
        self._out.write((printable(value).encode() if self.is_terminal else value) + end)

    def row(self, row: Mapping[str, Any]) -> None:
        """Write an object as a line of JSON."""
        self._out.write(json.dumps(row, ensure_ascii=self.is_terminal).encode("utf-8", "surrogatepass") + b"\n")

    def value(self, value: object) -> None:
        """Write one JSON value as the whole output."""
        self._out.write(json.dumps(value, ensure_ascii=self.is_terminal, indent=2).encode() + b"\n")

    def clear(self) -> None:
        """Clear the screen of a terminal."""
        self._out.write(b"\x1b[H\x1b[2J")

    @property
    def width(self) -> int:
        """The most characters in a line of prose: what fits on the terminal and is easy to read."""
        columns = os.get_terminal_size(sys.stdout.fileno()).columns if self.is_terminal else 0
        return min(columns, _WIDEST) if columns >= _NARROWEST else _WIDEST

    def fitting(self, lines: Sequence[str], above: int) -> list[str]:
        """Return the lines that fit on the terminal below `above` others, which would otherwise scroll out."""
        if not self.is_terminal:
            return list(lines)
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        if columns < _NARROWEST:
            return list(lines)
        # The cursor is in the last row.
        left = rows - above - 1
        ends = list(accumulate(-(-max(len(line), 1) // columns) for line in lines))
        if not ends or ends[-1] <= left:
            return list(lines)
        shown = sum(end < left for end in ends)
        return [*lines[:shown], f"… {len(lines) - shown} more lines: a taller window shows them"]

    def flush(self) -> None:
        """Send what was written."""
        self._out.flush()

    @staticmethod
    def discard() -> None:
        """Discard the rest once stdout is closed: otherwise Python reports an error when the process ends."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
