"""The rows of a stream: text files whose lines contain their position, so that each can be checked individually."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: The length of a line in bytes, like that of a small JSON document.
LINE_BYTES = 100


@dataclass(frozen=True)
class Rows:
    """The rows to write. One file is one partition of its micro-batch (`driver` ensures that).

    Args:
        files: The number of files.
        rows_per_file: The number of lines in each file.
        files_per_batch: The number of files in a micro-batch; the last one may have fewer.
    """

    files: int
    rows_per_file: int
    files_per_batch: int

    @property
    def count(self) -> int:
        return self.files * self.rows_per_file

    @property
    def batches(self) -> int:
        return -(-self.files // self.files_per_batch)

    def batch_of(self, file: int) -> int:
        """The micro-batch that a file belongs to."""
        return file // self.files_per_batch


def line(file: int, number: int) -> bytes:
    """A row: the file's number, its own number in the file, and a filler that no other row has."""
    head = b"%05d:%07d:" % (file, number)
    filling = b"%x," % (file * 2_654_435_761 + number * 40_503)
    return head + (filling * LINE_BYTES)[: LINE_BYTES - len(head)]


def parse(payload: bytes) -> tuple[int, int] | None:
    """The file and the number of a row; None if the payload is not exactly one of our rows."""
    parts = payload[:14].split(b":")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    file, number = int(parts[0]), int(parts[1])
    return (file, number) if payload == line(file, number) else None


def write_files(folder: Path, rows: Rows) -> None:
    """Write the files into a new folder. Spark reads the oldest first, so each is a second younger than the last."""
    folder.mkdir(parents=True)
    for file in range(rows.files):
        path = folder / f"{file:05d}.txt"
        path.write_bytes(b"".join(line(file, number) + b"\n" for number in range(rows.rows_per_file)))
        os.utime(path, (1_700_000_000 + file,) * 2)
