"""Sends blocks of rows, and turns their outcomes into counts, dead letters or an early end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace_command.send.rows import Block, Prepared, Rows
from headrace_command.send.tally import BAD_ROW, Tally

if TYPE_CHECKING:
    from headrace import DeliveryReport, Dispatcher, Failure
    from headrace_command.send.letters import Letters

__all__ = ["Refusals", "Refused", "Sender", "StoppedError"]

#: The most bytes and rows that are kept until their outcomes arrive.
_MOST_BYTES = 16 << 20
_MOST_ROWS = 262_144


class Sender:
    """Sends blocks in order. What was sent is kept until its outcome is known, for dead letters.

    Args:
        dispatcher: Sends the rows.
        rows: Makes rows of a block.
        letters: Where bad rows go; None: nowhere.
        tally: Counts the outcomes.
        stops: Whether the first bad row ends it.
        resumes: Whether another run continues where this one ends. Such a run sends the rows that failed only because
            they follow a bad row, and those that another fault stopped.
        linger: Seconds after which rows are sent, if the input is a pipe.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        rows: Rows,
        letters: Letters | None,
        tally: Tally,
        *,
        stops: bool,
        resumes: bool,
        linger: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._rows = rows
        self._letters = letters
        self._tally = tally
        self.stops = stops
        self._resumes = resumes
        self._linger = linger
        #: What was produced since the last flush: the ordinal of its first row, and the rows.
        self._open: list[tuple[int, Prepared]] = []
        self._produced = 0
        self._bytes = 0
        self._sent_at = 0.0
        #: The counts of all reports so far.
        self._delivered = self._deduplicated = self._failed = 0

    @property
    def open(self) -> int:
        """Rows that were passed to the dispatcher and have no outcome yet."""
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
            StoppedError: A bad row ends it. All rows before it have their outcomes.
        """
        prepared = self._rows.prepare(block)
        first_bad = self.end_of(prepared)
        if first_bad is not None:
            self._produce(prepared.before(first_bad))
            self.settle()
            self._tally.fail(block.place(first_bad), BAD_ROW, prepared.bad[first_bad])
            raise StoppedError
        self.fail_bad([prepared], None)
        self._produce(prepared)
        if self._bytes >= _MOST_BYTES or self._produced >= _MOST_ROWS:
            self.settle()
        elif self._linger and time.monotonic() - self._sent_at >= self._linger:
            self._take(self._dispatcher.poll())
            self._sent_at = time.monotonic()

    def end_of(self, prepared: Prepared) -> int | None:
        """Return the index of the row that ends it, if any."""
        return min(prepared.bad, default=None) if self.stops else None

    def deliver(self, parts: Sequence[Prepared]) -> Refusals:
        """Send rows, wait for their outcomes, and count those that are in the stream. Return the others."""
        for prepared in parts:
            self._produce(prepared)
        refused = [self._place(failure) for failure in self._count(self._dispatcher.flush())]
        refused.sort(key=lambda row: row.ordinal)
        refusals = Refusals(refused, self._produced)
        self._clear()
        return refusals

    def fail_bad(self, parts: Sequence[Prepared], end: tuple[int, int] | None) -> None:
        """Count the bad rows before `end`, the index of a part and of a row in its block, and write their letters."""
        for part, prepared in enumerate(parts):
            for at, reason in prepared.bad.items():
                if end is None or (part, at) < end:
                    self._tally.fail(prepared.block.place(at), BAD_ROW, reason)
                    if self._letters is not None:
                        self._letters.add(
                            prepared.block, at, kind="permanent", code=BAD_ROW, message=reason, written="no"
                        )

    def fail(self, row: Refused, *, is_away: bool) -> None:
        """Count a row that was refused, and write its letter unless the server is unreachable."""
        failure = row.failure
        # In a resumable import the marker shows that the row was not written; other batches can leave that open.
        written = "no" if self._resumes and row.is_at_fault else failure.written
        self._tally.fail(
            row.block.place(row.at),
            failure.code,
            failure.message,
            is_unknown=written == "unknown",
            is_of_connection=is_away,
        )
        if self._letters is not None and (row.is_at_fault if self._resumes else not is_away):
            self._letters.add(
                row.block,
                row.at,
                kind=failure.kind,
                code=failure.code,
                message=failure.message,
                written=written,
            )

    def flush_letters(self) -> None:
        """Wait until the letters are written."""
        if self._letters is not None:
            self._letters.flush()

    def settle(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all rows, for at most `timeout` seconds.

        Raises:
            StoppedError: A row that the server refused ends it, or the server is unreachable.
        """
        self._take(self._dispatcher.flush(timeout))
        self._clear()
        self.flush_letters()

    def reconcile(self) -> None:
        """Count the outcomes of a report that was lost to a signal, which may arrive between a call and its return."""
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

    def _clear(self) -> None:
        self._open, self._produced, self._bytes = [], 0, 0
        self._sent_at = time.monotonic()

    def _take(self, report: DeliveryReport) -> None:
        """Count outcomes. Those of a poll, too, have ordinals that count from the last flush."""
        failed = self._count(report)
        # The server ends the connection over such a row, so rows that failed with it do not mean that it is
        # unreachable.
        is_ended_by_row = any(failure.code == "TOO_LARGE" for failure in failed)
        for row in map(self._place, failed):
            if not (self._resumes and row.is_blocked):
                self.fail(row, is_away=row.is_of_connection and not is_ended_by_row)
        if (failed and self.stops) or self._tally.unreachable:
            raise StoppedError

    def _count(self, report: DeliveryReport) -> Sequence[Failure]:
        """Count what is in the stream, and return what is not."""
        failed = report.failed
        self._delivered += report.delivered
        self._deduplicated += report.deduplicated
        self._failed += len(failed)
        self._tally.delivered += report.delivered
        self._tally.deduplicated += report.deduplicated
        return failed

    def _place(self, failure: Failure) -> Refused:
        ordinal = int(failure.message_id)
        part = next(at for at in reversed(range(len(self._open))) if self._open[at][0] <= ordinal)
        first, prepared = self._open[part]
        return Refused(prepared.block, part, prepared.indices[ordinal - first], ordinal, failure)


