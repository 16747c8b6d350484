"""What the command writes: data on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import Any

from headrace_command.text import printable

__all__ = ["Messages", "Output"]

_WIDEST = 100
#: A terminal without a size reports 0.
_NARROWEST = 20
_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


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


class Messages:
    """Writes messages to stderr, one per line, without the control characters that keys and replies may contain.

    Args:
        quiet: Whether to write only errors.
        color: "always", "never", or "auto": on a terminal, unless `NO_COLOR` is set.
    """

    def __init__(self, *, quiet: bool = False, color: str = "auto") -> None:
        self._quiet = quiet
        self.is_terminal = sys.stderr.isatty()
        self._color = color == "always" or (color == "auto" and self.is_terminal and not os.environ.get("NO_COLOR"))
        #: Whether the terminal shows a progress line.
        self._transient = False

    def say(self, text: str) -> None:
        """Write a message, unless the command is quiet."""
        if not self._quiet:
            self._write("", "", text)

    def trace(self, text: str) -> None:
        """Write the lines of a traceback."""
        for line in text.splitlines():
            self._write_line(printable(line))

    def warn(self, text: str) -> None:
        """Write a warning, unless the command is quiet."""
        if not self._quiet:
            self._write("warning: ", _YELLOW, text)

    def error(self, text: str) -> None:
        """Write an error."""
        self._write("headrace: ", _RED, text)

    def show(self, text: str) -> None:
        """Replace the progress line."""
        self._clear()
        # A wrapped line could not be removed as a whole.
        sys.stderr.write(text if self._columns is None else text[: self._columns - 1])
        sys.stderr.flush()
        self._transient = True

    def ask(self, question: str) -> None:
        """Write a question, to be answered on the same line."""
        self._clear()
        sys.stderr.write(f"{printable(question)} ")
        sys.stderr.flush()

    def end_progress(self) -> None:
        """Remove the progress line."""
        self._clear()
        sys.stderr.flush()

    def _write(self, prefix: str, color: str, text: str) -> None:
        """Write a message. On a terminal, wrap it between words."""
        line = prefix + printable(text)
        lines = [line]
        if self._columns is not None:
            lines = wrap(line, self._columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        first, *others = lines or [line]
        if prefix and self._color:
            first = f"{color}{prefix.rstrip()}{_PLAIN} {first.removeprefix(prefix)}"
        for shown in (first, *others):
            self._write_line(shown)

    @property
    def _columns(self) -> int | None:
        """The width of the terminal in characters, if there is a terminal that reports it."""
        columns = os.get_terminal_size(sys.stderr.fileno()).columns if self.is_terminal else 0
        return columns if columns >= _NARROWEST else None

    def _write_line(self, line: str) -> None:
        self._clear()
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._transient:
            sys.stderr.write("\r\x1b[K")
            self._transient = False
