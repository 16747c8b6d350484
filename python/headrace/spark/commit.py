"""The outcomes of a partition, as its task sends them to the driver, and the limits on its failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from headrace.errors import DeliveryError
from headrace.report import FIRST_FAILURES, DeliveryReport
from headrace.spark.failures import RowFailure, advice

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.endpoint import Endpoint
    from headrace.spark.settings import FailurePolicy
    from headrace.stats import Stats

__all__ = ["PartitionCommit", "check_limits", "delivery_error", "in_words"]


@dataclass(kw_only=True)
class PartitionCommit(WriterCommitMessage):
    """The counts of a partition and its first failures: Spark's commit message. The driver sums them.

    Attributes:
        partitions: Numbers of the partitions.
        delivered: Rows that are in their stream.
        deduplicated: The part of `delivered` that an earlier attempt had written (exactly once).
        failed_by_code: Rows that failed, by code.
        possible_duplicates: Rows that may be in their stream twice.
        retries: How often a row was sent again.
        retry_wait_seconds: Seconds that tasks waited for retries, summed.
        dead_letters: Failed rows that are in the stream of dead letters.
        bytes_sent: Bytes sent, before encryption.
        first_failures: The first failures, at most ten of a partition.
    """

    partitions: tuple[int, ...] = ()
    delivered: int = 0
    deduplicated: int = 0
    failed_by_code: Counter[str] = field(default_factory=Counter)
    possible_duplicates: int = 0
    retries: int = 0
    retry_wait_seconds: float = 0.0
    dead_letters: int = 0
    bytes_sent: int = 0
    first_failures: tuple[RowFailure, ...] = ()

    @classmethod
    def sum(cls, messages: Iterable[WriterCommitMessage | None]) -> PartitionCommit:
        """Sum the commits of all tasks. A task that failed has none."""
        total = cls()
        for commit in messages:
            if not isinstance(commit, PartitionCommit):
                continue
            total.partitions += commit.partitions
            total.delivered += commit.delivered
            total.deduplicated += commit.deduplicated
            total.failed_by_code.update(commit.failed_by_code)
            total.possible_duplicates += commit.possible_duplicates
            total.retries += commit.retries
            total.retry_wait_seconds += commit.retry_wait_seconds
            total.dead_letters += commit.dead_letters
            total.bytes_sent += commit.bytes_sent
            total.first_failures = (total.first_failures + commit.first_failures)[:FIRST_FAILURES]
        return total

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return self.failed_by_code.total()

    @property
    def rows(self) -> int:
        """Rows that have an outcome."""
        return self.delivered + self.failed

    def add(self, report: DeliveryReport) -> None:
        """Count the outcomes of a report."""
        self.delivered += report.delivered
        self.deduplicated += report.deduplicated
        self.possible_duplicates += report.possible_duplicates
        self.retries += report.retries
        self.failed_by_code.update(report.failed_by_code)

    def add_stats(self, before: Stats, after: Stats) -> None:
        """Add the difference between two readings of the dispatcher's counters."""
        self.bytes_sent += after.bytes_sent - before.bytes_sent
        self.retry_wait_seconds += after.retry_wait_seconds - before.retry_wait_seconds

    def add_first(self, failed: pa.Table) -> None:
        """Keep the first failures of `failed_rows`."""
        room = FIRST_FAILURES - len(self.first_failures)
        rows = failed.slice(0, room).drop_columns(["place", "entry_id"]).to_pylist()
        self.first_failures += tuple(RowFailure(**row) for row in rows)

    def __str__(self) -> str:
        return in_words(
            self.delivered,
            self.failed_by_code,
            {
                "deduplicated": self.deduplicated,
                "dead letters": self.dead_letters,
                "retries": self.retries,
                "possible duplicates": self.possible_duplicates,
            },
            self.retry_wait_seconds,
            self.bytes_sent,
        )


def in_words(
    delivered: int,
    failed_by_code: Mapping[str, int],
    more: Mapping[str, int],
    retry_wait_seconds: float,
    bytes_sent: int,
) -> str:
    """Return the outcomes as text, without the counts of `more` that are 0 and without a retry wait of 0."""
    failed = sum(failed_by_code.values())
    parts = [
        f"{delivered:,} rows delivered",
        f"{failed:,} failed" + (f" ({_codes(failed_by_code)})" if failed else ""),
        *(f"{count:,} {name}" for name, count in more.items() if count),
        *([f"{retry_wait_seconds:.1f} s of retry waits"] if retry_wait_seconds else []),
        f"{bytes_sent:,} bytes sent",
    ]
    return ", ".join(parts)


def check_limits(commit: PartitionCommit, policy: FailurePolicy, endpoint: Endpoint, *, whole: bool) -> None:
    """Raise if more rows failed than the policy allows.

    Args:
        commit: The outcomes so far.
        policy: How many rows may fail.
        endpoint: The endpoint of the rows, for the error.
        whole: Whether all partitions have ended, so that the ratio of failed rows is known.

    Raises:
        DeliveryError: More rows failed.
    """
    reason = None
    if policy.max_failed_rows is not None and commit.failed > policy.max_failed_rows:
        reason = f"more than max_failed_rows={policy.max_failed_rows:,}"
    elif whole and policy.max_failed_ratio is not None and commit.failed > policy.max_failed_ratio * commit.rows:
        reason = f"more than max_failed_ratio={policy.max_failed_ratio:g}"
    elif policy.on_failure == "fail" and commit.failed:
        reason = ""
    if reason is not None:
        raise delivery_error(commit, endpoint, reason)


def delivery_error(commit: PartitionCommit, endpoint: Endpoint, reason: str = "") -> DeliveryError:
    """Make the error with the number of failed rows, the first of them, and advice for each code."""
    codes = _codes(commit.failed_by_code)
    lines = [
        f"{commit.failed:,} of {commit.rows:,} rows were not written to {endpoint} ({codes})"
        + (f": {reason}" if reason else ""),
        *(f"  {failure}" for failure in commit.first_failures),
    ]
    if more := commit.failed - len(commit.first_failures):
        lines.append(f"  and {more:,} more")
    messages = {failure.code: failure.message for failure in reversed(commit.first_failures)}
    lines += [f"{code}: {advice(code, messages.get(code, ''))}" for code in commit.failed_by_code]
    return DeliveryError(
        "\n".join(lines),
        failures=commit.first_failures,
        delivered=commit.delivered,
        failed=commit.failed,
        failed_by_code=commit.failed_by_code,
    )


def _codes(failed_by_code: Mapping[str, int]) -> str:
    return ", ".join(f"{code} {count:,}" for code, count in Counter(failed_by_code).most_common())
