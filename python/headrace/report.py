"""The report: one outcome for each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.errors import ConnectionFailedError, DeliveryError
from headrace.failure import Failure
from headrace.tables import CONNECTION_CODES
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace import _headrace
    from headrace._headrace import _Bytes
    from headrace.endpoint import Endpoint

__all__ = ["DeliveryReport"]

#: The number of failures that an error lists, and that are kept of an unhandled report.
FIRST_FAILURES = 10

#: The number of codes that a repr names.
SHOWN_CODES = 5


class DeliveryReport:
    """The outcomes of a run of messages, one for each, in the order in which they were produced.

    No object is created for a message until it is requested. A report counts as *handled* once `failed`, `failed_ids`,
    `to_arrow`, `raise_for_failures` or `ok` was used; closing the dispatcher raises unhandled delivery failures.
    """

    def __init__(self, native: _headrace.Report, endpoint: Endpoint) -> None:
        self._native = native
        self._unhandled: UnhandledFailures | None = UnhandledFailures(native, endpoint) if native.failed else None

    @property
    def delivered(self) -> int:
        """The number of messages that are in their stream."""
        return self._native.delivered

    @property
    def deduplicated(self) -> int:
        """The number of delivered messages that an earlier attempt had written (`Dispatcher.begin`)."""
        return self._native.deduplicated

    @property
    def retries(self) -> int:
        """How many times messages were sent again, including messages whose outcome is in another report."""
        return self._native.retries

    @property
    def possible_duplicates(self) -> int:
        """The number of retries that may have written a message a second time (`RetryPolicy.retry_unknown`)."""
        return self._native.possible_duplicates

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        self._handle()
        return self._native.failed == 0

    @cached_property
    def _failed(self) -> list[Failure]:
        return [Failure(*failure) for failure in self._native.failures()]

    @property
    def failed(self) -> list[Failure]:
        """The messages that were not delivered, in order."""
        self._handle()
        return self._failed

    @property
    def failed_ids(self) -> list[int | str]:
        """The message IDs of `failed`, as passed to `produce`."""
        self._handle()
        return self._native.failed_ids()

    @property
    def failed_by_code(self) -> dict[str, int]:
        """The number of failed messages by code. Reading it does not count as handling, because it names no message."""
        return self._native.failed_by_code()

    def to_arrow(self, *, only_failed: bool = False) -> _headrace.Outcomes:
        """Export the outcomes to any Arrow library, one row per message, in order.

        The columns, all utf8: `message_id` (ints in decimal), `entry_id` (null if the message failed), and `kind`,
        `code`, `message`, `written` (null if it was delivered). Record batches, of at most 65,536 rows, are created as
        they are read.

        Args:
            only_failed: Whether to leave out delivered messages. Default False.

        Returns:
            An object with `__arrow_c_stream__`: `pyarrow.table(report.to_arrow())`,
            `polars.DataFrame(report.to_arrow())`, `pyarrow.RecordBatchReader.from_stream(report.to_arrow())`.
        """
        self._handle()
        return self._native.to_arrow(only_failed)

    def raise_for_failures(self) -> DeliveryReport:
        """Return this report if nothing failed.

        Raises:
            DeliveryError: A message failed.
        """
        unhandled = self._unhandled
        self._handle()
        if unhandled is not None:
            raise delivery_error([unhandled], delivered=self.delivered)
        return self

    def __len__(self) -> int:
        """The number of messages in the report."""
        return self._native.delivered + self._native.failed

    def __repr__(self) -> str:
        return f"<DeliveryReport: {outcomes(self.delivered, self.failed_by_code)}>"

    def _repr_html_(self) -> str:
        """The counts and the first failures, for notebooks. This does not count as handling."""
        from headrace import notebook

        caption = outcomes(self.delivered, self.failed_by_code)
        return notebook.failures(caption, self._native.failures(FIRST_FAILURES), self._native.failed)

    def __bool__(self) -> bool:
        # By its length an empty report would be false, and `if report:` would read as a test for success.
        return True

    def _handle(self) -> None:
        if self._unhandled is not None:
            self._unhandled.handled = True


class UnhandledFailures:
    """The failures of a report until they are handled: counts, and the first ten."""

    __slots__ = ("endpoint", "failed", "failed_by_code", "first", "handled")

    def __init__(self, native: _headrace.Report, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.handled = False
        self.failed = native.failed
        self.failed_by_code = native.failed_by_code()
        self.first = tuple(Failure(*failure) for failure in native.failures(FIRST_FAILURES))

    def absorb(self, other: UnhandledFailures) -> None:
        """Add the counts of another report, which was dropped unhandled."""
        self.failed += other.failed
        for code, count in other.failed_by_code.items():
            self.failed_by_code[code] = self.failed_by_code.get(code, 0) + count
        self.first = (self.first + other.first)[:FIRST_FAILURES]


def outcomes(delivered: int, failed_by_code: Mapping[str, int]) -> str:
    """How many messages were delivered and how many failed, with the first codes, in words."""
    failed = sum(failed_by_code.values())
    shown = [f"{code} {count:,}" for code, count in [*failed_by_code.items()][:SHOWN_CODES]]
    if len(failed_by_code) > len(shown):
        shown.append(f"{len(failed_by_code) - len(shown):,} other codes")
    codes = f" ({', '.join(shown)})" if shown else ""
    return f"{delivered:,} delivered, {failed:,} failed{codes}"


def delivery_error(unhandled: Iterable[UnhandledFailures], *, delivered: int = 0) -> DeliveryError:
    """Make the error for these failures; `delivered` is the number of messages that were delivered."""
    reports = iter(unhandled)
    total = next(reports)
    codes, failed, first = dict(total.failed_by_code), total.failed, total.first
    for report in reports:
        failed += report.failed
        first = (first + report.first)[:FIRST_FAILURES]
        for code, count in report.failed_by_code.items():
            codes[code] = codes.get(code, 0) + count
    counts = ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()))
    example = first[0]
    total_of = f"{failed:,} of {counted(failed + delivered)}" if delivered else counted(failed)
    was = "was" if failed == 1 else "were"
    the_first = "" if failed == 1 else "the first, "
    message = (
        f"{total_of} {was} not delivered to {total.endpoint} ({counts}); {the_first}message ID {example.message_id!r}: "
        f"{example.explained()}"
    )
    return DeliveryError(message, failures=first, delivered=delivered, failed=failed, failed_by_code=codes)


def not_delivered(failure: Failure, endpoint: Endpoint, stream_key: _Bytes | None = None) -> DeliveryError:
    """Make the error for one message whose caller waited for the outcome. `stream_key`: its own, if it has one."""
    error = ConnectionFailedError if failure.code in CONNECTION_CODES else DeliveryError
    own = "" if stream_key is None else f", to its own stream {stream_key!r}"
    text = f"the message was not delivered to {endpoint}{own}: {failure.explained()}"
    return error(text, failures=(failure,), failed=1, failed_by_code={failure.code: 1})
