"""What the server took of rows that were sent together, and where those begin that it did not."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_command.send.refused import Refused

__all__ = ["Refusals"]


class Refusals:
    """The rows that are not in the stream, of a batch that keeps their order.

    Args:
        rows: These rows, in their order.
        count: The rows that were sent.
    """

    def __init__(self, rows: Sequence[Refused], count: int) -> None:
        blocked = next((row for row in rows if row.is_blocked), None)
        #: The first row that was only behind one that the server refused. It was not tried, nor was any behind it.
        self.blocked = blocked
        self._end = count if blocked is None else blocked.ordinal
        #: The rows that failed by themselves.
        self.own = [row for row in rows if row.ordinal < self._end]
        if blocked is not None and (not self.own or self.own[-1].ordinal + 1 != self._end):
            self.own.append(blocked)  # the report does not say behind what

    @property
    def are_of_rows(self) -> bool:
        """Whether each row is itself at fault: the others can be sent."""
        return all(row.is_at_fault for row in self.own)

    @property
    def first_untried(self) -> tuple[int, int] | None:
        """The part and the index of the first row that was not tried."""
        return None if self.blocked is None else self.blocked.position

    @property
    def first_unwritten(self) -> tuple[int, int] | None:
        """The part and the index of the first row behind all that are in the stream; None: the last one is.

        A row that the dispatcher cannot encode holds none back, so that it may be before rows that are in the stream.
        """
        ordinal, position = self._end, self.first_untried
        for row in reversed(self.own):
            if row.ordinal + 1 != ordinal:
                break
            ordinal, position = row.ordinal, row.position
        return position
