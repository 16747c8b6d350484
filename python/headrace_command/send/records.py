"""Reads rows that are bytes: lines, JSON lines, and CSV records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace_command.send.block import Block
from headrace_command.send.input_error import InputError
from headrace_command.send.inputs import DAMAGED, Input
from headrace_command.send.line_splitter import LineSplitter

__all__ = ["Records"]

#: The most rows of a block: each takes about 40 bytes in addition to its own.
_MOST_ROWS = 262_144


class Records:
    """The rows of inputs, in blocks.

    Args:
        inputs: The files.
        max_row_bytes: The most bytes of a row. A longer one is cut to one byte more than that.
        quoted: Whether a row continues on the next line while a quote is open, as in CSV.
        linger: Seconds without input after which a pipe counts as paused.
        block_bytes: Bytes after which a block ends; None: after each read.
        check: Called with each input that cannot be read twice, and its first bytes.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        max_row_bytes: int,
        *,
        quoted: bool,
        linger: float,
        block_bytes: int | None,
        check: Callable[[Input, bytes], None],
    ) -> None:
        self._inputs = inputs
        self._max_row_bytes = max_row_bytes
        self._quoted = quoted
        self._linger = linger
        self._block_bytes = block_bytes or 0
        self._check = check
        #: The bytes read so far; for compressed files, after decompression.
        self.bytes_read = 0

    def blocks(self) -> Iterator[Block | None]:
        """Yield the blocks, and None where the input pauses."""
        for file in self._inputs:
            try:
                yield from self._of_file(file)
            except DAMAGED as error:
                raise InputError(f"{file.name} cannot be read further: {error}") from None

    def _of_file(self, file: Input) -> Iterator[Block | None]:
        splitter = LineSplitter(self._max_row_bytes, strips_cr=not self._quoted)
        quotes = _OpenQuotes(self._max_row_bytes) if self._quoted else None
        first, rows, size, is_begun = 1, [], 0, False
        for chunk in file.chunks(self._linger):
            if chunk is not None:
                if not is_begun and file.size is None:
                    self._check(file, chunk)
                is_begun = True
                self.bytes_read += len(chunk)
                lines = splitter.feed(chunk)
                size += len(chunk)
                rows += lines if quotes is None else quotes.join(lines)
                if size < self._block_bytes and len(rows) < _MOST_ROWS:
                    continue
            while rows:
                yield Block(file.name, first, rows[:_MOST_ROWS], size)
                first += len(rows[:_MOST_ROWS])
                rows, size = rows[_MOST_ROWS:], 0
            size = 0
            if chunk is None:
                yield None
        lines = splitter.finish()
        rows += lines if quotes is None else quotes.join(lines) + quotes.finish()
        if rows:
            yield Block(file.name, first, rows, size)


class _OpenQuotes:
    """Joins the lines of a record whose quotes hold line ends."""

    def __init__(self, max_row_bytes: int) -> None:
        self._max_row_bytes = max_row_bytes
        self._is_open = False
        self._lines: list[bytes] = []
        self._length = 0

    def join(self, lines: list[bytes]) -> list[bytes]:
        """Return the records that end with one of these lines. A line that is too long ends its record."""
        records = []
        for line in lines:
            is_odd = line.count(b'"') % 2 == 1
            if not self._is_open and not is_odd:
                records.append(line)
                continue
            if self._length <= self._max_row_bytes:
                self._lines.append(line)
                self._length += len(line) + 1
            self._is_open ^= is_odd
            if not self._is_open or len(line) > self._max_row_bytes:
                records += self.finish()
        return records

    def finish(self) -> list[bytes]:
        """Return the open record, as far as it was read."""
        records = [b"\n".join(self._lines)[: self._max_row_bytes + 1]] if self._lines else []
        self._lines, self._length, self._is_open = [], 0, False
        return records
