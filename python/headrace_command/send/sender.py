"""Sends blocks of rows, and turns their outcomes into counts, dead letters or an end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from headrace_command.send.block import Block
from headrace_command.send.prepared import Prepared
from headrace_command.send.stopped import StoppedError
from headrace_command.send.tally import BAD_ROW, Tally

if TYPE_CHECKING:
    from headrace import DeliveryReport, Dispatcher, Failure
    from headrace_command.send.letters import Letters

__all__ = ["Rows", "Sender"]

#: What is kept until its outcomes are there.
_MOST_BYTES = 16 << 20
_MOST_ROWS = 262_144


class Rows(Protocol):
    """Makes rows of blocks."""

    def prepare(self, block: Block) -> Prepared:
        """Put the rows of a block into the form in which they are produced."""

    def pass_over(self, block: Block, /) -> int:
        """Keep what later blocks need of one that is in the stream. Returns how many of its rows are a header."""


class Sender:
    """Sends blocks in their order. What was sent is kept until its outcome is known, for dead letters.

    Args:
        dispatcher: What sends.
        rows: What makes rows of a block.
        letters: Where bad rows go; None: nowhere.
        tally: What counts.
        stops: Whether the first bad row ends it.
        linger: Seconds after which rows are sent, if the input is a pipe.
    """

    def __init__(
        self, dispatcher: Dispatcher, rows: Rows, letters: Letters | None, tally: Tally, *, stops: bool, linger: float
    ) -> None:
        self._dispatcher = dispatcher
        self._rows = rows
        self._letters = letters
        self._tally = tally
        self._stops = stops
        self._linger = linger
        #: What was produced since the last flush: the ordinal of its first row, and the rows.
        self._open: list[tuple[int, Prepared]] = []
        self._produced = 0
        self._bytes = 0
        self._sent_at = 0.0
        #: What reports said so far.
        self._delivered = self._deduplicated = self._failed = 0

    @property
    def open(self) -> int:
        """Rows that were handed over and have no outcome yet."""
        return self._dispatcher.unreported

    def send_all(self, blocks: Iterable[Block | None]) -> None:
        """Send blocks, and wait for their outcomes at the end, and where the input pauses.

        Raises:
            StoppedError: As `send`.
        """
        for block in blocks:
            if block is None:
                self.settle()
            else:
                self.send(block)
        self.settle()

    def send(self, block: Block) -> None:
        """Send the rows of a block.

        Raises:
            StoppedError: A row is bad, and that ends it. All rows before it have their outcomes.
        """
        self.send_prepared(self._rows.prepare(block))

    def end_of(self, prepared: Prepared) -> int | None:
        """The index of the row that ends it, if there is one."""
        return min(prepared.bad, default=None) if self._stops else None

    def send_prepared(self, prepared: Prepared) -> None:
        """Send rows that are prepared.

        Raises:
            StoppedError: As `send`.
        """
        block, first_bad = prepared.block, self.end_of(prepared)
        if first_bad is not None:
            self._produce(prepared.before(first_bad))
            self.settle()
            self._tally.fail(block.place(first_bad), BAD_ROW, prepared.bad[first_bad])
            raise StoppedError
        for at, reason in prepared.bad.items():
            self._tally.fail(block.place(at), BAD_ROW, reason)
            if self._letters is not None:
                self._letters.add(block, at, kind="permanent", code=BAD_ROW, message=reason, written="no")
        self._produce(prepared)
        if self._bytes >= _MOST_BYTES or self._produced >= _MOST_ROWS:
            self.settle()
        elif self._linger and time.monotonic() - self._sent_at >= self._linger:
            self._take(self._dispatcher.poll())
            self._sent_at = time.monotonic()

    def settle(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all rows, for `timeout` seconds at most.

        Raises:
            StoppedError: The server refused a row, and that ends it; or it is away.
        """
        self._take(self._dispatcher.flush(timeout))
        self._open, self._produced, self._bytes = [], 0, 0
        self._sent_at = time.monotonic()
        if self._letters is not None:
            self._letters.flush()

    def reconcile(self) -> None:
        """Count what a report said that a signal took away: it may come between the call and its return."""
        stats, tally = self._dispatcher.stats(), self._tally
        tally.deduplicated += stats.deduplicated - self._deduplicated
        tally.delivered += stats.delivered - self._delivered
        for _ in range(stats.failed - self._failed):
            tally.fail("a row", "INTERRUPTED", "its outcome came with the signal, and was not seen", is_unknown=True)

    def _produce(self, prepared: Prepared) -> None:
        if not self._open:
            self._sent_at = time.monotonic()
        self._open.append((self._produced, prepared))
        self._produced += len(prepared.indices)
        self._bytes += prepared.block.size
        prepared.produce(self._dispatcher)

    def _take(self, report: DeliveryReport) -> None:
        """Count outcomes. Those of a poll have ordinals since the last flush too."""
        failed = report.failed
        self._delivered += report.delivered
        self._deduplicated += report.deduplicated
        self._failed += len(failed)
        self._tally.delivered += report.delivered
        self._tally.deduplicated += report.deduplicated
        for failure in failed:
            self._fail(failure)
        if (failed and self._stops) or self._tally.unreachable:
            raise StoppedError

    def _fail(self, failure: Failure) -> None:
        from headrace.tables import CONNECTION_CODES

        ordinal = int(failure.message_id)
        first, prepared = next(item for item in reversed(self._open) if item[0] <= ordinal)
        at = prepared.indices[ordinal - first]
        is_unknown, of_connection = (
            failure.written == "unknown",
            failure.code in (*CONNECTION_CODES, "NOPERM", "NOAUTH"),
        )
        place = prepared.block.place(at)
        self._tally.fail(place, failure.code, failure.message, is_unknown=is_unknown, is_of_connection=of_connection)
        if self._letters is not None and not of_connection:
            self._letters.add(
                prepared.block,
                at,
                kind=failure.kind,
                code=failure.code,
                message=failure.message,
                written=failure.written,
            )
