"""Compares what members wrote with what is in the streams. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .sink import EntryId, Row

#: How many rows of each sort a verdict names.
EXAMPLES = 3


class Entry(NamedTuple):
    """An entry of a shard."""

    entry_id: EntryId
    key: str
    number: int


@dataclass
class Verdict:
    """What became of the rows of an episode."""

    entries: int = 0
    #: What is wrong, by its sort: of the database, or of the leases.
    wrong: Counter[str] = field(default_factory=Counter)
    #: What the log shows: of rows that no database fences.
    log: Counter[str] = field(default_factory=Counter)
    #: What a failover explains.
    explained: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, sort: str, example: object, counter: Counter[str] | None = None) -> None:
        (self.wrong if counter is None else counter)[sort] += 1
        examples = self.examples.setdefault(sort, [])
        if len(examples) < EXAMPLES:
            examples.append(str(example))


def check_rows(
    verdict: Verdict, streams: Mapping[str, Sequence[Entry]], rows: Iterable[Row], *, is_lossy: bool
) -> None:
    """Judge the rows of the database, in the order in which they were written.

    Args:
        verdict: What is wrong is added to it.
        streams: The entries of each shard, at the end.
        rows: The rows.
        is_lossy: Whether a failover may have undone something.
    """
    left = {(shard, entry.entry_id): entry for shard, entries in streams.items() for entry in entries}
    verdict.entries = len(left)
    # A failover may have made the producer write rows again.
    ordered = {key for key, numbers in _numbers(streams).items() if all(a < b for a, b in pairwise(numbers))}
    if not is_lossy and (others := sorted(set(_numbers(streams)) - ordered)):
        verdict.add("the producer wrote a key out of order", others)
    seen: set[tuple[str, EntryId]] = set()
    last: dict[str, EntryId] = {}
    numbers: dict[str, int] = {}
    epochs: dict[str, int] = {}
    for row in rows:
        place = (row.shard, row.entry_id)
        if place in seen:
            verdict.add("a row is there twice", row)
        elif (entry := left.pop(place, None)) is None:
            verdict.add("a row of no entry", row, verdict.explained if is_lossy else None)
        elif (entry.key, entry.number) != (row.key, row.number):
            verdict.add("a row has other content than its entry", row)
        elif row.entry_id < last.get(row.shard, (0, 0)) or (
            row.key in ordered and row.number <= numbers.get(row.key, -1)
        ):
            verdict.add("a row is behind a later one of its key", row)
        seen.add(place)
        if row.epoch < epochs.get(row.shard, 0):
            verdict.add("a row has an older epoch than one before", row)
        last[row.shard] = max(row.entry_id, last.get(row.shard, (0, 0)))
        numbers[row.key] = max(row.number, numbers.get(row.key, -1))
        epochs[row.shard] = max(row.epoch, epochs.get(row.shard, 0))
    for place in left:
        verdict.add("an entry was lost", place)


def check_log(verdict: Verdict, streams: Mapping[str, Sequence[Entry]], rows: Iterable[Row], *, counts: bool) -> None:
    """Judge the log: of whom there is no database that fences, that is all there is.

    Args:
        verdict: What the log shows is added to it.
        streams: The entries of each shard, at the end.
        rows: The rows, in the order in which they were written.
        counts: Whether what is wrong is only counted. Otherwise each entry must be there, and for the first time behind
            all entries of its shard that are before it.
    """
    entries = {(shard, entry.entry_id) for shard, each in streams.items() for entry in each}
    newest = {key: numbers[-1] for key, numbers in _numbers(streams).items()}
    seen: set[tuple[str, EntryId]] = set()
    first: dict[str, EntryId] = {}
    epochs: dict[str, int] = {}
    current: dict[str, int] = {}
    for row in rows:
        verdict.log["rows"] += 1
        place = (row.shard, row.entry_id)
        if place in seen:
            verdict.log["repeated"] += 1
        elif row.entry_id < first.get(row.shard, (0, 0)):
            verdict.log["out of order"] += 1
            if not counts:
                verdict.add("an entry was processed first behind a later one", row)
        else:
            first[row.shard] = row.entry_id
        seen.add(place)
        if row.epoch < epochs.get(row.shard, 0):
            verdict.log["behind the next owner"] += 1
        epochs[row.shard] = max(row.epoch, epochs.get(row.shard, 0))
        current[row.key] = row.number
    missing = entries - seen
    verdict.log["lost"] += len(missing)
    verdict.log["keys"] += len(newest)
    verdict.log["keys that end with an old row"] += sum(
        current.get(key, number) < number for key, number in newest.items()
    )
    if missing and not counts:
        verdict.add("an entry was not processed", sorted(missing)[:EXAMPLES])


class Lease(NamedTuple):
    """A lease as the server has it."""

    owner: str
    epoch: int
    until: int
    #: The entry up to which the shard is committed.
    position: EntryId | None


@dataclass
class LeaseChecker:
    """Judges the leases of each shard as they are seen one after the other."""

    verdict: Verdict
    leases: dict[str, Lease] = field(default_factory=dict)
    positions: dict[str, EntryId] = field(default_factory=dict)
    #: The owner of each epoch of each shard.
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    #: The changes of owners.
    moves: int = 0
    #: Whether a failover may have undone something.
    is_lossy: bool = False

    def see(self, shard: str, lease: Lease) -> None:
        before = self.leases.get(shard)
        undone = self.verdict.explained if self.is_lossy else None
        if before is not None and lease.epoch < before.epoch:
            self.verdict.add("an epoch went back", (shard, before, lease), undone)
        if lease.owner:
            owner = self.owners.setdefault((shard, lease.epoch), lease.owner)
            if owner != lease.owner:
                self.verdict.add("two members had one epoch", (shard, owner, lease))
        if before is None or before.epoch != lease.epoch:
            self.moves += 1
        if lease.position is not None:
            if lease.position < self.positions.get(shard, (0, 0)):
                self.verdict.add("a position went back", (shard, self.positions[shard], lease), undone)
            self.positions[shard] = lease.position
        self.leases[shard] = lease


def check_positions(
    verdict: Verdict, streams: Mapping[str, Sequence[Entry]], leases: Mapping[str, Lease], groups: Mapping[str, EntryId]
) -> None:
    """Judge where the leases and the groups are once everything was committed and every member has closed."""
    for shard, entries in streams.items():
        last = entries[-1].entry_id if entries else (0, 0)
        lease = leases.get(shard)
        if lease is None or (lease.position or (0, 0)) != last:
            verdict.add("a position is not at the end", (shard, last, lease))
        if groups.get(shard, (0, 0)) != last:
            verdict.add("the group is not at the end", (shard, last, groups.get(shard)))
        if lease is not None and lease.owner:
            verdict.add("a member that has closed owns a shard", (shard, lease))


def check_report(verdict: Verdict, report: Mapping[str, int], withheld: int) -> None:
    """Judge the counts of a member that has closed. `withheld`: the entries that it got and did not commit."""
    settled = report["committed"] + report["fenced"] + report["unknown"]
    if not report["handed_over"] - withheld <= settled <= report["handed_over"] or report["pending"]:
        verdict.add("the counts of a member do not add up", (dict(report), withheld))


def shares(shards: int, members: int) -> Counter[int]:
    """How many members have how many shards once these are shared evenly."""
    return Counter(shards // members + (place < shards % members) for place in range(members))


def _numbers(streams: Mapping[str, Sequence[Entry]]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for entries in streams.values():
        for entry in entries:
            numbers.setdefault(entry.key, []).append(entry.number)
    return numbers
