"""Sends an import that can be resumed: block by block, each behind its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace_command.send.block import Block
from headrace_command.send.checkpoint import Checkpoint, Checkpoints
from headrace_command.send.prepared import Prepared
from headrace_command.send.sender import Rows, Sender
from headrace_command.send.tally import Tally
from headrace_command.usage_error import UsageError

if TYPE_CHECKING:
    from headrace import Dispatcher

__all__ = ["ResumedImport"]


class ResumedImport:
    """Reads the input from its beginning, compares it with the checkpoint, and sends what is not in the stream.

    Args:
        dispatcher: With `exactly_once="script"`.
        sender: Sends the rows of a block.
        rows: What makes rows of a block.
        checkpoints: Where the import is.
        name: Of the import.
        tally: Counts the rows that were sent before.
    """

    def __init__(
        self, dispatcher: Dispatcher, sender: Sender, rows: Rows, checkpoints: Checkpoints, name: str, tally: Tally
    ) -> None:
        self._dispatcher = dispatcher
        self._sender = sender
        self._rows = rows
        self._checkpoints = checkpoints
        self._name = name
        self._hash = hashlib.sha256()
        self._position = 0
        self._tally = tally
        #: Of the input so far: rows that are headers of files.
        self._headers = 0

    def send(self, blocks: Iterable[Block | None]) -> None:
        """Send all blocks.

        Raises:
            UsageError: The input is another one than that of the checkpoint; no row was sent.
            StoppedError: A row is bad, and that ends it.
        """
        found, written = self._checkpoints.load()
        #: Of the block that was sent last: its rows, until it is clear that they are the same.
        last: list[Block] = []
        for block in blocks:
            while block is not None and len(block.rows):
                if found is None:
                    self._send_block(block)
                    break
                limit = (found.first if self._position < found.first else found.last) - self._position
                head, block = block.split(min(limit, len(block.rows)))
                if self._position >= found.first:
                    last.append(head)
                self._pass(head)
                self._tally.compared = self._position
                self._headers += self._rows.pass_over(head)
                if self._position == found.last:
                    self._compare(found)
                    self._go_on(last, written, found.first)
                    found, last = None, []
        if found is not None:
            raise UsageError(
                f"--exactly-once {self._name}: the input has {self._position:,} rows, but {found.last:,} were read "
                "before: this is another input"
            )

    def _pass(self, block: Block) -> None:
        if isinstance(block.rows, list):
            self._hash.update(b"\n".join(block.rows) + b"\n")
        self._position += len(block.rows)

    def _compare(self, found: Checkpoint) -> None:
        if self._hash.hexdigest() != found.sha256:
            raise UsageError(
                f"--exactly-once {self._name}: the first {found.last:,} rows are not those that were read before: "
                "this is another input"
            )

    def _go_on(self, blocks: list[Block], written: int, first: int) -> None:
        """Send those rows of the last block that are not in the stream. They are a block of their own."""
        self._tally.skipped = first - self._headers
        rest = []
        for block in blocks:
            indices = self._rows.prepare(block).indices
            done = indices[written] if written < len(indices) else len(block.rows)
            written -= min(written, len(indices))
            self._tally.skipped += done
            if done < len(block.rows):
                rest.append(block.split(done)[1])
        before = self._position - sum(len(block.rows) for block in rest)
        if rest:
            self._send([self._rows.prepare(block) for block in rest], before)

    def _send_block(self, block: Block) -> None:
        prepared, first = self._rows.prepare(block), self._position
        end = self._sender.end_of(prepared)
        if end is None:
            self._pass(block)
            self._send([prepared], first)
            return
        # The bad row is behind the checkpoint, so that another run may find it corrected.
        head, tail = block.split(end)
        if head.rows:
            self._pass(head)
            self._send([self._rows.prepare(head)], first)
        self._sender.send(tail)

    def _send(self, parts: list[Prepared], first: int) -> None:
        version = self._checkpoints.advance(first, self._position, self._hash.hexdigest())
        self._dispatcher.begin(self._name, version)
        for prepared in parts:
            self._sender.send_prepared(prepared)
        self._sender.settle()
