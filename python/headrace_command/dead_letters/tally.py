"""The outcomes of the letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace.admin import DeadLetter
from headrace_command.exit_code import ExitCode
from headrace_command.output import Output
from headrace_command.text import json_bytes

__all__ = ["Tally"]

#: Failures that the JSON document repeats.
_SHOWN = 100


class Tally:
    """Counts outcomes, and writes one object for each letter with `-o jsonl`.

    Args:
        output: Where they go.
        done: The word for success: "replayed" or "dropped".
    """

    def __init__(self, output: Output, done: str) -> None:
        self._output = output
        self._done = done
        self.counts: Counter[str] = Counter()
        self._failures: list[dict[str, Any]] = []
        self._errors: Counter[str] = Counter()

    def add(
        self,
        letter: DeadLetter,
        outcome: str,
        *,
        entry_id: bytes | None = None,
        to: bytes | None = None,
        error: str = "",
    ) -> None:
        """Note the outcome of a letter: "done", "gone", "failed" or "unknown"."""
        self.counts[outcome] += 1
        row: dict[str, Any] = {"id": letter.entry_id.decode(), "outcome": self._done if outcome == "done" else outcome}
        if to is not None:
            row["stream"] = json_bytes(to)
        if entry_id is not None:
            row["entry_id"] = entry_id.decode()
        if error:
            row["error"] = error
            self._errors[error] += 1
            self._failures = [*self._failures, row][:_SHOWN]
        if self._output.form == "jsonl":
            self._output.row(row)

    @property
    def exit_code(self) -> ExitCode:
        """How the command ends."""
        if self.counts["unknown"]:
            return ExitCode.UNKNOWN
        return ExitCode.FAILED if self.counts["failed"] else ExitCode.OK

    def write(self, skipped: Mapping[str, int], delivery: str | None) -> None:
        """Write the totals."""
        counts = {"done": self._done, "gone": "gone", "failed": "failed", "unknown": "unknown"}
        if self._output.form == "json":
            document: dict[str, Any] = {name: self.counts[key] for key, name in counts.items()}
            document |= {"skipped": dict(skipped), "failures": self._failures}
            if delivery is not None:
                document["delivery"] = delivery
            self._output.value(document)
        elif self._output.form == "text":
            self._output.text(f"{self.counts['done']} {self._done}")
            if self.counts["gone"]:
                self._output.text(f"{self.counts['gone']} gone: another process was quicker")
            for why, count in skipped.items():
                self._output.text(f"{count} skipped: {why}")
            for error, count in self._errors.most_common(5):
                self._output.text(f"{count} not {self._done}: {error}")
