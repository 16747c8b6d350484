"""Which letters are selected, and why others are not."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter

from headrace.admin import DeadLetter

__all__ = ["Selection"]


class Selection:
    """Selects letters by their content, and counts those that are skipped, by reason.

    Args:
        arguments: Those of the verb.
        is_replay: Whether letters are written again rather than only dropped.
    """

    def __init__(self, arguments: Namespace, *, is_replay: bool) -> None:
        self._code = None if arguments.only_code is None else arguments.only_code.encode()
        self._includes_unknown = arguments.include_unknown or not is_replay
        self._takes_rows = bool(arguments.payload or arguments.fields or arguments.json) or not is_replay
        self.skipped: Counter[str] = Counter()

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether this letter is selected."""
        why = self._refusal(letter)
        if why is not None:
            self.skipped[why] += 1
        return why is None

    def _refusal(self, letter: DeadLetter) -> str | None:
        if letter.origin == "other":
            return "no dead letter"
        if self._code is not None and letter.code != self._code:
            return "of another code"
        if letter.written not in (None, b"no") and not self._includes_unknown:
            return "written: unknown, so the entry may be in the stream already: --include-unknown"
        if letter.row is not None and not self._takes_rows:
            return "a row without a payload: --payload, --fields or --json says what its entry is"
        return None
