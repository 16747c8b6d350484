"""A row that is not, or may not be, in the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_command.send.block import Block

if TYPE_CHECKING:
    from headrace import Failure

__all__ = ["Refused"]


class Refused(NamedTuple):
    """A row that is not, or may not be, in the stream.

    Attributes:
        block: The block of the row.
        part: The index of the block among those that were sent together.
        at: The index of the row in its block.
        ordinal: The number of the row among those that were sent together.
        failure: Why it failed.
    """

    block: Block
    part: int
    at: int
    ordinal: int
    failure: Failure

    @property
    def position(self) -> tuple[int, int]:
        """The part, and the index of the row in its block."""
        return self.part, self.at

    @property
    def is_at_fault(self) -> bool:
        """Whether no server would accept it, whatever precedes it."""
        from headrace.tables import ROW_CODES

        return self.failure.code in ROW_CODES

    @property
    def is_blocked(self) -> bool:
        """Whether it failed only because it follows a row that failed."""
        return self.failure.code == "BLOCKED"

    @property
    def is_of_connection(self) -> bool:
        """Whether there was no connection, or a missing right."""
        from headrace.tables import CONNECTION_CODES

        return self.failure.code in (*CONNECTION_CODES, "NOPERM", "NOAUTH", "WRONGPASS")
