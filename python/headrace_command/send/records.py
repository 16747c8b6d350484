"""Reads rows that are bytes: lines, JSON lines, and CSV records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace_command.send.inputs import DAMAGED, Input, InputError
from headrace_command.send.rows import Block

__all__ = ["LineSplitter", "Records"]

#: The most rows of a block: each takes about 40 bytes in addition to its own.
_MOST_ROWS = 262_144
_BOM = b"\xef\xbb\xbf"


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


class LineSplitter:
    r"""Divides bytes into lines, which end with `\n`, or with `\r\n` if `strips_cr`.

    A byte order mark at the very beginning is removed. A line of more than `max_bytes` is cut to one byte more than
    that, so that its length shows that it is too long.

    Args:
        max_bytes: The most bytes of a line, without its end.
        strips_cr: Whether a carriage return before a line feed belongs to the end of the line.
    """

    def __init__(self, max_bytes: int, *, strips_cr: bool = True) -> None:
        self._kept_bytes = max_bytes + 1
        self._strips_cr = strips_cr
        #: The beginning of a line without an end so far, and its length.
        self._parts: list[bytes] = []
        self._length = 0
        self._has_begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end within these bytes."""
        if not self._has_begun:
            chunk = b"".join(self._parts) + chunk
            self._parts = []
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._parts = [chunk]
                return []
            self._has_begun = True
            chunk = chunk.removeprefix(_BOM)
        lines = chunk.split(b"\n")
        last = lines.pop()
        if lines:
            self._keep(lines[0])
            lines[0] = self._take()
            if len(chunk) >= self._kept_bytes:
                lines = [line[: self._kept_bytes] for line in lines]
            if self._strips_cr and (b"\r" in chunk or lines[0].endswith(b"\r")):
                lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        self._keep(last)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, if it has no end. The next bytes fed begin another file."""
        line = self._take()
        if not self._has_begun:
            line = line.removeprefix(_BOM)
        self._has_begun = False
        return [line] if line else []

    def _keep(self, part: bytes) -> None:
        if part and self._length < self._kept_bytes:
            part = part[: self._kept_bytes - self._length]
            self._parts.append(part)
            self._length += len(part)

    def _take(self) -> bytes:
        line = b"".join(self._parts)
        self._parts, self._length = [], 0
        return line
