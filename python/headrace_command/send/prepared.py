"""Rows in the form in which they are produced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_command.send.block import Block

if TYPE_CHECKING:
    from headrace import Dispatcher

__all__ = ["Prepared"]


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
