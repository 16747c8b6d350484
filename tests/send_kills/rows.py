"""Numbered rows of JSON, as many bytes as wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: What stands behind the number: about 200 bytes, as in the flights of the demo.
PADDING = b'", "origin": "JFK", "dest": "LAX", "carrier": "AA", "note": "' + b"x" * 120 + b'"}'
#: Rows that are written at once.
ROWS = 10_000


def row(number: int) -> bytes:
    return b'{"n": "%d' % number + PADDING


def chunks(size: int) -> Iterator[tuple[int, bytes]]:
    """Rows of `size` bytes or a little more: how many there are so far, and the next ones."""
    number = written = 0
    while written < size:
        chunk = b"".join(row(one) + b"\n" for one in range(number, number + ROWS))
        number += ROWS
        written += len(chunk)
        yield number, chunk


def write_rows(path: Path, size: int) -> int:
    """Write them to a file. Returns how many there are."""
    number = 0
    with path.open("wb") as file:
        for number, chunk in chunks(size):  # noqa: B007, the last one is returned
            file.write(chunk)
    return number
