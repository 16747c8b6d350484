"""The pieces of what a consumer has read: which of them a handler gets next, and what becomes of their entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from headrace._headrace import ConsumerBatch, Entry, ShardBatch
from headrace.errors import LeaseLostError
from headrace.notices import notice
from headrace.run_options import RunOptions

__all__ = ["ROWS_AT_A_TIME", "Decision", "Leases", "Piece", "Pieces"]

#: What becomes of the entries of a piece: they are done, they have failed, or they come again.
Decision: TypeAlias = Literal["done", "fail", "release"]

#: The rows of a batch that are cut into pieces at a time, so that an event loop is not held by a large batch.
ROWS_AT_A_TIME = 250


class Leases:
    """Whether the entries of a batch are still this consumer's."""

    __slots__ = ("_are_lost", "_batch", "_checked", "_every")

    def __init__(self, batch: ConsumerBatch | ShardBatch, every: float) -> None:
        self._batch = batch
        #: The seconds between two checks.
        self._every = every
        self._checked = monotonic()
        self._are_lost = False

    @property
    def are_lost(self) -> bool:
        """Whether other consumers may have taken entries over."""
        if not self._are_lost and (now := monotonic()) - self._checked >= self._every:
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
    given: ConsumerBatch | ShardBatch | Entry | list[Entry]
    #: While a call has it, no other piece of this key is handled. None: the field is missing, or there is none.
    key: Any


P = TypeVar("P", bound=Piece)


class Pieces(ABC, Generic[P]):
    """The pieces of one `run`, from the time that they are read until their entries are settled."""

    #: The consumer, as messages name it.
    kind: ClassVar[str]
    #: What a call that returns None does with its entries.
    done: ClassVar[str]

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._has_noted_keys = False

    @abstractmethod
    def __len__(self) -> int:
        """The number of pieces that wait for a call, at most. What is not cut yet counts by its rows."""

    @property
    def is_idle(self) -> bool:
        """Whether only a read can change something, if no call runs."""
        return not len(self)

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether a piece may be handled now."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether more may be read."""

    @abstractmethod
    def add(self, batch: Any) -> None:
        """Add what was read."""

    @abstractmethod
    def next(self) -> P | None:
        """Return the next piece that may be handled now.

        None: there is none before `settle` or `add` is called.
        """

    @abstractmethod
    def settle(self, piece: P, decision: Decision, reason: str = "", *, runs_on: bool = False) -> None:
        """Decide on the entries of a piece. With `runs_on` its call was given up, and `ended` is called later."""

    def ended(self, piece: P) -> None:
        """Note the end of a call that was given up."""

    @property
    def is_due(self) -> bool:
        """Whether `report_failures` has something to do."""
        return False

    def report_failures(self) -> None:
        """Report failures that must not be reported while the consumer reads."""

    @abstractmethod
    def give_back(self) -> None:
        """Give back what no call has. The run is over."""

    def _note_keys(self, key_field: str | bytes, batch: ConsumerBatch | ShardBatch, how: str) -> None:
        """Write a notice if none of the first entries has a key. `how`: how they are handled then."""
        if self._has_noted_keys:
            return
        self._has_noted_keys = True
        entries = batch[:ROWS_AT_A_TIME]
        if all(entry.get(key_field) is None for entry in entries):
            none = f"none of the first {len(entries):,} entries"
            notice(f"{none} has the field {key_field!r}, whose order run keeps: {how}")
