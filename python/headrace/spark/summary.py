"""The results of `headrace.spark.write`: one per partition, and the summary of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.report import FIRST_FAILURES
from headrace.spark.commit import PartitionCommit, in_words
from headrace.spark.failures import RowFailure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FAILURES", "RESULT", "WriteSummary", "from_result", "to_result"]

#: Columns of `WriteSummary.failures`.
FAILURES: Final = (
    "partition int, ordinal long, message_id string, kind string, code string, message string, written string"
)

#: The result of a partition: one row with its counts as JSON, and a row for each of its first failures.
RESULT: Final = f"{FAILURES}, counts string"

_RESULT_ARROW: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ordinal", pa.int64()),
        *((name, pa.string()) for name in ("message_id", "kind", "code", "message", "written", "counts")),
    ]
)

#: The counts of `PartitionCommit` in that row, in addition to those by code.
_COUNTS: Final = ("delivered", "deduplicated", "possible_duplicates", "retries", "retry_wait_seconds", "bytes_sent")


@dataclass(frozen=True)
class WriteSummary:
    """The outcomes of the rows of a DataFrame.

    Attributes:
        delivered: Rows that are in their stream.
        deduplicated: The part of `delivered` that an earlier run under the same `txn_app_id` and `txn_version` had
            written.
        failed_by_code: Rows that failed, by code.
        possible_duplicates: Rows that may be in their stream twice: they were sent again although an earlier attempt
            may have been written, or Spark ran their task a second time. 0 under `txn_app_id`.
        retries: How often a row was sent again.
        retry_wait_seconds: Seconds that tasks waited for retries, summed: each wait counts from the first failure.
            The executors' logs name the server and the reason.
        bytes_sent: Bytes sent, before encryption.
        partitions: Partitions of the DataFrame.
        seconds: Duration of the action, including the time in which Spark computed the rows.
        first_failures: The first failures, at most ten, each with `partition` and `ordinal`.
        failures: With `failures=True`, a DataFrame of the failures that the action returned, so that reading it writes
            nothing. It has one row for each failure (the first `failures_per_partition` of each partition) with
            `partition`, `ordinal` (in the partition), `message_id`, `kind`, `code`, `message`, `written`. Otherwise
            None.
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
        """`rows` divided by `seconds`."""
        return self.rows / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        outcomes = in_words(
            self.delivered,
            self.failed_by_code,
            {
                "deduplicated": self.deduplicated,
                "retries": self.retries,
                "possible duplicates": self.possible_duplicates,
            },
            self.retry_wait_seconds,
            self.bytes_sent,
        )
        return f"{outcomes}, {self.seconds:.1f} s, {self.rows_per_second:,.0f} rows/s"

    def __repr__(self) -> str:
        return f"<WriteSummary: {self}>"


def to_result(commit: PartitionCommit, failures: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Make the result of a partition, with the columns of `RESULT`, from its counts and first failures."""
    counts: dict[str, Any] = {name: getattr(commit, name) for name in _COUNTS}
    text = json.dumps({**counts, "failed_by_code": commit.failed_by_code})
    yield pa.RecordBatch.from_pylist([{"partition": commit.partitions[0], "counts": text}], schema=_RESULT_ARROW)
    for failed in failures:
        complete = failed.append_column("counts", pa.nulls(len(failed), pa.string()))
        yield from complete.select(_RESULT_ARROW.names).cast(_RESULT_ARROW).to_batches()


def from_result(result: pa.Table) -> tuple[PartitionCommit, pa.Table]:
    """Sum the results of all partitions: the counts, and the failures as a table with the columns of `FAILURES`."""
    result = result.cast(_RESULT_ARROW).sort_by([("partition", "ascending"), ("ordinal", "ascending")])
    codes: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    counts = result.filter(result["counts"].is_valid())
    for text in counts["counts"].to_pylist():
        of_partition = json.loads(text)
        codes.update(of_partition.pop("failed_by_code"))
        sums.update(of_partition)
    failed = result.filter(result["counts"].is_null()).drop_columns(["counts"])
    commit = PartitionCommit(
        partitions=tuple(counts["partition"].to_pylist()),
        failed_by_code=Counter(dict(codes.most_common())),
        first_failures=tuple(RowFailure(**row) for row in failed.slice(0, FIRST_FAILURES).to_pylist()),
        **{name: sums[name] for name in _COUNTS},
    )
    return commit, failed
