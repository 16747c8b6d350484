"""What a write came to: each partition's outcome, and the summary of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.errors import DeliveryError
from headrace.report import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.report import DeliveryReport

__all__ = ["RESULT", "PartitionOutcome", "WriteSummary", "delivery_error", "summarise"]

#: Failures that a summary holds itself, and that an error carries.
FIRST_FAILURES: Final = 10

#: Columns of `WriteSummary.failures`.
FAILURES: Final = "partition int, message_id string, kind string, code string, message string, written string"

#: What a partition gives back: one row with its counts as JSON, and a row for each of its first failures.
RESULT: Final = f"{FAILURES}, counts string"

_TEXTS: Final = ["message_id", "kind", "code", "message", "written", "counts"]
_RESULT_ARROW: Final = pa.schema([("partition", pa.int32()), *((name, pa.string()) for name in _TEXTS)])


@dataclass(frozen=True, slots=True)
class PartitionFailure(Failure):
    """A row that was not delivered, and where it was.

    Attributes:
        partition: Number of the row's partition, from 0.
    """

    partition: int


@dataclass(frozen=True)
class WriteSummary:
    """What became of the rows of a DataFrame.

    Attributes:
        delivered: Rows that are in their stream.
        recognised: How many of `delivered` were there before, written by an earlier run under the same `txn_app_id` and
            `txn_version`.
        failed_by_code: Rows that failed, by code.
        possible_duplicates: Rows that may be in their stream twice: they were sent again although an earlier try may
            have been written, or Spark ran their task a second time. 0 under `txn_app_id`.
        retries: How often a row was sent again.
        partitions: Partitions of the DataFrame.
        seconds: Time that the action took, with all that Spark did to make the rows.
        first_failures: The first failures, at most ten.
        failures: With `failures=True` a DataFrame that is computed from nothing but what the action brought back: one
            row for each failure (the first `failures_per_partition` of each partition) with `partition`, `message_id`,
            `kind`, `code`, `message`, `written`. Else None.
    """

    delivered: int
    recognised: int
    failed_by_code: Mapping[str, int]
    possible_duplicates: int
    retries: int
    partitions: int
    seconds: float
    first_failures: tuple[PartitionFailure, ...] = ()
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
            "recognised": self.recognised,
            "possible duplicates": self.possible_duplicates,
            "retries": self.retries,
        }
        parts = [
            f"{self.delivered:,} rows delivered",
            f"{self.failed:,} failed" + (f" ({codes})" if codes else ""),
            *(f"{count:,} {name}" for name, count in more.items() if count),
            f"{self.seconds:.1f} s, {self.rows_per_second:,.0f} rows/s",
        ]
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"<WriteSummary: {self}>"


class PartitionOutcome:
    """The outcomes of a partition, summed."""

    def __init__(self, partition: int, keep: int) -> None:
        self.partition = partition
        self.delivered = self.recognised = self.possible_duplicates = self.retries = 0
        self.failed_by_code: dict[str, int] = {}
        self._room = keep
        self._failures: list[pa.RecordBatch] = []

    def add(self, report: DeliveryReport) -> None:
        """Add the outcomes of a report."""
        self.delivered += report.delivered
        self.recognised += report.recognised
        self.possible_duplicates += report.possible_duplicates
        self.retries += report.retries
        for code, count in report.failed_by_code.items():
            self.failed_by_code[code] = self.failed_by_code.get(code, 0) + count
        # Also looks at the report, which would else be told again when the dispatcher is closed.
        reader = pa.RecordBatchReader.from_stream(report.to_arrow(only_failed=True))
        while self._room and (batch := next(reader, None)) is not None:
            self._failures.append(batch.slice(0, self._room))
            self._room -= self._failures[-1].num_rows

    def to_arrow(self) -> Iterator[pa.RecordBatch]:
        """Give the rows that the partition gives back."""
        counts = {
            "delivered": self.delivered,
            "recognised": self.recognised,
            "failed_by_code": self.failed_by_code,
            "possible_duplicates": self.possible_duplicates,
            "retries": self.retries,
        }
        row = {"partition": self.partition, "counts": json.dumps(counts)}
        yield pa.RecordBatch.from_pylist([row], schema=_RESULT_ARROW)
        for batch in self._failures:
            rows = batch.num_rows
            partition, none = pa.repeat(pa.scalar(self.partition, pa.int32()), rows), pa.nulls(rows, pa.string())
            texts = [none if name == "counts" else batch[name] for name in _TEXTS]
            yield pa.RecordBatch.from_arrays([partition, *texts], schema=_RESULT_ARROW)


def summarise(spark: SparkSession, result: pa.Table, seconds: float, failures: bool) -> WriteSummary:
    """Sum what the partitions gave back.

    Args:
        spark: Where `failures` of the summary is made.
        result: The rows of all partitions, with the columns of `RESULT`.
        seconds: How long it took.
        failures: Whether the summary shall have `failures`.
    """
    result = result.cast(_RESULT_ARROW).sort_by("partition")
    counts = [json.loads(text) for text in result["counts"].drop_null().to_pylist()]
    failed = result.filter(result["counts"].is_null()).drop_columns(["counts"])
    codes: Counter[str] = Counter()
    for of_partition in counts:
        codes.update(of_partition["failed_by_code"])

    def total(name: str) -> int:
        return sum(of_partition[name] for of_partition in counts)

    return WriteSummary(
        delivered=total("delivered"),
        recognised=total("recognised"),
        failed_by_code=dict(codes.most_common()),
        possible_duplicates=total("possible_duplicates"),
        retries=total("retries"),
        partitions=len(counts),
        seconds=seconds,
        first_failures=tuple(PartitionFailure(**row) for row in failed.slice(0, FIRST_FAILURES).to_pylist()),
        failures=spark.createDataFrame(failed, FAILURES) if failures else None,
    )


def delivery_error(summary: WriteSummary) -> DeliveryError:
    """Make the error for failures that nobody asked for."""
    codes = ", ".join(f"{code} {count:,}" for code, count in summary.failed_by_code.items())
    first = summary.first_failures[0]
    message = (
        f"{summary.failed:,} of {summary.rows:,} rows were not delivered ({codes}); the first, {first.message_id!r} of "
        f"partition {first.partition}: {first.code} ({first.kind}, written: {first.written}): {first.message}; "
        "failures=True hands them back instead"
    )
    return DeliveryError(
        message,
        failures=summary.first_failures,
        delivered=summary.delivered,
        failed=summary.failed,
        failed_by_code=summary.failed_by_code,
    )
