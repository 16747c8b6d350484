"""The rows that failed, and advice for each code. Never shows a payload or a secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.failure import Failure
from headrace.report import DeliveryReport

__all__ = ["ADVICE", "RowFailure", "advice", "failed_rows", "is_server_unreachable"]

PASS = "filter these rows out, or set on_failure to 'report' or 'dead_letter'"
REACH = "check that every executor reaches the server; retry_deadline limits how long a write waits for it"
SIGN_ON = "check username, password_env and password_file"

#: Codes of rows that reached no server.
UNREACHABLE = ("CONNECT", "DNS", "TIMEOUT", "RESET", "EOF")

#: What to do, for each of headrace's own codes and the server's most common ones. docs/outcomes.md describes all.
ADVICE = {
    "NULL_PAYLOAD": PASS,
    "EMPTY": PASS,
    "BAD_STREAM_KEY": PASS,
    "BAD_ENTRY_ID": PASS,
    "BAD_VALUE": PASS,
    "TOO_LARGE": PASS,
    "WRONGTYPE": "the key holds another type: choose another stream_key",
    "OOM": 'give the server memory, or bound the stream by maxlen; error_overrides={"OOM": "retryable"} waits for it',
    "READONLY": "connect to the primary; classify=failover waits for a failover",
    "NOAUTH": SIGN_ON,
    "WRONGPASS": SIGN_ON,
    "NOPERM": "grant the ACL user the permission that the message names",
    "TLS": "check tls_ca_cert, tls_cert, tls_key and tls_server_name, and the server's certificate",
    "CONFIG": "every executor needs the file, variable or option that the message names",
    "INTERNAL": "report the source position that the logger headrace shows; the error names the row",
    "NO_STREAM": "create the stream, or leave nomkstream out",
    "BLOCKED": "exactly once keeps the order of a stream: see the failures before these rows",
    "MARKER_LOST": "the server lost the write's progress marker: see docs/exactly-once.md",
    "BAD_MARKER": "the key of the write's progress marker holds another value: see docs/exactly-once.md",
    "UNSUPPORTED": "the message names what the server lacks",
    "NULL_MESSAGE_ID": "give each row a message ID, or leave exactly_once_key out",
    "DUPLICATE_ID": "give each row a unique message ID, or leave exactly_once_key out",
    "TOO_MANY": "write in more partitions",
    "NOT_REPLICATED": "check that enough replicas keep up, and wait_timeout: docs/durability.md",
    "TRIMMED": "minid is above the entry's ID: lower it",
    "PROTOCOL": "check that host and port belong to a Redis or Valkey server",
    "INTERRUPTED": "the task was interrupted: run the write again",
    **dict.fromkeys(UNREACHABLE, REACH),
}

#: Advice for any other code, which is the first word of a server's error reply.
IN_GENERAL = "the message is the server's error reply; docs/outcomes.md lists the codes"


def advice(code: str) -> str:
    """What to do about failures with this code."""
    return ADVICE.get(code, IN_GENERAL)


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
        report: All outcomes of a run of rows, in their order.
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
    codes = pa.array(UNREACHABLE)
    retried = [table if exactly_once else table.filter(pc.equal(table["written"], "no")) for table in failed]
    return any(pc.any(pc.is_in(table["code"], codes)).as_py() for table in retried)
