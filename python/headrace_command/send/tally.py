"""The outcomes of the rows, and the line that shows the progress."""

from __future__ import annotations

import time
from typing import Any

from headrace_command.exit_code import ExitCode
from headrace_command.output import Messages
from headrace_command.text import count

__all__ = ["BAD_ROW", "Progress", "Tally"]

#: The most failures that are shown individually.
_SHOWN = 10
#: The code of rows that could not be read.
BAD_ROW = "BAD_ROW"
#: Seconds between two updates.
_INTERVAL = 0.2


class Tally:
    """Counts outcomes, and keeps the first failures.

    Attributes:
        delivered: Rows that are in the stream.
        deduplicated: Those of them that an earlier run had written.
        failed: Rows that are not in the stream, by code.
        unknown: Those of them that may be in the stream nevertheless.
        compared: Rows that an earlier run read and this one has compared with its checkpoint.
        skipped: Rows that an earlier run sent and this one did not.
        dead_letters: Rows that are in the stream of dead letters.
        unreachable: Whether a row failed for lack of a connection or a right.
        first: The places and reasons of the first failures.
    """

    def __init__(self) -> None:
        self.delivered = 0
        self.deduplicated = 0
        self.failed: dict[str, int] = {}
        self.unknown = 0
        self.compared = 0
        self.skipped = 0
        self.dead_letters = 0
        self.unreachable = False
        self.first: list[tuple[str, str, str]] = []

    def fail(
        self, place: str, code: str, message: str, *, is_unknown: bool = False, is_of_connection: bool = False
    ) -> None:
        """Count a failure."""
        self.failed[code] = self.failed.get(code, 0) + 1
        self.unknown += is_unknown
        self.unreachable |= is_of_connection
        if len(self.first) < _SHOWN:
            self.first.append((place, code, message))

    @property
    def failures(self) -> int:
        """How many rows failed."""
        return sum(self.failed.values())

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command, as far as rows are concerned."""
        code = ExitCode.FAILED if self.failed else ExitCode.OK
        if self.unreachable:
            code = ExitCode.worst(code, ExitCode.NO_CONNECTION)
        return ExitCode.worst(code, ExitCode.UNKNOWN) if self.unknown else code

    def to_json(self) -> dict[str, Any]:
        """Return the counts and the first failures."""
        return {
            "delivered": self.delivered,
            "deduplicated": self.deduplicated,
            "skipped": self.skipped,
            "failed": self.failures,
            "unknown": self.unknown,
            "failed_by_code": self.failed,
            "dead_letters": self.dead_letters,
            "failures": [{"place": place, "code": code, "message": message} for place, code, message in self.first],
        }

    def __str__(self) -> str:
        parts = [f"{self.delivered:,} delivered"]
        if self.deduplicated:
            parts[0] += f" ({self.deduplicated:,} of them by an earlier run)"
        if self.skipped:
            parts.append(f"{self.skipped:,} sent before")
        if self.failed:
            codes = ", ".join(f"{code} {number:,}" for code, number in sorted(self.failed.items()))
            parts.append(f"{self.failures:,} failed ({codes})")
        if self.unknown:
            parts.append(f"{self.unknown:,} of these may have been written")
        if self.dead_letters:
            parts.append(count(self.dead_letters, "dead letter"))
        return ", ".join(parts)


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
            self._messages.show(f"comparing with the earlier run: {count(compared, 'row')}{share}")
            return
        rate = rows / max(now - self._sends_since, 0.001)
        self._messages.show(f"{count(rows, 'row')}  {rate:,.0f}/s{share}")

    def finish(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._messages.end_progress()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return time.monotonic() - self._began
