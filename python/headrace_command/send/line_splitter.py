"""Divides bytes into lines."""

from __future__ import annotations

__all__ = ["LineSplitter"]

_BOM = b"\xef\xbb\xbf"


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
