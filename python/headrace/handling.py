"""What the runs in threads and in tasks have in common: what ends them, and what becomes of the entries of a call."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.errors import ConfigError, HeadraceError
from headrace.pieces import Decision, Piece, Pieces
from headrace.reasons import reason_of
from headrace.run_options import RunOptions

__all__ = ["CLOSE_SECONDS", "Handling"]

#: How many seconds the end of a run takes at most, after the grace.
CLOSE_SECONDS = 10.0


class Handling:
    """One `run` of a consumer: the pieces that wait for a call, and what ends it."""

    def __init__(self, consumer: Any, pieces: Pieces[Any], handle: object, options: RunOptions) -> None:
        if not callable(handle):
            message = f"handle must be a function of one argument (per={options.per!r}), got {handle!r}"
            raise ConfigError(message, option="handle")
        #: A `ConsumerBase` or a `ShardConsumerBase`.
        self.consumer = consumer
        self.options = options
        self.pieces = pieces
        #: What ends it.
        self.error: BaseException | None = None
        self._signals = 0

    def signalled(self) -> None:
        """Stop. A signal handler calls it."""
        self._signals += 1
        self.consumer.stop()

    @property
    def is_hurried(self) -> bool:
        """Whether a second signal came: the calls that run are not waited for."""
        return self._signals > 1

    @property
    def is_over(self) -> bool:
        """Whether no further call begins."""
        return self.error is not None or self.consumer._native.is_stopped

    def next(self) -> Piece | None:
        """Return the next piece for a call, or None. What may be another consumer's by now is given back."""
        piece: Piece | None = self.pieces.next()
        while piece is not None and piece.leases.are_lost:
            self.settle(piece, "release")
            piece = self.pieces.next()
        return piece

    def over(
        self, piece: Piece, error: BaseException | None, *, is_mistake: bool = False, runs_on: bool = False
    ) -> None:
        """Decide on the entries of a call that is over, or that was given up and runs on.

        A mistake of the handler, whatever the entries, ends the run.
        """
        if error is None:
            self.settle(piece, "done")
        elif is_mistake or self.options.on_error == "stop" or not isinstance(error, Exception | CancelledError):
            self.end(error)
            self.settle(piece, "release", runs_on=runs_on)
        elif self.options.on_error == "fail":
            self.settle(piece, "fail", reason_of(error, self.consumer.endpoint), runs_on=runs_on)
        else:
            self.settle(piece, "release", runs_on=runs_on)

    def late(self) -> TimeoutError:
        """The exception of a call that took too long."""
        return TimeoutError(f"no result within {self.options.timeout:g} s")

    def returned(self, result: object) -> TypeError:
        """The exception of a call that returned something."""
        return TypeError(f"handle must return None, which {self.pieces.done} its entries, got {result!r:.100}")

    def settle(self, piece: Piece, decision: Decision, reason: str = "", *, runs_on: bool = False) -> None:
        """Decide on the entries of a piece."""
        with self._ends_by_error():
            self.pieces.settle(piece, decision, reason, runs_on=runs_on)

    def report_failures(self) -> None:
        """Report failures. The consumer does not read meanwhile."""
        with self._ends_by_error():
            self.pieces.report_failures()

    def give_back(self) -> None:
        """Give back what no call has."""
        with self._ends_by_error():
            self.pieces.give_back()

    @contextmanager
    def _ends_by_error(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:  # such as a consumer that was closed meanwhile
            self.end(error)

    def end(self, error: BaseException) -> None:
        """Begin no further call, and raise this error in the end. The first one counts."""
        if self.error is None:
            self.error = error

    def raise_error(self) -> None:
        """Raise what ended it."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # a cycle of the exception and this frame
