"""What `headrace.spark.write` came to: each partition's result, and the summary of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.report import FIRST_FAILURES
from headrace.spark.failures import RowFailure, Written, failed_rows, waited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.report import DeliveryReport

__all__ = ["FAILURES", "RESULT", "PartitionResult", "WriteSummary", "total"]

#: Columns of `WriteSummary.failures`.
FAILURES: Final = (
    "partition int, ordinal long, message_id string, kind string, code string, message string, written string"
)

#: What a partition gives back: one row with its counts as JSON, and a row for each of its first failures.
RESULT: Final = f"{FAILURES}, counts string"

_RESULT_ARROW: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ordinal", pa.int64()),
        *((name, pa.string()) for name in ("message_id", "kind", "code", "message", "written", "counts")),
    ]
)

#: The counts of `Written` that a partition gives back, but for those by code.
_COUNTS: Final = ("delivered", "deduplicated", "possible_duplicates", "retries", "retry_wait_seconds", "bytes_sent")


@dataclass(frozen=True)
class WriteSummary:
    """What became of the rows of a DataFrame.

    Attributes:
        delivered: Rows that are in their stream.
        deduplicated: How many of `delivered` an earlier run under the same `txn_app_id` and `txn_version` had
            written.
        failed_by_code: Rows that failed, by code.
        possible_duplicates: Rows that may be in their stream twice: they were sent again although an earlier try may
            have been written, or Spark ran their task a second time. 0 under `txn_app_id`.
        retries: How often a row was sent again.
        retry_wait_seconds: Seconds that tasks waited for rows to be sent again, summed: each wait is from the first
            failure on. The executors' logs name the server and the reason.
        bytes_sent: Bytes handed to the transport, before encryption.
        partitions: Partitions of the DataFrame.
        seconds: Time that the action took, with all that Spark did to make the rows.
        first_failures: The first failures, at most ten, each with `partition` and `ordinal`.
        failures: With `failures=True` a DataFrame that is computed from nothing but what the action brought back: one
            row for each failure (the first `failures_per_partition` of each partition) with `partition`, `ordinal` (in
            the partition), `message_id`, `kind`, `code`, `message`, `written`. Else None.
    """

    delivered: int
    deduplicated: int
    failed_by_code: Mapping[str, int]
    possible_duplicates: int
    retries: int
    retry_wait_seconds: float
    bytes_sent: int
    partitions: int
    seconds: float
    first_failures: tuple[RowFailure, ...] = ()
    failures: DataFrame | None = field(default=None, compare=False)

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return sum(self.failed_by_code.values())

    @property
    def rows(self) -> int:
        """Rows of the DataFrame."""
        return self.delivered + self.failed

    @property
    def rows_per_second(self) -> float:
        """Rows, by the seconds of the action."""
        return self.rows / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        codes = ", ".join(f"{code} {count:,}" for code, count in self.failed_by_code.items())
        more = {
            "deduplicated": self.deduplicated,
            "retries": self.retries,
            "possible duplicates": self.possible_duplicates,
        }
        parts = [
            f"{self.delivered:,} rows delivered",
            f"{self.failed:,} failed" + (f" ({codes})" if codes else ""),
            *(f"{count:,} {name}" for name, count in more.items() if count),
            *waited(self.retry_wait_seconds),
            f"{self.bytes_sent:,} bytes sent",
            f"{self.seconds:.1f} s, {self.rows_per_second:,.0f} rows/s",
        ]
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"<WriteSummary: {self}>"


class PartitionResult:
    """The outcomes of a partition: counts, and the first failures.

    Args:
        partition: Its number.
        keep: How many failures it keeps.
        named: Whether its rows have message IDs.
    """

    def __init__(self, partition: int, keep: int, *, named: bool) -> None:
        self.written = Written(partitions=(partition,))
        self._partition = partition
        self._room = keep
        self._named = named
        self._failures: list[pa.Table] = []

    def add(self, report: DeliveryReport) -> None:
        """Add the outcomes of the rows that come next."""
        first = self.written.rows
        self.written.add(report)
        if report.ok or not self._room:
            return
        for failed in failed_rows(report, self._partition, first, named=self._named):
            self._failures.append(failed.slice(0, self._room))
            self._room -= len(self._failures[-1])
            if not self._room:
                return

    def to_arrow(self) -> Iterator[pa.RecordBatch]:
        """Give what Spark carries to the driver, with the columns of `RESULT`."""
        counts = {name: getattr(self.written, name) for name in _COUNTS}
        text = json.dumps({**counts, "failed_by_code": self.written.failed_by_code})
        row = {"partition": self._partition, "counts": text}
        yield pa.RecordBatch.from_pylist([row], schema=_RESULT_ARROW)
        for failed in self._failures:
            complete = failed.append_column("counts", pa.nulls(len(failed), pa.string()))
            yield from complete.select(_RESULT_ARROW.names).cast(_RESULT_ARROW).to_batches()


def total(result: pa.Table) -> tuple[Written, pa.Table]:
    """Sum what the partitions gave back: the counts, and their failures as a table with the columns of `FAILURES`."""
    result = result.cast(_RESULT_ARROW).sort_by([("partition", "ascending"), ("ordinal", "ascending")])
    codes: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    counts = result.filter(result["counts"].is_valid())
    for text in counts["counts"].to_pylist():
        of_partition = json.loads(text)
        codes.update(of_partition.pop("failed_by_code"))
        sums.update(of_partition)
    failed = result.filter(result["counts"].is_null()).drop_columns(["counts"])
    return Written(
        partitions=tuple(counts["partition"].to_pylist()),
        failed_by_code=Counter(dict(codes.most_common())),
        first_failures=tuple(RowFailure(**row) for row in failed.slice(0, FIRST_FAILURES).to_pylist()),
        **{name: sums[name] for name in _COUNTS},
    ), failed
