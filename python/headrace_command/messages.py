"""The messages of the command, which go to stderr, apart from its data."""

from __future__ import annotations

import os
import sys
from textwrap import wrap

from headrace_command.escape import printable

__all__ = ["Messages"]

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
#: A terminal without a size reports 0.
_NARROWEST = 20


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
