"""Consecutive rows of the input."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Block"]


class Block(NamedTuple):
    """Consecutive rows of the input.

    Attributes:
        file: The name of their file.
        first: The number of the first one, counted from 1 in its file, including a header.
        rows: The rows: a list of bytes, or a record batch.
        size: Their approximate size in bytes.
    """

    file: str
    first: int
    rows: Any
    size: int

    def split(self, count: int) -> tuple[Block, Block]:
        """Return the first `count` rows, and the others."""
        share = self.size * count // max(len(self.rows), 1)
        head = Block(self.file, self.first, self.rows[:count], share)
        return head, Block(self.file, self.first + count, self.rows[count:], self.size - share)

    def place(self, index: int) -> str:
        """Return where a row is, for a message: `orders.csv:17`."""
        return f"{self.file}:{self.first + index}"
