"""What became of the rows of a partition and of a whole write, and how it is told. Never a payload, never a secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headrace.errors import DeliveryError
from headrace.report import FIRST_FAILURES, DeliveryReport, Failure
from headrace.tables import AWAY_CODES, CODES

if TYPE_CHECKING:
    from headrace.endpoint import Endpoint
    from headrace.metrics import Stats
    from headrace.spark.options import FailurePolicy

__all__ = [
    "RowFailure",
    "Written",
    "advice",
    "check_limits",
    "delivery_error",
    "failed_rows",
    "server_stayed_away",
    "total",
    "waited",
]

#: What to do about a code without advice of its own.
IN_GENERAL = "the message is the server's; docs/outcomes.md lists the codes"


@dataclass(frozen=True, slots=True)
class RowFailure(Failure):
    """A row that was not delivered, and where it was.

    Attributes:
        partition: Number of the row's partition, from 0.
        ordinal: Number of the row in it, from 0.
    """

    partition: int
    ordinal: int

    def __str__(self) -> str:
        name = "" if self.message_id == self.ordinal else f", message ID {self.message_id!r}"
        return (
            f"row {self.ordinal:,} of partition {self.partition}{name}: {self.code} ({self.kind}, written: "
            f"{self.written}): {self.message}"
        )


@dataclass(kw_only=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        partitions: Numbers of the partitions.
        delivered: Rows that are in their stream.
        deduplicated: How many of `delivered` were there before (exactly once).
        failed_by_code: Rows that failed, by code.
        possible_duplicates: Rows that may be in their stream twice.
        retries: How often a row was sent again.
        retry_wait_seconds: Seconds that tasks waited for rows to be sent again, summed.
        dead_letters: Failed rows that are in the stream of dead letters.
        bytes_sent: Bytes handed to the transport, before encryption.
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
        """Count what the dispatcher has done between two looks at its counters."""
        self.bytes_sent += after.bytes_sent - before.bytes_sent
        self.retry_wait_seconds += after.retry_wait_seconds - before.retry_wait_seconds

    def add_first(self, failed: pa.Table) -> None:
        """Keep the first failures of `failed_rows`."""
        room = FIRST_FAILURES - len(self.first_failures)
        rows = failed.slice(0, room).drop_columns(["place", "entry_id"]).to_pylist()
        self.first_failures += tuple(RowFailure(**row) for row in rows)

    def __str__(self) -> str:
        more = {
            "deduplicated": self.deduplicated,
            "dead letters": self.dead_letters,
            "retries": self.retries,
            "possible duplicates": self.possible_duplicates,
        }
        parts = [
            f"{self.delivered:,} rows delivered",
            f"{self.failed:,} failed" + (f" ({_codes(self.failed_by_code)})" if self.failed else ""),
            *(f"{count:,} {name}" for name, count in more.items() if count),
            *waited(self.retry_wait_seconds),
            f"{self.bytes_sent:,} bytes sent",
        ]
        return ", ".join(parts)


def waited(seconds: float) -> list[str]:
    """Say how long retries were waited for, if they were."""
    return [f"{seconds:.1f} s of retry waits"] if seconds else []


def total(messages: Iterable[WriterCommitMessage | None]) -> Written:
    """Sum what tasks told; those that did not end well told nothing."""
    summed = Written()
    for message in messages:
        if not isinstance(message, Written):
            continue
        summed.partitions += message.partitions
        summed.delivered += message.delivered
        summed.deduplicated += message.deduplicated
        summed.failed_by_code.update(message.failed_by_code)
        summed.possible_duplicates += message.possible_duplicates
        summed.retries += message.retries
        summed.retry_wait_seconds += message.retry_wait_seconds
        summed.dead_letters += message.dead_letters
        summed.bytes_sent += message.bytes_sent
        summed.first_failures = (summed.first_failures + message.first_failures)[:FIRST_FAILURES]
    return summed


def failed_rows(report: DeliveryReport, partition: int, first: int, *, named: bool) -> Iterator[pa.Table]:
    """The failures of a report: its columns, `place` (of the row in the report), `partition` and `ordinal`.

    Args:
        report: All outcomes of a run of rows, in their order.
        partition: The partition of the rows.
        first: The ordinal in it of the first one.
        named: Whether the rows have message IDs of their own. Otherwise the ordinal is the name.
    """
    place = 0
    for batch in pa.RecordBatchReader.from_stream(report.to_arrow()):
        places = pc.add(pc.cast(pc.indices_nonzero(pc.is_valid(batch["code"])), pa.int64()), place)
        if len(places):
            failed = pa.Table.from_batches([batch.filter(pc.is_valid(batch["code"]))])
            ordinals = pc.add(places, first)
            if not named:
                failed = failed.set_column(0, "message_id", ordinals)
            failed = failed.append_column("place", places).append_column("ordinal", ordinals)
            yield failed.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), len(places)))
        place += batch.num_rows


def server_stayed_away(failed: Iterable[pa.Table], *, exactly_once: bool) -> bool:
    """Whether the retry has waited for the server in vain, by the failures of `failed_rows`.

    Without `exactly_once` rows that may be written are told as they are; those that are not were tried again.
    """
    away = pa.array(sorted(AWAY_CODES))
    tried_again = [table if exactly_once else table.filter(pc.equal(table["written"], "no")) for table in failed]
    return any(pc.any(pc.is_in(table["code"], away)).as_py() for table in tried_again)


def check_limits(written: Written, policy: FailurePolicy, endpoint: Endpoint, *, whole: bool) -> None:
    """Raise if more rows failed than may.

    Args:
        written: What became of the rows.
        policy: How many may fail.
        endpoint: Where they went.
        whole: All partitions have ended: their ratio is known.

    Raises:
        DeliveryError: More failed.
    """
    reason = None
    if policy.max_failed_rows is not None and written.failed > policy.max_failed_rows:
        reason = f"more than max_failed_rows={policy.max_failed_rows:,}"
    elif whole and policy.max_failed_ratio is not None and written.failed > policy.max_failed_ratio * written.rows:
        reason = f"more than max_failed_ratio={policy.max_failed_ratio:g}"
    elif policy.on_failure == "fail" and written.failed:
        reason = ""
    if reason is not None:
        raise delivery_error(written, endpoint, reason)


def delivery_error(written: Written, endpoint: Endpoint, reason: str = "") -> DeliveryError:
    """Make the error that says how many rows failed and why, which were the first, and what to do."""
    codes = _codes(written.failed_by_code)
    lines = [
        f"{written.failed:,} of {written.rows:,} rows were not written to {endpoint} ({codes})"
        + (f": {reason}" if reason else ""),
        *(f"  {failure}" for failure in written.first_failures),
    ]
    if more := written.failed - len(written.first_failures):
        lines.append(f"  and {more:,} more")
    lines += [f"{code}: {advice(code)}" for code in written.failed_by_code]
    return DeliveryError(
        "\n".join(lines),
        failures=written.first_failures,
        delivered=written.delivered,
        failed=written.failed,
        failed_by_code=written.failed_by_code,
    )


def advice(code: str) -> str:
    """What to do about rows that failed with this code."""
    known = CODES.get(code)
    return (known.advice if known else None) or IN_GENERAL


def _codes(failed_by_code: Counter[str]) -> str:
    return ", ".join(f"{code} {count:,}" for code, count in failed_by_code.most_common())
