"""Rows of the input that follow each other."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Block"]


class Block(NamedTuple):
    """Rows of the input that follow each other.

    Attributes:
        file: The name of their file.
        first: The number of the first one, counted from 1 in its file, a header included.
        rows: The rows: a list of bytes, or a record batch.
        size: Their bytes, about.
    """

    file: str
    first: int
    rows: Any
    size: int

    def split(self, count: int) -> tuple[Block, Block]:
        """The first `count` rows, and the others."""
        share = self.size * count // max(len(self.rows), 1)
        head = Block(self.file, self.first, self.rows[:count], share)
        return head, Block(self.file, self.first + count, self.rows[count:], self.size - share)

    def place(self, index: int) -> str:
        """Where a row is, for a message: `orders.csv:17`."""
        return f"{self.file}:{self.first + index}"
