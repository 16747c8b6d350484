"""What a run has in hand of one stream, and how much of it is done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from headrace._headrace import Entry, ShardBatch
from headrace.pieces import Leases, Piece

__all__ = ["ShardLine", "ShardPiece"]


@dataclass(slots=True, eq=False)
class ShardPiece(Piece):
    """What one call of the handler gets: entries of one stream."""

    line: ShardLine
    batch: ShardBatch
    #: Their numbers in the line.
    rows: range | list[int]

    @property
    def first(self) -> int:
        """The number of its first row."""
        return self.rows[0]

    @property
    def entry(self) -> Entry | None:
        """Its only entry, unless a call gets a batch."""
        given: Any = self.given
        return given[0] if isinstance(given, list) and len(given) == 1 else given if isinstance(given, Entry) else None


class ShardLine:
    """The rows of one stream, by number, until they are committed.

    What comes again, under another lease or after a failure, is another line.
    """

    def __init__(self, stream: bytes, epoch: int) -> None:
        self.stream = stream
        self.epoch = epoch
        #: The number of batches that were added.
        self.count = 0
        #: The batches that are not committed as a whole, each with the number of its first row.
        self.batches: deque[tuple[int, ShardBatch]] = deque()
        #: The batches that are not cut yet: the number of the first row, the batch, and its row that is cut next.
        self.uncut: deque[tuple[int, ShardBatch, Leases, int]] = deque()
        #: By key: the pieces that come after one that is ready, or that a call has.
        self.behind: dict[Any, deque[ShardPiece]] = {}
        #: The number of pieces that were cut and whose calls have not ended.
        self.open = 0
        #: Whether more is cut only when no piece is open.
        self.waits = False
        #: The earliest piece that failed, and the reason. What is after it comes again.
        self.failed: tuple[ShardPiece, str] | None = None
        #: Whether what is not done comes again.
        self.is_dropped = False
        #: The number of the next row.
        self._end = 0
        #: The number of rows at the beginning that are done.
        self.done = 0
        #: Rows that are done, after one that is not.
        self._done_later: set[int] = set()

    @property
    def rows(self) -> int:
        """The number of rows from the first one on that is not done."""
        return self._end - self.done

    @property
    def is_live(self) -> bool:
        """Whether all of it is to be handled."""
        return self.failed is None and not self.is_dropped

    def wants(self, row: int) -> bool:
        """Whether a row is to be handled: nothing before it has failed."""
        return not self.is_dropped and (self.failed is None or row <= self.failed[0].first)

    def add(self, batch: ShardBatch) -> None:
        """Add what was read."""
        self.count += 1
        self.batches.append((self._end, batch))
        if batch.num_rows:
            self.uncut.append((self._end, batch, Leases(batch, 0.0), 0))
        self._end += batch.num_rows

    def finish(self, rows: range | list[int]) -> ShardBatch | Entry | None:
        """Note that rows are done. Return the last batch or entry that is to be committed."""
        before = self.done
        if isinstance(rows, range) and rows.start == before:
            self.done = rows.stop
        else:
            self._done_later.update(rows)
        while self.done in self._done_later:
            self._done_later.remove(self.done)
            self.done += 1
        whole = None
        while self.batches and self.batches[0][0] + self.batches[0][1].num_rows <= self.done:
            _, whole = self.batches.popleft()
        if self.batches:
            first, batch = self.batches[0]
            # A commit of one row of an entry that was unpacked would be one of all.
            for row in range(self.done - first - 1, max(before - first, 0) - 1, -1):
                if (entry := batch[row]).id != batch[row + 1].id:
                    return entry
        return whole
