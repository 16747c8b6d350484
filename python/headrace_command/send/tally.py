"""The outcomes of the rows."""

from __future__ import annotations

from typing import Any

from headrace_command.exit_code import ExitCode

__all__ = ["Tally"]

#: The most failures that are shown individually.
_SHOWN = 10
#: The code of rows that could not be read.
BAD_ROW = "BAD_ROW"


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
            codes = ", ".join(f"{code} {count:,}" for code, count in sorted(self.failed.items()))
            parts.append(f"{self.failures:,} failed ({codes})")
        if self.unknown:
            parts.append(f"{self.unknown:,} of these may have been written")
        if self.dead_letters:
            parts.append(f"{self.dead_letters:,} dead letter{'' if self.dead_letters == 1 else 's'}")
        return ", ".join(parts)
