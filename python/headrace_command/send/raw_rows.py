"""Rows that are sent as they are."""

from __future__ import annotations

from headrace_command.send.block import Block
from headrace_command.send.prepared import Prepared

__all__ = ["RawRows", "too_long"]


def too_long(max_row_bytes: int) -> str:
    """Return why such a row is bad."""
    return f"the row has more than {max_row_bytes:,} bytes; --max-row-bytes allows more"


class RawRows:
    """Each row is the payload of an entry, byte for byte.

    Args:
        max_row_bytes: The most bytes of a row.
        skips_blank: Whether to skip rows of only white space, as in JSON lines.
    """

    def __init__(self, max_row_bytes: int, *, skips_blank: bool) -> None:
        self._max_row_bytes = max_row_bytes
        self._skips_blank = skips_blank

    def pass_over(self, _block: Block, /) -> int:
        """Return 0: no row is a header."""
        return 0

    def prepare(self, block: Block) -> Prepared:
        """Check only the length of each row."""
        rows = block.rows
        if max(map(len, rows), default=0) <= self._max_row_bytes and not (self._skips_blank and _has_blank(rows)):
            return Prepared(block, range(len(rows)), {}, rows)
        bad = {at: too_long(self._max_row_bytes) for at, row in enumerate(rows) if len(row) > self._max_row_bytes}
        skips = self._skips_blank
        indices = [at for at, row in enumerate(rows) if at not in bad and not (skips and not row.strip())]
        return Prepared(block, indices, bad, [rows[at] for at in indices])


def _has_blank(rows: list[bytes]) -> bool:
    return any(not row or row.isspace() for row in rows)
