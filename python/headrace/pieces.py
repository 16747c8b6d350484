"""The pieces of what a consumer has read: which of them a handler gets next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeAlias

from headrace._headrace import ConsumerBatch, Entry
from headrace.errors import LeaseLostError
from headrace.notices import notice

__all__ = ["Per", "Piece", "Pieces"]

Per: TypeAlias = Literal["batch", "entry", "key"]

#: A lease is checked again after this time. It is a small part of any lease.
_CHECK_SECONDS = 0.05
#: The rows of a batch that are cut into pieces at a time, so that an event loop is not held by a large batch.
_ROWS_AT_A_TIME = 250


class Leases:
    """Whether the entries of a batch are still this consumer's.

    A check looks at every entry of the batch, so that one before each call would take too long.
    """

    __slots__ = ("_are_lost", "_batch", "_checked")

    def __init__(self, batch: ConsumerBatch) -> None:
        self._batch = batch
        self._checked = monotonic()
        self._are_lost = False

    @property
    def are_lost(self) -> bool:
        """Whether other consumers may have taken entries over."""
        if not self._are_lost and (now := monotonic()) - self._checked >= _CHECK_SECONDS:
            self._checked = now
            try:
                self._batch.check()
            except LeaseLostError:
                self._are_lost = True
        return self._are_lost


@dataclass(slots=True, eq=False)
class Piece:
    """What one call of the handler gets."""

    leases: Leases
    #: The argument of the call.
    given: ConsumerBatch | Entry | list[Entry]
    #: While a call has it, no other piece of this key is handled. None: any may be.
    key: Any = None

    @property
    def parts(self) -> Iterable[ConsumerBatch | Entry]:
        """What is acknowledged, failed or released after the call."""
        return self.given if isinstance(self.given, list) else (self.given,)


class Pieces:
    """The pieces that were read and that no call has yet, in their order."""

    def __init__(self, per: Per, key_field: str | bytes | None) -> None:
        self._per = per
        self._key_field = key_field
        #: The batches that are not cut yet, each with its first row that is in no piece.
        self._uncut: deque[tuple[ConsumerBatch, Leases, int]] = deque()
        self._ready: deque[Piece] = deque()
        #: By key: the pieces that come after one that is ready, or that a call has.
        self._behind: dict[Any, deque[Piece]] = {}
        self._count = 0
        self._has_seen_a_key = False

    def __len__(self) -> int:
        """The number of pieces that wait for a call. What is not cut yet counts by its rows."""
        return self._count + sum(batch.num_rows - first for batch, _, first in self._uncut)

    @property
    def is_ready(self) -> bool:
        """Whether a piece may be handled now, apart from what is not cut yet."""
        return bool(self._ready)

    def add(self, batch: ConsumerBatch) -> None:
        """Add what was read."""
        if self._per == "batch":
            self._put(Piece(Leases(batch), batch))
        elif batch.num_rows:
            self._uncut.append((batch, Leases(batch), 0))

    def next(self) -> Piece | None:
        """Return the next piece that may be handled now.

        None: there is none before `handled` or `add` is called.
        """
        if not self._ready and self._uncut:
            self._cut()
        if not self._ready:
            return None
        self._count -= 1
        return self._ready.popleft()

    def handled(self, piece: Piece) -> None:
        """Note that a call is over: the next piece of its key may be handled."""
        if piece.key is None:
            return
        behind = self._behind[piece.key]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[piece.key]

    def take_all(self) -> list[ConsumerBatch | Entry]:
        """Take what no call has."""
        waiting = [*self._ready, *(piece for behind in self._behind.values() for piece in behind)]
        taken = [part for piece in waiting for part in piece.parts]
        # A decision on a batch leaves out the entries that one was made on before.
        taken += [batch for batch, _, _ in self._uncut]
        for emptied in (self._ready, self._behind, self._uncut):
            emptied.clear()
        self._count = 0
        return taken

    def _cut(self) -> None:
        """Cut the next rows. If that fails, they remain."""
        batch, leases, first = self._uncut[0]
        entries = batch[first : first + _ROWS_AT_A_TIME]
        if self._key_field is None:
            pieces = [Piece(leases, entry) for entry in entries]
        else:
            pieces = self._by_key(self._key_field, leases, entries)
        self._uncut.popleft()
        if (end := first + len(entries)) < batch.num_rows:
            self._uncut.appendleft((batch, leases, end))
        for piece in pieces:
            self._put(piece)

    def _by_key(self, key_field: str | bytes, leases: Leases, entries: list[Entry]) -> list[Piece]:
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
        if not by_key and not self._has_seen_a_key:
            notice(
                f"none of the first {len(entries):,} entries has the field {key_field!r}, whose order run keeps: "
                "they are handled in any order"
            )
        self._has_seen_a_key = True
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
