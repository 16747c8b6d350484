"""What became of the messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from headrace.errors import DeliveryError

if TYPE_CHECKING:
    from headrace import _headrace

__all__ = ["DeliveryReport", "Failure"]

#: Failures that are kept of a report that nobody looked at, and that an error carries.
FIRST_FAILURES = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not delivered.

    Attributes:
        message_id: The caller's name for the message: what was given to `produce`, else the ordinal since the last
            flush.
        kind: `"permanent"`: waiting changes nothing; `"retryable"`: the same message may be delivered later.
        code: The first word of the server's error reply (`"OOM"`), or one of headrace's own codes (`"TIMEOUT"`).
        message: What happened, in a sentence of at most 256 characters: no secret, no payload.
        written: `"no"`: the message is not in the stream; `"unknown"`: it may be.
    """

    message_id: int | str
    kind: Literal["permanent", "retryable"]
    code: str
    message: str
    written: Literal["no", "unknown"]


class DeliveryReport:
    """One outcome for each of a run of messages, in the order in which they were produced.

    Nothing is built per message until it is asked for. A report counts as *looked at* once `failed`, `failed_ids`,
    `to_arrow`, `raise_for_failures` or `ok` was read; failures that nobody looked at raise when the dispatcher is
    closed.
    """

    def __init__(self, native: _headrace.Report) -> None:
        self._native = native
        self._unseen: Unseen | None = Unseen(native) if native.failed else None

    @property
    def delivered(self) -> int:
        """How many messages are in their stream."""
        return self._native.delivered

    @property
    def deduplicated(self) -> int:
        """How many of `delivered` were there before, written by an earlier try (`Dispatcher.begin`)."""
        return self._native.deduplicated

    @property
    def retries(self) -> int:
        """How many times a message was sent again, those included whose outcome another report tells."""
        return self._native.retries

    @property
    def possible_duplicates(self) -> int:
        """How many of `retries` may have written a message a second time (`RetryPolicy.retry_unknown`)."""
        return self._native.possible_duplicates

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        self._look()
        return self._native.failed == 0

    @cached_property
    def _failed(self) -> list[Failure]:
        return [Failure(*failure) for failure in self._native.failures()]

    @property
    def failed(self) -> list[Failure]:
        """The messages that were not delivered, in order."""
        self._look()
        return self._failed

    @property
    def failed_ids(self) -> list[int | str]:
        """The message IDs of `failed`, as they were given."""
        self._look()
        return self._native.failed_ids()

    @property
    def failed_by_code(self) -> dict[str, int]:
        """How many messages failed with each code. Reading it does not count as looking: it names no message."""
        return self._native.failed_by_code()

    def to_arrow(self, *, only_failed: bool = False) -> _headrace.Outcomes:
        """Give all outcomes to any Arrow library, one row per message, in order.

        Args:
            only_failed: Leave out the messages that were delivered. Default False.

        The object has `__arrow_c_stream__`: `pyarrow.table(report.to_arrow())`, `polars.DataFrame(report.to_arrow())`,
        `pyarrow.RecordBatchReader.from_stream(report.to_arrow())`. The record batches, of at most 65,536 rows, are made
        as they are read.

        Columns, all utf8: `message_id` (ints in decimal), `entry_id` (null where the message failed), and `kind`,
        `code`, `message`, `written` (null where it was delivered).
        """
        self._look()
        return self._native.to_arrow(only_failed)

    def raise_for_failures(self) -> DeliveryReport:
        """Return this report if nothing failed.

        Raises:
            DeliveryError: Something failed.
        """
        unseen = self._unseen
        self._look()
        if unseen is not None:
            raise delivery_error([unseen], delivered=self.delivered)
        return self

    def __len__(self) -> int:
        """How many messages the report tells of."""
        return self._native.delivered + self._native.failed

    def __repr__(self) -> str:
        failed = ", ".join(f"{code} {count:,}" for code, count in self.failed_by_code.items())
        codes = f" ({failed})" if failed else ""
        return f"<DeliveryReport: {self.delivered:,} delivered, {self._native.failed:,} failed{codes}>"

    def __bool__(self) -> bool:
        # Without this an empty report would be false, and `if report:` would look as if it told of success.
        return True

    def _look(self) -> None:
        if self._unseen is not None:
            self._unseen.looked_at = True


class Unseen:
    """What is kept of the failures of a report until somebody looks at it: counts, and the first ten."""

    __slots__ = ("failed", "failed_by_code", "first", "looked_at")

    def __init__(self, native: _headrace.Report) -> None:
        self.looked_at = False
        self.failed = native.failed
        self.failed_by_code = native.failed_by_code()
        self.first = tuple(Failure(*failure) for failure in native.failures(FIRST_FAILURES))

    def absorb(self, other: Unseen) -> None:
        """Add the counts of a report that was dropped without a look."""
        self.failed += other.failed
        for code, count in other.failed_by_code.items():
            self.failed_by_code[code] = self.failed_by_code.get(code, 0) + count
        self.first = (self.first + other.first)[:FIRST_FAILURES]


def delivery_error(unseen: Iterable[Unseen], *, delivered: int = 0) -> DeliveryError:
    """Make the error that tells of these failures, and of `delivered` messages beside them."""
    reports = iter(unseen)
    total = next(reports)
    codes, failed, first = dict(total.failed_by_code), total.failed, total.first
    for report in reports:
        failed += report.failed
        first = (first + report.first)[:FIRST_FAILURES]
        for code, count in report.failed_by_code.items():
            codes[code] = codes.get(code, 0) + count
    counts = ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()))
    example = first[0]
    of_all = f" of {failed + delivered:,}" if delivered else ""
    message = (
        f"{failed:,}{of_all} messages were not delivered ({counts}); "
        f"the first, {example.message_id!r}: {example.code} ({example.kind}, written: {example.written}): "
        f"{example.message}"
    )
    return DeliveryError(message, failures=first, delivered=delivered, failed=failed, failed_by_code=codes)