class Refusals:
    """The rows of an ordered batch that are not in the stream.

    Args:
        rows: These rows, in order.
        count: How many rows were sent.
    """

    def __init__(self, rows: Sequence[Refused], count: int) -> None:
        blocked = next((row for row in rows if row.is_blocked), None)
        #: The first row that failed only because it follows a refused one. Neither it nor any row after it was tried.
        self.blocked = blocked
        self._end = count if blocked is None else blocked.ordinal
        #: The rows that failed on their own.
        self.own = [row for row in rows if row.ordinal < self._end]
        if blocked is not None and (not self.own or self.own[-1].ordinal + 1 != self._end):
            self.own.append(blocked)  # the report does not name the row before it

    @property
    def are_of_rows(self) -> bool:
        """Whether each row is itself at fault, so that the others can be sent."""
        return all(row.is_at_fault for row in self.own)

    @property
    def first_untried(self) -> tuple[int, int] | None:
        """The part and the index of the first row that was not tried."""
        return None if self.blocked is None else self.blocked.position

    @property
    def first_unwritten(self) -> tuple[int, int] | None:
        """The part and the index of the first row after all that are in the stream; None if the last row is.

        A row that the dispatcher cannot encode does not hold back others, so it may precede rows that are in the
        stream.
        """
        ordinal, position = self._end, self.first_untried
        for row in reversed(self.own):
            if row.ordinal + 1 != ordinal:
                break
            ordinal, position = row.ordinal, row.position
        return position


class Refused(NamedTuple):
    """A row that is not, or may not be, in the stream.

    Attributes:
        block: The block of the row.
        part: The index of the block among those that were sent together.
        at: The index of the row in its block.
        ordinal: The number of the row among those that were sent together.
        failure: Why it failed.
    """

    block: Block
    part: int
    at: int
    ordinal: int
    failure: Failure

    @property
    def position(self) -> tuple[int, int]:
        """The part, and the index of the row in its block."""
        return self.part, self.at

    @property
    def is_at_fault(self) -> bool:
        """Whether no server would accept it, whatever precedes it."""
        from headrace.tables import ROW_CODES

        return self.failure.code in ROW_CODES

    @property
    def is_blocked(self) -> bool:
        """Whether it failed only because it follows a row that failed."""
        return self.failure.code == "BLOCKED"

    @property
    def is_of_connection(self) -> bool:
        """Whether there was no connection, or a missing right."""
        from headrace.tables import CONNECTION_CODES

        return self.failure.code in (*CONNECTION_CODES, "NOPERM", "NOAUTH", "WRONGPASS")


class StoppedError(Exception):
    """A row is bad, and the command must stop there. The tally includes the row."""
