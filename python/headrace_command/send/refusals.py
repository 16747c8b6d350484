"""Which of the rows that were sent together the server accepted, and where those that it did not begin."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_command.send.refused import Refused

__all__ = ["Refusals"]


class Refusals:
    """The rows of an ordered batch that are not in the stream.

    Args:
        rows: These rows, in order.
        count: How many rows were sent.
    """

    def __init__(self, rows: Sequence[Refused], count: int) -> None:
        blocked = next((row for row in rows if row.is_blocked), None)
        #: The first row that failed only because it follows a refused one. Neither it nor any row after it was tried.
        self.blocked = blocked
        self._end = count if blocked is None else blocked.ordinal
        #: The rows that failed on their own.
        self.own = [row for row in rows if row.ordinal < self._end]
        if blocked is not None and (not self.own or self.own[-1].ordinal + 1 != self._end):
            self.own.append(blocked)  # the report does not name the row before it

    @property
    def are_of_rows(self) -> bool:
        """Whether each row is itself at fault, so that the others can be sent."""
        return all(row.is_at_fault for row in self.own)

    @property
    def first_untried(self) -> tuple[int, int] | None:
        """The part and the index of the first row that was not tried."""
        return None if self.blocked is None else self.blocked.position

    @property
    def first_unwritten(self) -> tuple[int, int] | None:
        """The part and the index of the first row after all that are in the stream; None if the last row is.

        A row that the dispatcher cannot encode does not hold back others, so it may precede rows that are in the
        stream.
        """
        ordinal, position = self._end, self.first_untried
        for row in reversed(self.own):
            if row.ordinal + 1 != ordinal:
                break
            ordinal, position = row.ordinal, row.position
        return position
