"""The progress line."""

from __future__ import annotations

import time

from headrace_command.messages import Messages

__all__ = ["Progress"]

#: Seconds between two updates.
_INTERVAL = 0.2


class Progress:
    """Shows the rows, their rate, and how much of the input has been read.

    Args:
        messages: Where it is shown.
        wanted: "always", "never", or "auto": on a terminal.
        total: The bytes of the input, if known.
    """

    def __init__(self, messages: Messages, wanted: str, total: int | None) -> None:
        self._messages = messages
        self._is_shown = wanted == "always" or (wanted == "auto" and messages.is_terminal)
        self._total = total
        self._began = self._sends_since = time.monotonic()
        self._shown_at = 0.0

    def show(self, rows: int, compared: int, bytes_read: int) -> None:
        """Show the progress, but not too often.

        Args:
            rows: The rows sent so far.
            compared: The rows that an earlier run sent and this one has compared.
            bytes_read: Bytes of the input so far.
        """
        now = time.monotonic()
        if not rows:
            self._sends_since = now
        if not self._is_shown or now - self._shown_at < _INTERVAL:
            return
        self._shown_at = now
        share = f"  {min(100 * bytes_read // self._total, 100):3d} %" if self._total else ""
        if compared and not rows:
            self._messages.show(f"comparing with the earlier run: {_rows(compared)}{share}")
            return
        rate = rows / max(now - self._sends_since, 0.001)
        self._messages.show(f"{_rows(rows)}  {rate:,.0f}/s{share}")

    def finish(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._messages.end_progress()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return time.monotonic() - self._began


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
