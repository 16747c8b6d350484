"""The files of the input, and stdin."""

from __future__ import annotations

import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from headrace_command.exit_code import UsageError

__all__ = ["DAMAGED", "Input", "InputError", "inputs_of", "pyarrow_for", "without_compression"]

#: Bytes per read.
_CHUNK = 1 << 20
#: What reading a damaged file raises.
DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def inputs_of(files: Sequence[str]) -> list[Input]:
    """Return the inputs that the arguments name, all of which must exist. Without any, it is stdin."""
    for file in files:
        if file != "-" and not Path(file).exists():
            raise UsageError(f"there is no file {file!r}")
        if Path(file).is_dir():
            raise UsageError(f"{file!r} is a folder")
    if files.count("-") > 1:
        raise UsageError("stdin ('-') is given twice")
    return [Input(file) for file in files or ["-"]]


def without_compression(file: str) -> str:
    """Return the file name without the extension of its compression."""
    return next((file.removesuffix(ending) for ending in _COMPRESSIONS if file.endswith(ending)), file)


class Input:
    """A file, which may be compressed, or stdin.

    Attributes:
        name: The name for messages.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self.name = "stdin" if file == "-" else file

    @property
    def is_stdin(self) -> bool:
        """Whether it is stdin."""
        return self._file == "-"

    @property
    def is_terminal(self) -> bool:
        """Whether it is typed on a terminal."""
        return self.is_stdin and os.isatty(0)

    @property
    def path(self) -> str:
        """Its path, for a reader that needs a seekable file.

        Raises:
            UsageError: It is stdin.
        """
        if self.is_stdin:
            raise UsageError("parquet is read from its end: give a file instead of stdin")
        return self._file

    @property
    def size(self) -> int | None:
        """Its size in bytes, if known in advance."""
        if self.is_stdin:
            status = os.fstat(0)
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None if _is_pipe(self._file) else Path(self._file).stat().st_size

    def open(self) -> IO[bytes]:
        """Open it for reading, decompressed."""
        return opened(self._file) if not self.is_stdin else sys.stdin.buffer

    def head(self, size: int) -> tuple[bytes, bool] | None:
        """Return its first bytes, and whether they are all, without reading it; None if it cannot be read twice.

        What is damaged is reported once it is read.
        """
        if self.size is None:
            return None
        if self.is_stdin:
            found = os.pread(0, size + 1, os.lseek(0, 0, os.SEEK_CUR))
        else:
            try:
                with self.open() as file:
                    found = file.read(size + 1)
            except DAMAGED:
                return None
        return found[:size], len(found) <= size

    def chunks(self, linger: float) -> Iterator[bytes | None]:
        """Yield its bytes, and None if nothing arrived for `linger` seconds, once per pause of a pipe."""
        if self.is_stdin or _is_pipe(self._file):
            yield from _pipe_chunks(0 if self.is_stdin else os.open(self._file, os.O_RDONLY), linger)
            return
        with self.open() as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def opened(file: str) -> IO[bytes]:
    """Open a file according to its extension."""
    if file.endswith(".gz"):
        import gzip

        return gzip.open(file, "rb")  # type: ignore[return-value]
    if file.endswith(".bz2"):
        import bz2

        return bz2.open(file, "rb")
    if file.endswith(".xz"):
        import lzma

        return lzma.open(file, "rb")
    if file.endswith(".zst"):
        return pyarrow_for("a .zst file").CompressedInputStream(file, "zstd")  # type: ignore[no-any-return]
    return open(file, "rb", buffering=0)


def _pipe_chunks(descriptor: int, linger: float) -> Iterator[bytes | None]:
    is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    has_paused = True
    while True:
        if not is_regular and not has_paused:
            ready, _, _ = select.select([descriptor], [], [], linger)
            if not ready:
                has_paused = True
                yield None
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return
        has_paused = False
        yield chunk


def _is_pipe(file: str) -> bool:
    return not Path(file).is_file()


class InputError(UsageError):
    """The input is damaged or no longer readable. The rows before that point may have been sent."""


def pyarrow_for(what: str) -> Any:
    """Import pyarrow.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise UsageError(f"{what} needs pyarrow: pip install pyarrow") from None
    return pyarrow
