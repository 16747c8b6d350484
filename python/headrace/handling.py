"""What `Consumer.run` and `AsyncConsumer.run` have in common: options, and what becomes of the entries of a call."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.consumer_base import ConsumerBase
from headrace.errors import ConfigError, HeadraceError
from headrace.pieces import Per, Piece, Pieces
from headrace.reasons import reason_of

__all__ = ["CLOSE_SECONDS", "Handling", "OnError", "RunOptions"]

OnError: TypeAlias = Literal["fail", "release", "stop"]

#: How many seconds the end of a run takes at most, after the grace.
CLOSE_SECONDS = 10.0
_MOST_CALLS = 10_000
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run`."""

    per: Per
    key_field: str | bytes | None
    concurrency: int
    timeout: float | None
    on_error: OnError
    grace: float

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("per", self.per, ("batch", "entry", "key")),
            ("on_error", self.on_error, ("fail", "release", "stop")),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{option} must be one of {', '.join(map(repr, allowed))}, got {value!r}", option=option
                )
        is_field = isinstance(self.key_field, str | bytes)
        if is_field != (self.per == "key") or not (is_field or self.key_field is None):
            message = (
                f"key_field must be the field with the key if per is 'key', and None otherwise, got {self.key_field!r}"
            )
            raise ConfigError(message, option="key_field")
        if not _is_number(self.concurrency, int) or not 1 <= self.concurrency <= _MOST_CALLS:
            message = f"concurrency must be an integer from 1 to {_MOST_CALLS:,}, got {self.concurrency!r}"
            raise ConfigError(message, option="concurrency")
        if self.timeout is not None and not (_is_number(self.timeout, int | float) and 0 < self.timeout <= _DAY):
            message = f"timeout must be a number of seconds above 0, at most {_DAY:,}, or None, got {self.timeout!r}"
            raise ConfigError(message, option="timeout")
        if not (_is_number(self.grace, int | float) and 0 <= self.grace <= _DAY):
            message = f"grace must be a number of seconds from 0 to {_DAY:,}, got {self.grace!r}"
            raise ConfigError(message, option="grace")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


class Handling:
    """One `run` of a consumer: the pieces that wait for a call, and what ends it."""

    def __init__(self, consumer: ConsumerBase, handle: object, options: RunOptions) -> None:
        if not callable(handle):
            message = f"handle must be a function of one argument (per={options.per!r}), got {handle!r}"
            raise ConfigError(message, option="handle")
        if not consumer._acknowledges:
            message = "run needs a consumer with ack='explicit': with ack='none' entries that fail would be lost"
            raise ConfigError(message, option="ack")
        self.consumer = consumer
        self.options = options
        self.pieces = Pieces(options.per, options.key_field)
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
        while (piece := self.pieces.next()) is not None:
            if not piece.leases.are_lost:
                return piece
            self.settle(piece, None, "release")
        return None

    @property
    def has_room(self) -> bool:
        """Whether more may be read."""
        return len(self.pieces) < self.options.concurrency

    def over(self, piece: Piece, error: BaseException | None, *, is_mistake: bool = False) -> None:
        """Acknowledge the entries of a call that is over, or decide on them because of its exception.

        A mistake of the handler, whatever the entries, ends the run.
        """
        if error is None:
            self.settle(piece, None, "ack")
        elif is_mistake or self.options.on_error == "stop" or not isinstance(error, Exception | CancelledError):
            self.end(error)
            self.settle(piece, None, "release")
        elif self.options.on_error == "fail":
            self.settle(piece, reason_of(error, self.consumer.endpoint), "fail")
        else:
            self.settle(piece, None, "release")

    def late(self) -> TimeoutError:
        """The exception of a call that took too long."""
        return TimeoutError(f"no result within {self.options.timeout:g} s")

    def settle(self, piece: Piece, reason: str | None, decision: Literal["ack", "fail", "release"]) -> None:
        """Decide on the entries of a piece. Those that the handler has decided on are left out."""
        try:
            for part in piece.parts:
                if decision == "ack":
                    self.consumer.ack(part)
                elif decision == "fail":
                    self.consumer.fail(part, reason or "")
                else:
                    self.consumer.release(part)
        except HeadraceError as error:  # such as a consumer that was closed meanwhile
            self.end(error)
        self.pieces.handled(piece)

    def end(self, error: BaseException) -> None:
        """Begin no further call, and raise this error in the end. The first one counts."""
        if self.error is None:
            self.error = error

    def give_back(self) -> None:
        """Give back what no call has."""
        try:
            for part in self.pieces.take_all():
                self.consumer.release(part)
        except HeadraceError as error:
            self.end(error)

    def raise_error(self) -> None:
        """Raise what ended it."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # a cycle of the exception and this frame
