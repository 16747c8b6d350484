"""Compare the content of one or several streams with the expected rows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .rows import Rows, parse

#: How many rows of each kind a verdict names.
EXAMPLES = 5


@dataclass
class Verdict:
    """The faults of the streams; for each count, the first rows affected, as `file:number`."""

    expected: int
    entries: int = 0
    #: Rows that are missing.
    lost: int = 0
    #: Entries beyond the first of each row.
    duplicated: int = 0
    #: Entries that are no row, have other bytes, are of another stream, or were trimmed before they could be read.
    foreign: int = 0
    #: Rows whose first entry follows that of a later row of their partition, or of a later micro-batch.
    out_of_order: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def exactly_once(self) -> bool:
        return self.at_least_once and not self.duplicated and not self.out_of_order

    @property
    def at_least_once(self) -> bool:
        return not self.lost and not self.foreign

    def add(self, sort: str, row: str) -> None:
        setattr(self, sort, getattr(self, sort) + 1)
        examples = self.examples.setdefault(sort, [])
        if len(examples) < EXAMPLES:
            examples.append(row)


#: The micro-batch and the partition of a row.
Place = Callable[[int, int], tuple[int, int]]


def by_files(batches: Mapping[int, int]) -> Place:
    """The place of each row if each file is a partition, from the micro-batch of each file."""
    return lambda file, _: (batches[file], file)


def stream_of(number: int, streams: int) -> int:
    """The stream that a row belongs to, by its number in its file."""
    return number % streams


def check(
    rows: Rows, *streams: Iterable[bytes], place: Place | None = None, trimmed: Mapping[int, int] | None = None
) -> Verdict:
    """Judge the payloads of each stream, in the stream's order.

    Args:
        rows: The expected rows.
        streams: The content of each stream; `stream_of` says which rows belong to it.
        place: The actual place of each row; None means the planned place of its file.
        trimmed: How many of the first rows of a file were trimmed before they could be read.
    """
    place_of = place or by_files({file: rows.batch_of(file) for file in range(rows.files)})
    gone = [(trimmed or {}).get(file, 0) for file in range(rows.files)]
    verdict = Verdict(expected=rows.count - sum(gone))
    seen = [bytearray(rows.rows_per_file) for _ in range(rows.files)]
    for stream, payloads in enumerate(streams):
        newest: dict[int, tuple[int, int]] = {}  # the latest row of each partition so far
        batch = 0  # the latest micro-batch so far
        for payload in payloads:
            verdict.entries += 1
            row = parse(payload)
            if row is None or row[0] >= rows.files or not gone[row[0]] <= row[1] < rows.rows_per_file:
                verdict.add("foreign", repr(payload[:40]))
                continue
            file, number = row
            if stream_of(number, len(streams)) != stream:
                verdict.add("foreign", f"{file}:{number}")
                continue
            if seen[file][number]:
                verdict.add("duplicated", f"{file}:{number}")
                continue
            seen[file][number] = 1
            of_batch, partition = place_of(file, number)
            if row < newest.get(partition, row) or of_batch < batch:
                verdict.add("out_of_order", f"{file}:{number}")
            newest[partition] = max(newest.get(partition, row), row)
            batch = max(batch, of_batch)
    for file, numbers in enumerate(seen):
        for number, is_there in enumerate(numbers):
            if not is_there and number >= gone[file]:
                verdict.add("lost", f"{file}:{number}")
    return verdict
