"""Compares what was committed, and the dead letters, with what was in the stream. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .worker import MAX_FAILURES, STREAM_KEY

#: How many entries of each kind a verdict names.
EXAMPLES = 5

#: The fields of an entry, in their order.
Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Entries:
    """The entries of a run: a number each, and some of them poison.

    Args:
        count: How many.
        poison: The numbers of the poison entries.
        streams: The keys of the streams, which get them in turns.
    """

    count: int
    poison: frozenset[int]
    streams: tuple[str, ...] = (STREAM_KEY,)

    def stream(self, number: int) -> str:
        return self.streams[number % len(self.streams)]

    @staticmethod
    def entry_id(number: int) -> str:
        """Several entries have the same time."""
        return f"{1_000 + number // 7}-{number % 7}"

    def fields(self, number: int) -> Fields:
        kind = b"poison" if number in self.poison else b"healthy"
        # Of equal names a map has the last one; a dead letter has both.
        return ((b"number", b"%d" % number), (b"kind", b"\x00\xff"), (b"kind", kind))


@dataclass
class Verdict:
    """What is wrong with a run; each count has the first entries concerned."""

    #: Healthy entries that were not committed.
    lost: int = 0
    #: Commits of each entry beyond the first one.
    committed_again: int = 0
    #: Deliveries of each entry beyond the first one.
    delivered_again: int = 0
    #: Rows that are no healthy entry, or one with other content.
    foreign: int = 0
    #: Poison entries without their dead letter.
    not_dead: int = 0
    #: Dead letters that are no poison entry, are changed, or come twice.
    wrong_dead: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        return not (self.lost or self.foreign or self.not_dead or self.wrong_dead)

    def add(self, sort: str, example: str) -> None:
        setattr(self, sort, getattr(self, sort) + 1)
        examples = self.examples.setdefault(sort, [])
        if len(examples) < EXAMPLES:
            examples.append(example)


def check(
    entries: Entries, rows: Iterable[tuple[str, str, int, int]], delivered: Iterable[str], dead: Sequence[Fields]
) -> Verdict:
    """Judge a run.

    Args:
        entries: What was in the stream.
        rows: The rows of the database: stream, entry ID, number, commits.
        delivered: The streams and IDs of the entries of all batches that were handed over.
        dead: The fields of each entry of the dead letters' stream.
    """
    verdict = Verdict()
    committed: set[int] = set()
    for stream, entry_id, number, commits in rows:
        is_known = 0 <= number < entries.count and number not in entries.poison and number not in committed
        if not is_known or (stream, entry_id) != (entries.stream(number), entries.entry_id(number)):
            verdict.add("foreign", f"{stream} {entry_id} {number}")
            continue
        committed.add(number)
        verdict.committed_again += commits - 1
    for number in range(entries.count):
        if number not in committed and number not in entries.poison:
            verdict.add("lost", f"{entries.stream(number)} {entries.entry_id(number)}")
    verdict.delivered_again = sum(count - 1 for count in Counter(delivered).values())
    _check_dead(verdict, entries, dead)
    return verdict


def _check_dead(verdict: Verdict, entries: Entries, dead: Sequence[Fields]) -> None:
    expected = {
        entries.fields(number): (entries.stream(number), entries.entry_id(number)) for number in sorted(entries.poison)
    }
    for fields in dead:
        stream, entry_id = expected.pop(fields[:-4], ("", ""))
        wanted = {b"dead:stream": stream.encode(), b"dead:id": entry_id.encode()}
        added = dict(fields[-4:])
        reason, failures = added.pop(b"dead:reason", b""), added.pop(b"dead:failures", b"")
        if added != wanted or not reason or failures != b"%d" % MAX_FAILURES:
            verdict.add("wrong_dead", repr(fields))
    for stream, entry_id in expected.values():
        verdict.add("not_dead", f"{stream} {entry_id}")
