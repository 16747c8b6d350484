"""A dead letter, as read from its entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

__all__ = ["Letter"]

#: What a consumer appends to the fields of an entry, in this order.
_OF_CONSUMER = (b"dead:stream", b"dead:id", b"dead:reason", b"dead:failures")
#: The only fields of a consumer's letter whose entry had too many fields for a script: the last value holds them.
_OF_WIDE = (*_OF_CONSUMER, b"dead:fields")
#: The fields that every letter of the Spark writer has.
_OF_SPARK = (b"stream_key", b"code", b"message", b"kind", b"written", b"partition", b"ordinal")

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Letter:
    """An entry of a stream of dead letters.

    The rules are those of `headrace.read_dead_letters`, whose tables only Arrow libraries read.

    Attributes:
        entry_id: Its ID.
        fields: All of its fields.
        origin: Who wrote it; "other" is not a dead letter.
        stream: Where the entry was, or was to be written. Untrusted: anyone who may write letters chooses it.
        original_id: Its ID there.
        code: The error code (Spark's letters only).
        reason: Why the entry is a dead letter, as text.
        failures: How often the entry failed in its group (a consumer's letters only).
        written: Whether the entry may be in the stream nevertheless, "no" or "unknown" (Spark's letters only).
        place: File and line of the row (letters of `headrace send` only).
        own: The fields of the entry itself.
    """

    entry_id: bytes
    fields: Sequence[Pair]
    origin: Literal["consumer", "spark", "send", "other"] = "other"
    stream: bytes | None = None
    original_id: bytes | None = None
    code: bytes | None = None
    reason: bytes | None = None
    failures: bytes | None = None
    written: bytes | None = None
    place: bytes | None = None
    own: Sequence[Pair] = field(default=())

    @classmethod
    def read(cls, entry_id: bytes, flat: Sequence[bytes]) -> Self:
        """Read the reply of XRANGE for one entry: alternating names and values."""
        fields = list(zip(flat[::2], flat[1::2], strict=True))
        tail, own = fields[-len(_OF_CONSUMER) :], fields[: -len(_OF_CONSUMER)]
        names = tuple(name for name, _ in tail)
        if tuple(name for name, _ in fields) == _OF_WIDE and (packed := _unpacked(fields[-1][1])) is not None:
            tail, own, names = fields[:-1], packed, _OF_CONSUMER
        if names == _OF_CONSUMER:
            stream, original_id, reason, failures = (value for _, value in tail)
            return cls(
                entry_id,
                fields,
                "consumer",
                stream=stream,
                original_id=original_id,
                reason=reason,
                failures=failures,
                own=own,
            )
        found = dict(fields)
        if not all(name in found for name in _OF_SPARK):
            return cls(entry_id, fields, own=fields)
        own = [(name, found[name]) for name in (b"payload", b"row") if name in found]
        code, reason, written = found[b"code"], found[b"message"], found[b"written"]
        source = found.get(b"source")
        return cls(
            entry_id,
            fields,
            "spark" if source is None else "send",
            stream=found[b"stream_key"],
            original_id=found.get(b"entry_id"),
            code=code,
            reason=reason,
            written=written,
            place=None if source is None else source + b":" + found[b"ordinal"],
            own=own,
        )

    @property
    def row(self) -> bytes | None:
        """The row without a payload, from the Spark writer or `headrace send`: an Arrow IPC stream."""
        if not self.is_of_row:
            return None
        return next((value for name, value in self.own if name == b"row"), None)

    @property
    def is_of_row(self) -> bool:
        """Whether the letter is of a row that was not written, so that its own fields are not those of an entry."""
        return self.origin in ("spark", "send")

    @property
    def milliseconds(self) -> int:
        """The time in its ID."""
        return int(self.entry_id.partition(b"-")[0])

    @property
    def size(self) -> int:
        """The bytes of its fields."""
        return sum(len(name) + len(value) for name, value in self.fields)


def _unpacked(packed: bytes) -> list[Pair] | None:
    """Names and values in turn, each after its length and a colon; None if the bytes are something else."""
    parts, at = [], 0
    while at < len(packed):
        colon = packed.find(b":", at, at + 21)
        if colon < 0 or not (digits := packed[at:colon]).isdigit():
            return None
        at = colon + 1 + int(digits)
        if at > len(packed):
            return None
        parts.append(packed[colon + 1 : at])
    return list(zip(parts[::2], parts[1::2], strict=True)) if len(parts) % 2 == 0 else None
