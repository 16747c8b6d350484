"""Reads Arrow rows: from Parquet, and from both forms of Arrow IPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from headrace_command.send.inputs import Input, InputError, pyarrow_for
from headrace_command.send.rows import Block, Layout, Prepared

__all__ = ["BatchRows", "Batches"]

#: The rows of a Parquet record batch, and the most rows of a block.
_ROWS = 65_536
_MAGIC = b"ARROW1"


class Batches:
    """The record batches of inputs.

    Args:
        inputs: The files.
        form: "parquet" or "arrow".
    """

    def __init__(self, inputs: Sequence[Input], form: str) -> None:
        self._pa = pyarrow_for(form)
        self._inputs = inputs
        self._form = form
        #: The bytes of the rows read so far.
        self.bytes_read = 0

    def blocks(self) -> Iterator[Block | None]:
        """Yield the blocks, each of one record batch or a part of it."""
        for file in self._inputs:
            first = 1
            try:
                for batch in self._of_file(file):
                    for at in range(0, batch.num_rows, _ROWS):
                        rows = batch.slice(at, _ROWS)
                        self.bytes_read += rows.nbytes
                        yield Block(file.name, first, rows, rows.nbytes)
                        first += rows.num_rows
            except (self._pa.ArrowInvalid, OSError) as error:
                raise InputError(
                    f"{file.name} cannot be read as {self._form} after row {first - 1:,}: {error}"
                ) from None

    def _of_file(self, file: Input) -> Iterator[Any]:
        if self._form == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(file.path) as rows:
                yield from rows.iter_batches(_ROWS)
            return
        with file.open() as opened:
            yield from self._of_ipc(opened, file)

    def _of_ipc(self, opened: IO[bytes], file: Input) -> Iterator[Any]:
        beginning = b""
        while len(beginning) < len(_MAGIC) and (more := opened.read(len(_MAGIC) - len(beginning))):
            beginning += more
        if beginning == _MAGIC:
            with self._pa.ipc.open_file(file.path) as rows:
                for at in range(rows.num_record_batches):
                    yield rows.get_batch(at)
            return
        with self._pa.ipc.open_stream(self._pa.PythonFile(_Joined(beginning, opened), "r")) as stream:
            yield from stream


class _Joined:
    """A file whose beginning has already been read."""

    closed = False

    def __init__(self, beginning: bytes, rest: IO[bytes]) -> None:
        self._beginning = beginning
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        """Read that many bytes, or all."""
        if self._beginning:
            taken = self._beginning if size < 0 else self._beginning[:size]
            self._beginning = self._beginning[len(taken) :]
            return (
                taken + self._rest.read()
                if size < 0
                else taken + (self.read(size - len(taken)) if size > len(taken) else b"")
            )
        parts: list[bytes] = []
        while size and (part := self._rest.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class BatchRows:
    """Each row is a row of a record batch. No row counts as bad before the core has checked it.

    Args:
        layout: Which part of a row becomes the entry.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def prepare(self, block: Block) -> Prepared:
        """Pass the rows on unchanged."""
        rows = block.rows
        return Prepared(block, range(rows.num_rows), {}, table=rows, layout=self._layout.arguments(rows.schema))

    def pass_over(self, _block: Block, /) -> int:
        """Return 0: no row is a header."""
        return 0
