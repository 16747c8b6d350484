"""The rows that failed, and advice for each code. Never shows a payload or a secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace import _headrace
from headrace.failure import Failure
from headrace.report import DeliveryReport
from headrace.tables import AWAY_CODES

__all__ = ["RowFailure", "advice", "failed_rows", "is_server_unreachable"]

#: Advice for a code without a row in the table: the first word of a server's error reply.
IN_GENERAL = "the message is the server's error reply; docs/outcomes.md lists the codes"


def advice(code: str, message: str = "") -> str:
    """What to do about failures with this code, of which one has this message."""
    what = _headrace.advice(code, message) or IN_GENERAL
    return (
        f"{what}; every executor must reach the server, and retry_deadline is how long it waits"
        if code in AWAY_CODES
        else what
    )


@dataclass(frozen=True, slots=True)
class RowFailure(Failure):
    """A row that was not delivered, and its position.

    Attributes:
        partition: Number of the row's partition, from 0.
        ordinal: Number of the row in its partition, from 0.
    """

    partition: int
    ordinal: int

    def __str__(self) -> str:
        name = "" if self.message_id == self.ordinal else f", message ID {self.message_id!r}"
        return (
            f"row {self.ordinal:,} of partition {self.partition}{name}: {self.code} ({self.kind}, written: "
            f"{self.written}): {self.message}"
        )


def failed_rows(report: DeliveryReport, partition: int, first: int, *, named: bool) -> Iterator[pa.Table]:
    """The failures of a report: its columns, `place` (of the row in the report), `partition` and `ordinal`.

    Args:
        report: All outcomes of consecutive rows, in order.
        partition: The partition of the rows.
        first: The ordinal of the first row in the partition.
        named: Whether the rows have message IDs of their own. Otherwise the ordinal is the message ID.
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


def is_server_unreachable(failed: Iterable[pa.Table], *, exactly_once: bool) -> bool:
    """Whether the retries ended without reaching the server, judged by the failures of `failed_rows`.

    Without `exactly_once` only rows that are certainly not written were retried; the others say nothing about it.
    """
    codes = pa.array(sorted(AWAY_CODES))
    retried = [table if exactly_once else table.filter(pc.equal(table["written"], "no")) for table in failed]
    return any(pc.any(pc.is_in(table["code"], codes)).as_py() for table in retried)
