"""The pieces of what a `ShardConsumer` has read: what is done at the beginning of each stream is committed."""

from __future__ import annotations

from collections import deque

from headrace._headrace import Entry, ShardBatch
from headrace.errors import StateError
from headrace.pieces import ROWS_AT_A_TIME, Decision, Leases, Pieces
from headrace.run_options import RunOptions
from headrace.shard_consumer_base import ShardConsumerBase
from headrace.shard_line import ShardLine, ShardPiece

__all__ = ["ShardPieces"]

#: After a process has ended, the entry that may have ended it is among as many batches, if they have one entry each.
_SUSPECTS = 3
#: For each call at a time: the most batches in hand, and the most rows if batches are small.
_BATCHES = 2
_ROWS = 100


class ShardPieces(Pieces[ShardPiece]):
    """The pieces of each stream, in its order.

    A piece without a key is handled alone in its stream: after everything before it, and before everything after it.
    So is each batch, each entry with `per="entry"`, and each entry without the field with the key.
    """

    kind = "ShardConsumer"
    done = "commits"

    def __init__(self, consumer: ShardConsumerBase, options: RunOptions) -> None:
        if consumer._has_run:
            raise StateError(
                "the consumer has run, and does not return again what it had in hand in the end: close it, and create "
                "a new one"
            )
        super().__init__(options)
        self._consumer = consumer
        #: By stream.
        self._lines: dict[bytes, ShardLine] = {}
        #: Those with an entry that may end the process. It is blamed only if nothing else of its stream is in hand.
        self._suspects: set[ShardLine] = set()
        #: Those of which more may be cut.
        self._uncut: deque[ShardLine] = deque()
        self._ready: deque[ShardPiece] = deque()
        #: Those with a failure, and without a call that runs.
        self._due: list[ShardLine] = []
        #: What was read and is not committed, of the lines all of which is to be handled.
        self._batches = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._batches if self._options.per == "batch" else self._rows

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in hand, and no failure waits for the end of a call."""
        return not self._rows and all(line.failed is None or line.is_dropped for line in self._lines.values())

    @property
    def is_ready(self) -> bool:
        """Whether a piece may be handled now."""
        return bool(self._ready or self._uncut)

    @property
    def has_room(self) -> bool:
        """Whether calls could begin if more were read, and not too much is in hand."""
        most = self._options.concurrency
        if self._suspects or len(self._ready) + len(self._uncut) >= most:
            return False
        return self._batches < _BATCHES * most or self._rows < _ROWS * most

    def add(self, batch: ShardBatch) -> None:
        """Add what was read, unless it comes again: after what has failed."""
        line = self._lines.get(batch.stream)
        if line is None or line.epoch != batch.epoch:
            if line is not None:
                self._drop(line)
            line = self._lines[batch.stream] = ShardLine(batch.stream, batch.epoch)
        if not line.is_live:  # it comes again
            return
        is_cut = not line.uncut
        line.add(batch)
        self._batches += 1
        self._rows += batch.num_rows
        if not batch.num_rows:
            self._finish(line, range(line.done, line.done))
            return
        if line.count <= _SUSPECTS and batch.first_id == batch.last_id:
            self._suspects.add(line)
        if is_cut and not line.waits:
            self._uncut.append(line)

    def next(self) -> ShardPiece | None:
        """Return the next piece that may be handled now."""
        while not self._ready and self._uncut:
            self._cut(self._uncut.popleft())
        return self._ready.popleft() if self._ready else None

    def settle(self, piece: ShardPiece, decision: Decision, reason: str = "", *, runs_on: bool = False) -> None:
        """Commit, fail or drop the entries of a piece.

        Nothing that must come after it is handled as long as its call runs on.
        """
        try:
            if decision == "done":
                self._finish(piece.line, piece.rows)
            elif decision == "release":
                self._drop(piece.line)
            elif isinstance(piece.given, list) and len(piece.given) > 1 and not runs_on:
                self._split(piece)
            else:
                self._fail(piece, reason)
        finally:
            if not runs_on:
                self.ended(piece)

    def ended(self, piece: ShardPiece) -> None:
        """Let what comes after a piece be handled: its call has ended."""
        line = piece.line
        line.open -= 1
        if piece.key is not None:
            if behind := line.behind[piece.key]:
                self._ready.append(behind.popleft())
            else:
                del line.behind[piece.key]
        self._go_on(line)

    @property
    def is_due(self) -> bool:
        """Whether a stream with a failure has no call that runs."""
        return bool(self._due)

    def report_failures(self) -> None:
        """Fail the pieces that were the first of their lines to fail.

        While the consumer reads, it might return what comes after them before they come again.
        """
        due, self._due = self._due, []
        for line in due:
            self._report(line)

    def give_back(self) -> None:
        """Report the failures, and drop everything else: only another consumer gets it."""
        self._consumer._has_run = True
        self._consumer.stop()
        lines = [*self._lines.values()]
        for emptied in (self._lines, self._suspects, self._uncut, self._ready, self._due):
            emptied.clear()
        self._batches = self._rows = 0
        for line in lines:
            self._report(line)

    def _cut(self, line: ShardLine) -> None:
        """Cut the next rows of a line."""
        first, batch, leases, row = line.uncut.popleft()
        if self._options.per == "batch":
            end = batch.num_rows
            self._put(ShardPiece(leases, batch, None, line, batch, range(first, first + end)))
        elif self._options.key_field is None:
            end = row + 1
            self._put(ShardPiece(leases, batch[row], None, line, batch, range(first + row, first + end)))
        else:
            end = self._cut_by_key(self._options.key_field, line, first, batch, leases, row)
        if end < batch.num_rows:
            line.uncut.appendleft((first, batch, leases, end))
        if line.uncut and not line.waits:
            self._uncut.append(line)

    def _cut_by_key(
        self, key_field: str | bytes, line: ShardLine, first: int, batch: ShardBatch, leases: Leases, row: int
    ) -> int:
        """Cut rows up to one without the field, or that one. Return the row after them."""
        self._note_keys(key_field, batch, "those of a stream are handled one after the other")
        entry = batch[row]
        if entry.get(key_field) is None:
            if line.open:
                line.waits = True
                return row
            self._put(ShardPiece(leases, [entry], None, line, batch, [first + row]))
            return row + 1
        by_key: dict[object, tuple[list[Entry], list[int]]] = {}
        for entry in batch[row : row + ROWS_AT_A_TIME]:
            if (key := entry.get(key_field)) is None:
                break
            same, rows = by_key.setdefault(key, ([], []))
            same.append(entry)
            rows.append(first + row)
            row += 1
        for key, (same, rows) in by_key.items():
            self._put(ShardPiece(leases, same, key, line, batch, rows))
        return row

    def _put(self, piece: ShardPiece) -> None:
        line = piece.line
        line.open += 1
        if piece.key is None:
            line.waits = True
            self._ready.append(piece)
        elif piece.key in line.behind:
            line.behind[piece.key].append(piece)
        else:
            line.behind[piece.key] = deque()
            self._ready.append(piece)

    def _split(self, piece: ShardPiece) -> None:
        """Let the entries of a call that failed be handled again one by one: only the one that fails is blamed."""
        line, given = piece.line, piece.given
        assert isinstance(given, list)
        alone = [
            ShardPiece(piece.leases, [entry], piece.key, line, piece.batch, [row])
            for entry, row in zip(given, piece.rows, strict=True)
            if line.wants(row)
        ]
        line.open += len(alone)
        line.behind[piece.key].extendleft(reversed(alone))

    def _finish(self, line: ShardLine, rows: range | list[int]) -> None:
        """Note that rows are done, and commit the beginning that is."""
        self._count(line, -1)
        last = line.finish(rows)
        self._count(line, 1)
        if not line.batches:
            self._suspects.discard(line)
        if last is not None:
            self._consumer.commit(last)

    def _fail(self, piece: ShardPiece, reason: str) -> None:
        """Drop what comes after a piece that failed. What comes before it is handled: a failure commits it."""
        line = piece.line
        if line.wants(piece.first):
            self._count(line, -1)
            line.failed = piece, reason
            self._discard(line, piece.first)

    def _drop(self, line: ShardLine) -> None:
        """Drop what no call has of a line."""
        self._count(line, -1)
        line.is_dropped = True
        self._discard(line, -1)

    def _count(self, line: ShardLine, factor: int) -> None:
        if line.is_live:
            self._batches += factor * len(line.batches)
            self._rows += factor * line.rows

    def _discard(self, line: ShardLine, row: int) -> None:
        """Forget the pieces that begin after a row and that no call has."""
        ready = [piece for piece in self._ready if piece.line is line and piece.first > row]
        for piece in ready:
            self._ready.remove(piece)
            line.open -= 1
            if piece.key is not None:  # those behind it begin later still
                line.open -= len(line.behind.pop(piece.key))
        for behind in line.behind.values():
            while behind and behind[-1].first > row:
                behind.pop()
                line.open -= 1
        line.uncut.clear()
        self._suspects.discard(line)
        if line in self._uncut:
            self._uncut.remove(line)

    def _go_on(self, line: ShardLine) -> None:
        """Do what waits for the end of all calls of a line."""
        if line.open or line.is_dropped:
            return
        if line.failed is not None:
            self._due.append(line)
        elif line.waits:
            line.waits = False
            if line.uncut:
                self._uncut.append(line)

    def _report(self, line: ShardLine) -> None:
        """Report the failure of a line, if everything before it is done."""
        if self._lines.get(line.stream) is line:
            del self._lines[line.stream]
        if line.failed is None or line.is_dropped:
            return
        piece, reason = line.failed
        if line.done == piece.first:
            # Which entry of a call that ran on has failed is not known: the consumer finds out, by smaller batches.
            self._consumer.fail(piece.batch if piece.entry is None else piece.entry, reason)
