"""The pieces of what a `Consumer` has read: their entries are settled one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from headrace._headrace import ConsumerBatch, Entry
from headrace.consumer_base import ConsumerBase
from headrace.errors import ConfigError
from headrace.pieces import ROWS_AT_A_TIME, Decision, Leases, Piece, Pieces
from headrace.run_options import RunOptions

__all__ = ["ConsumerPieces"]

#: A lease is checked again after this time, a small part of any lease: a check looks at every entry of the batch.
_CHECK_SECONDS = 0.05


class ConsumerPieces(Pieces[Piece]):
    """The pieces that no call has yet, in their order."""

    kind = "Consumer"
    done = "acknowledges"

    def __init__(self, consumer: ConsumerBase, options: RunOptions) -> None:
        if not consumer._acknowledges:
            message = "run needs a consumer with ack='explicit': with ack='none' entries that fail would be lost"
            raise ConfigError(message, option="ack")
        super().__init__(options)
        self._consumer = consumer
        #: The batches that are not cut yet, each with its first row that is in no piece.
        self._uncut: deque[tuple[ConsumerBatch, Leases, int]] = deque()
        self._ready: deque[Piece] = deque()
        #: By key: the pieces that come after one that is ready, or that a call has.
        self._behind: dict[Any, deque[Piece]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count + sum(batch.num_rows - first for batch, _, first in self._uncut)

    @property
    def is_ready(self) -> bool:
        """Whether a piece may be handled now, apart from what is not cut yet."""
        return bool(self._ready)

    @property
    def has_room(self) -> bool:
        """Whether fewer pieces wait than there are calls at a time."""
        return len(self) < self._options.concurrency

    def add(self, batch: ConsumerBatch) -> None:
        """Add what was read."""
        leases = Leases(batch, _CHECK_SECONDS)
        if self._options.per == "batch":
            self._put(Piece(leases, batch, None))
        elif batch.num_rows:
            self._uncut.append((batch, leases, 0))

    def next(self) -> Piece | None:
        """Return the next piece that may be handled now."""
        if not self._ready and self._uncut:
            self._cut()
        if not self._ready:
            return None
        self._count -= 1
        return self._ready.popleft()

    def settle(self, piece: Piece, decision: Decision, reason: str = "", *, runs_on: bool = False) -> None:  # noqa: ARG002
        """Decide on the entries of a piece. Those that the handler has decided on are left out.

        The next piece of its key may be handled, even if the call runs on.
        """
        try:
            for part in _parts(piece):
                if decision == "done":
                    self._consumer.ack(part)
                elif decision == "fail":
                    self._consumer.fail(part, reason)
                else:
                    self._consumer.release(part)
        finally:
            self._handled(piece)

    def give_back(self) -> None:
        """Release what no call has."""
        waiting = [*self._ready, *(piece for behind in self._behind.values() for piece in behind)]
        taken = [part for piece in waiting for part in _parts(piece)]
        # A decision on a batch leaves out the entries that one was made on before.
        taken += [batch for batch, _, _ in self._uncut]
        for emptied in (self._ready, self._behind, self._uncut):
            emptied.clear()
        self._count = 0
        for part in taken:
            self._consumer.release(part)

    def _handled(self, piece: Piece) -> None:
        """Let the next piece of its key be handled."""
        if piece.key is None:
            return
        behind = self._behind[piece.key]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[piece.key]

    def _cut(self) -> None:
        """Cut the next rows. If that fails, they remain."""
        batch, leases, first = self._uncut[0]
        entries = batch[first : first + ROWS_AT_A_TIME]
        if (key_field := self._options.key_field) is None:
            pieces = [Piece(leases, entry, None) for entry in entries]
        else:
            self._note_keys(key_field, batch, "they are handled in any order")
            pieces = self._by_key(key_field, leases, entries)
        self._uncut.popleft()
        if (end := first + len(entries)) < batch.num_rows:
            self._uncut.appendleft((batch, leases, end))
        for piece in pieces:
            self._put(piece)

    @staticmethod
    def _by_key(key_field: str | bytes, leases: Leases, entries: list[Entry]) -> list[Piece]:
        by_key: dict[Any, list[Entry]] = {}
        pieces = []
        for entry in entries:
            key = entry.get(key_field)
            if key is not None and (same := by_key.get(key)) is not None:
                same.append(entry)
                continue
            alone = [entry]
            pieces.append(Piece(leases, alone, key))
            if key is not None:
                by_key[key] = alone
        return pieces

    def _put(self, piece: Piece) -> None:
        self._count += 1
        if piece.key is None:
            self._ready.append(piece)
        elif piece.key in self._behind:
            self._behind[piece.key].append(piece)
        else:
            self._behind[piece.key] = deque()
            self._ready.append(piece)


def _parts(piece: Piece) -> Iterable[Any]:
    """What is acknowledged, failed or released after the call."""
    return piece.given if isinstance(piece.given, list) else (piece.given,)
