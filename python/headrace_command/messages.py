"""What the command says beside its data: on stderr."""

from __future__ import annotations

import os
import sys

from headrace_command.escape import printable

__all__ = ["Messages"]

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


class Messages:
    """Writes messages to stderr, one per line, without the control characters that keys and replies may hold.

    Args:
        quiet: Whether to leave out all but errors.
        color: "always", "never", or "auto": on a terminal, unless `NO_COLOR` is set.
    """

    def __init__(self, *, quiet: bool = False, color: str = "auto") -> None:
        self._quiet = quiet
        self.is_terminal = sys.stderr.isatty()
        self._color = color == "always" or (color == "auto" and self.is_terminal and not os.environ.get("NO_COLOR"))
        #: Whether a line of progress stands on the terminal.
        self._transient = False

    def say(self, text: str) -> None:
        """Write a message, unless the command is quiet."""
        if not self._quiet:
            self._write(printable(text))

    def warn(self, text: str) -> None:
        """Write a warning, unless the command is quiet."""
        if not self._quiet:
            self._write(f"{self._colored('warning:', _YELLOW)} {printable(text)}")

    def error(self, text: str) -> None:
        """Write an error."""
        self._write(f"{self._colored('headrace:', _RED)} {printable(text)}")

    def show(self, text: str) -> None:
        """Replace the line of progress."""
        self._clear()
        sys.stderr.write(text)
        sys.stderr.flush()
        self._transient = True

    def end_progress(self) -> None:
        """Remove the line of progress."""
        self._clear()
        sys.stderr.flush()

    def _write(self, line: str) -> None:
        self._clear()
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._transient:
            sys.stderr.write("\r\x1b[K")
            self._transient = False

    def _colored(self, text: str, color: str) -> str:
        return f"{color}{text}{_PLAIN}" if self._color else text
