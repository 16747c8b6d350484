"""Consecutive rows of the input, the form in which they are produced, and rows that are sent as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from headrace import Dispatcher

__all__ = ["Block", "Layout", "Prepared", "RawRows", "Rows", "too_long"]


class Block(NamedTuple):
    """Consecutive rows of the input.

    Attributes:
        file: The name of their file.
        first: The number of the first one, counted from 1 in its file, including a header.
        rows: The rows: a list of bytes, or a record batch.
        size: Their approximate size in bytes.
    """

    file: str
    first: int
    rows: Any
    size: int

    def split(self, count: int) -> tuple[Block, Block]:
        """Return the first `count` rows, and the others."""
        share = self.size * count // max(len(self.rows), 1)
        head = Block(self.file, self.first, self.rows[:count], share)
        return head, Block(self.file, self.first + count, self.rows[count:], self.size - share)

    def place(self, index: int) -> str:
        """Return where a row is, for a message: `orders.csv:17`."""
        return f"{self.file}:{self.first + index}"


class Prepared(NamedTuple):
    """The rows of a block in the form in which they are produced.

    Attributes:
        block: The block.
        indices: The index in the block of each row that is produced.
        bad: Why a row cannot be produced, by its index in the block.
        payloads: The payloads, if each row is one.
        keys: The shard keys of the payloads, if rows have them.
        table: The rows, if they are Arrow rows.
        layout: The arguments of `produce_batch` for the table.
    """

    block: Block
    indices: Sequence[int]
    bad: dict[int, str]
    payloads: Sequence[bytes] = ()
    keys: Sequence[bytes | None] | None = None
    table: Any = None
    layout: dict[str, Any] = {}  # noqa: RUF012, never changed

    def before(self, index: int) -> Prepared:
        """Return the rows before one of the block."""
        count = sum(1 for other in self.indices if other < index)
        keys = None if self.keys is None else self.keys[:count]
        table = None if self.table is None else self.table[:count]
        return self._replace(indices=self.indices[:count], payloads=self.payloads[:count], keys=keys, table=table)

    def produce(self, dispatcher: Dispatcher) -> None:
        """Pass the rows to the dispatcher."""
        if self.table is not None:
            if len(self.indices):
                dispatcher.produce_batch(self.table, **self.layout)
        elif self.keys is not None:
            for payload, key in zip(self.payloads, self.keys, strict=True):
                dispatcher.produce(payload, None, key)
        else:
            produce = dispatcher.produce
            for payload in self.payloads:
                produce(payload)


class Rows(Protocol):
    """Makes rows of blocks."""

    def prepare(self, block: Block) -> Prepared:
        """Put the rows of a block into the form in which they are produced."""

    def pass_over(self, block: Block, /) -> int:
        """Keep what later blocks need of one that is in the stream, and return how many of its rows are a header."""


class Layout:
    """The arguments of `Dispatcher.produce_batch` for rows of columns. By default each column is a field.

    Args:
        payload: The column that is the payload.
        fields: The columns that become fields; empty: all.
        json: The columns of the payload, which is the row as JSON; empty: all.
        shard_key: The column that determines the shard.
    """

    def __init__(
        self,
        payload: str | None = None,
        fields: list[str] | None = None,
        json: list[str] | None = None,
        shard_key: str | None = None,
    ) -> None:
        self._payload = payload
        self._fields = fields
        self._json = json
        self._shard_key = shard_key

    @property
    def is_json(self) -> bool:
        """Whether the payload is JSON, for which binary columns are not accepted as text."""
        return self._json is not None

    def arguments(self, schema: Any) -> dict[str, Any]:
        """Return the arguments for rows of this schema."""
        if self._payload is not None:
            arguments: dict[str, Any] = {"payload": self._payload}
        elif self._json is not None:
            arguments = {"json": self._json or True}
        else:
            arguments = {"fields": self._fields or list(schema.names)}
        return arguments if self._shard_key is None else {**arguments, "shard_key": self._shard_key}


def too_long(max_row_bytes: int) -> str:
    """Return why such a row is bad."""
    return f"the row has more than {max_row_bytes:,} bytes; --max-row-bytes allows more"


class RawRows:
    """Each row is the payload of an entry, byte for byte.

    Args:
        max_row_bytes: The most bytes of a row.
        skips_blank: Whether to skip rows of only white space, as in JSON lines.
    """

    def __init__(self, max_row_bytes: int, *, skips_blank: bool) -> None:
        self._max_row_bytes = max_row_bytes
        self._skips_blank = skips_blank

    def pass_over(self, _block: Block, /) -> int:
        """Return 0: no row is a header."""
        return 0

    def prepare(self, block: Block) -> Prepared:
        """Check only the length of each row."""
        rows = block.rows
        if max(map(len, rows), default=0) <= self._max_row_bytes and not (self._skips_blank and _has_blank(rows)):
            return Prepared(block, range(len(rows)), {}, rows)
        bad = {at: too_long(self._max_row_bytes) for at, row in enumerate(rows) if len(row) > self._max_row_bytes}
        skips = self._skips_blank
        indices = [at for at, row in enumerate(rows) if at not in bad and not (skips and not row.strip())]
        return Prepared(block, indices, bad, [rows[at] for at in indices])


def _has_blank(rows: list[bytes]) -> bool:
    return any(not row or row.isspace() for row in rows)
