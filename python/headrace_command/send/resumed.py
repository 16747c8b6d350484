"""Sends a resumable import: block by block, each after its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace_command.exit_code import UsageError
from headrace_command.send.checkpoint import Checkpoint, Checkpoints
from headrace_command.send.rows import Block, Rows
from headrace_command.send.sender import Sender, StoppedError
from headrace_command.send.tally import Tally

if TYPE_CHECKING:
    from headrace import Dispatcher

__all__ = ["ResumedImport"]


class ResumedImport:
    """Reads the input from its beginning, compares it with the checkpoint, and sends what is not yet in the stream.

    The block of the checkpoint is sent again; the server skips those of its rows that it already has. At the end the
    checkpoint has a block without rows, which means that everything before it is done.

    Args:
        dispatcher: A dispatcher with `exactly_once="script"`.
        sender: Sends the rows of a block.
        rows: Makes rows of a block.
        checkpoints: Store the position of the import.
        name: The name of the import.
        tally: Counts the rows that were sent earlier.
    """

    def __init__(
        self, dispatcher: Dispatcher, sender: Sender, rows: Rows, checkpoints: Checkpoints, name: str, tally: Tally
    ) -> None:
        self._dispatcher = dispatcher
        self._sender = sender
        self._rows = rows
        self._checkpoints = checkpoints
        self._name = name
        self._tally = tally
        #: The hash of the input so far.
        self._hash = hashlib.sha256()
        self._position = 0
        #: Whether the checkpoint means that everything up to its end is done.
        self._is_done = True

    def send(self, blocks: Iterable[Block | None]) -> None:
        """Send all blocks.

        Raises:
            UsageError: The input is not that of the checkpoint; no row was sent.
            StoppedError: A bad row ends it, or the server refuses rows regardless of their content.
        """
        found, written = self._checkpoints.load()
        #: The rows of the checkpoint's block, until they are known to be the same.
        again: list[Block] = []
        before = self._hash.copy()
        headers = 0
        for block in blocks:
            rest = block
            while found is not None and self._position < found.last and rest is not None and len(rest.rows):
                is_done = self._position < found.first
                head, rest = rest.split(min((found.first if is_done else found.last) - self._position, len(rest.rows)))
                self._pass(head)
                self._tally.compared = self._position
                if is_done:
                    headers += self._rows.pass_over(head)
                    before = self._hash.copy()
                else:
                    again.append(head)
            if found is not None and self._position == found.last:
                self._compare(found)
                self._tally.skipped = found.first - headers
                self._send_again(again, before, found.first, written)
                found, again = None, []
            if rest is not None and len(rest.rows):
                self._send_block(rest)
        if found is not None and self._position < found.last:
            raise UsageError(
                f"--exactly-once {self._name}: the input has {self._position:,} rows, but {found.last:,} were read "
                "before: this is another input"
            )
        if not self._is_done:
            self._end_at(self._position, self._hash.hexdigest())

    def _pass(self, block: Block) -> None:
        self._hash.update(_bytes_of(block))
        self._position += len(block.rows)

    def _compare(self, found: Checkpoint) -> None:
        if self._hash.hexdigest() != found.sha256:
            raise UsageError(
                f"--exactly-once {self._name}: the first {found.last:,} rows are not those that were read before: "
                "this is another input"
            )

    def _send_again(self, blocks: list[Block], before: hashlib._Hash, first: int, written: int) -> None:
        """Send the block of the checkpoint. Those of its rows that are in the stream count as sent earlier."""
        deduplicated = self._tally.deduplicated
        try:
            self._send(blocks, before, first, written)
        finally:
            known = min(self._tally.deduplicated - deduplicated, written)
            self._tally.deduplicated -= known
            self._tally.delivered -= known
            self._tally.skipped += known

    def _send_block(self, block: Block) -> None:
        before, first = self._hash.copy(), self._position
        end = self._sender.end_of(self._rows.prepare(block))
        # A bad row that ends it comes after the checkpoint, so that another run may find it corrected.
        head, tail = block.split(len(block.rows) if end is None else end)
        if len(head.rows):
            self._pass(head)
            self._send([head], before, first)
        if end is not None:
            if not self._is_done:
                self._end_at(self._position, self._hash.hexdigest())
            self._sender.send(tail)

    def _send(self, blocks: list[Block], before: hashlib._Hash, first: int, written: int = 0) -> None:
        """Send rows, up to the position.

        A row that the server refuses ends its batch: the rows after it go into another one.

        Args:
            blocks: The rows.
            before: The hash of the input before them.
            first: The number of rows of the input before them.
            written: How many of them an earlier run wrote.

        Raises:
            StoppedError: As `send`.
        """
        while blocks:
            version = self._checkpoints.advance(first, self._position, self._hash.hexdigest(), written)
            self._is_done = False
            self._dispatcher.begin(self._name, version)
            prepared = [self._rows.prepare(block) for block in blocks]
            refusals = self._sender.deliver(prepared)
            for row in refusals.own:
                self._sender.fail(row, is_away=row.is_of_connection)
            if not refusals.are_of_rows:
                raise StoppedError
            is_stopped = bool(refusals.own) and self._sender.stops
            end = refusals.first_unwritten if is_stopped else refusals.first_untried
            self._sender.fail_bad(prepared, end)
            self._sender.flush_letters()
            done, blocks = _split(blocks, end)
            if not blocks and not is_stopped:
                return
            for block in done:
                before.update(_bytes_of(block))
            first, written = first + sum(len(block.rows) for block in done), 0
            if is_stopped:
                self._end_at(first, before.hexdigest())
                raise StoppedError

    def _end_at(self, position: int, sha256: str) -> None:
        """Record that all rows before a position are done."""
        self._checkpoints.advance(position, position, sha256)
        self._is_done = True


def _split(blocks: list[Block], at: tuple[int, int] | None) -> tuple[list[Block], list[Block]]:
    """Split before the row of an index in a block; with None, all rows come before."""
    if at is None:
        return blocks, []
    part, index = at
    head, tail = blocks[part].split(index)
    return [*blocks[:part], head], [tail, *blocks[part + 1 :]]


def _bytes_of(block: Block) -> bytes:
    """The bytes of rows for the hash of the input. For Arrow rows, their files are hashed instead."""
    return b"\n".join([*block.rows, b""]) if isinstance(block.rows, list) else b""
