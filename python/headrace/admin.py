"""Administration of streams: commands of any kind, what servers say about streams and groups, single dead letters.

It is for tools that look after streams, such as the command `headrace`. Programs that write and read need none of it.

A pending entry has one counter of deliveries, which all consumers of its group share. Up to `MOST_DELIVERIES`, those of
headrace count deliveries in it; above it they count failures, each by one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from headrace._headrace import (
    MOST_DELIVERIES,
    Commands,
    GroupInfo,
    StreamInfo,
    Survey,
    marker_key,
    read_dead_letter,
    time_zones,
)

__all__ = [
    "MOST_DELIVERIES",
    "Commands",
    "DeadLetter",
    "GroupInfo",
    "StreamInfo",
    "Survey",
    "marker_key",
    "time_zones",
]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of a stream of dead letters; `headrace.read_dead_letters` reads whole streams by the same rules.

    The values are bytes as they are stored. Do not trust them: whoever may write to the stream chooses them.

    Attributes:
        entry_id: The ID of the letter.
        origin: The author: "consumer", "spark" (the Spark writer) or "send" (`headrace send`); "other": the entry is
            not a dead letter.
        stream: The key of the stream that the entry was in, or was to be written to.
        original_id: The ID of the entry there.
        code: The error code; None if a consumer gave up on the entry.
        reason: The reason passed to `Consumer.fail`, or the message of the failure.
        failures: How often the entry failed in its group; None for a row that was not written.
        written: Whether the entry may be in the stream nevertheless: `no` or `unknown`; None from a consumer.
        source: The file of the row; None unless `headrace send` wrote the letter.
        ordinal: The number of the row in its file, or in its partition of Spark.
        own: The names and values of the entry's own fields. For a row that was not written: `payload`, or `row`, an
            Arrow IPC stream; empty if the row was null or too large.
        size: The bytes of all fields of the letter.
    """

    entry_id: bytes
    origin: Literal["consumer", "spark", "send", "other"]
    stream: bytes | None
    original_id: bytes | None
    code: bytes | None
    reason: bytes | None
    failures: bytes | None
    written: bytes | None
    source: bytes | None
    ordinal: bytes | None
    own: Sequence[tuple[bytes, bytes]]
    size: int

    @classmethod
    def read(cls, entry_id: bytes, fields: Sequence[bytes]) -> Self:
        """Read an entry of a reply to XRANGE, which has the names and values of its fields in turn.

        Raises:
            ValueError: A name has no value.
        """
        return cls(entry_id, *read_dead_letter(fields), sum(map(len, fields)))

    @property
    def is_of_row(self) -> bool:
        """Whether it is of a row that was not written, so that `own` is not the entry as it would have been."""
        return self.origin in ("spark", "send")

    @property
    def row(self) -> bytes | None:
        """The row without a payload, from the Spark writer or `headrace send`: an Arrow IPC stream."""
        return next((value for name, value in self.own if name == b"row"), None) if self.is_of_row else None

    @property
    def place(self) -> bytes | None:
        """The file and the number of the row, such as `orders.csv:17`, from `headrace send`."""
        return None if self.source is None or self.ordinal is None else self.source + b":" + self.ordinal

    @property
    def milliseconds(self) -> int:
        """The time in its ID."""
        return int(self.entry_id.partition(b"-")[0])
