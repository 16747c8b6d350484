"""Administration of streams: commands of any kind, what servers say about streams and groups, single dead letters.

It also has what tools need that take options as text, or that print entries without an Arrow library. All of it is for
tools that look after streams, such as the command `headrace`. Programs that write and read need none of it.

A pending entry has one counter of deliveries, which all consumers of its group share. Up to `MOST_DELIVERIES`, those of
headrace count deliveries in it; above it they count failures, each by one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from headrace import _headrace
from headrace._headrace import (
    MOST_DELIVERIES,
    Commands,
    GroupInfo,
    LeaseInfo,
    StreamInfo,
    Survey,
    marker_key,
    read_dead_letter,
    time_zones,
)

if TYPE_CHECKING:
    from headrace import Dispatcher, Endpoint, ReadBatch
    from headrace._headrace import Rows

__all__ = [
    "MOST_DELIVERIES",
    "Commands",
    "DeadLetter",
    "GroupInfo",
    "LeaseInfo",
    "StreamInfo",
    "Survey",
    "dispatcher_from_text",
    "endpoint_from_text",
    "entries",
    "given_options",
    "json_lines",
    "json_rows",
    "marker_key",
    "time_zones",
]


def endpoint_from_text(options: Mapping[str, str | bytes], url: str | None = None) -> Endpoint:
    """Build an `Endpoint` from options that are text (`"6379"`, `"true"`) or bytes, and override those of the URL.

    Raises:
        ConfigError: As for `Endpoint`.
    """
    from headrace.endpoint import Endpoint

    try:
        made = _headrace.Endpoint.__new__(Endpoint, {**options}, url=url, text=True, options_win=True)
        return made._warned()
    finally:
        del options, url  # not for tracebacks with locals


def dispatcher_from_text(endpoint: Endpoint, options: Mapping[str, str | None]) -> Dispatcher:
    """Make a `Dispatcher` from options that are text (`"8192"`, `"true"`) or None for no value.

    The fields of a `RetryPolicy` are options of their own, such as `retry_deadline`.

    Raises:
        ConfigError: An option is unknown or invalid.
    """
    from headrace import Dispatcher

    return Dispatcher._from_text(endpoint, options)


def given_options(endpoint: Endpoint) -> dict[str, object]:
    """Return the options that an endpoint was given, by name. Passwords and keys are among them."""
    return endpoint._state()[0]


def json_lines(batch: ReadBatch) -> bytes:
    """Return the entries of a batch as lines of JSON: `id`, `timestamp`, `stream`, `fields`.

    The reader must have `metadata=["entry_id", "entry_ms"]` and `fields_as="list"`.
    """
    return batch._json_lines()


def entries(batch: ReadBatch) -> list[tuple[str, int, list[tuple[str, bytes]] | None]]:
    """Return the entries of a batch as tuples: ID, milliseconds of the ID, and fields; None if the entry was deleted.

    The reader must have `metadata=["entry_id", "entry_ms"]` and `fields_as="list"`.
    """
    return batch._entries()


def json_rows(rows: Rows) -> list[bytes]:
    """Return each row that `headrace.unpack_arrow` returned as a JSON object without its nulls."""
    return rows._json_rows()


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
