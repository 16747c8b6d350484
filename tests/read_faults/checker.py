"""The invariants of reading: processed rows and reports agree with what happened to the streams. No I/O.

The names R1 to R10 are used by the tests of the checker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faults.checker import Violation

from .journal import Done, Doubted, Failed, Record, Replaced, Row
from .ledger import Lineage, parse_id

LOST = "R1 neither handed over nor reported as lost"
ORDER = "R4 handed over out of order"
TWICE = "R5 processed twice"
OTHER = "R7 rows that XADD did not write"
UNREPORTED = "R9 lost and not reported"
TOO_MANY = "R9 reported as lost and not lost"
NO_DOUBT = "R9 lost without a warning"
REPLACED = "R9 streams reported as replaced that were not"
UNNOTICED = "R9 replaced streams that were not noticed"
STUCK = "reading does not go on"
UNEXPECTED = "unexpected errors"


@dataclass
class Segment:
    """The processed rows of one stream, up to the report that it was replaced."""

    rows: list[Row] = field(default_factory=list)
    #: Whether it started with a report. Otherwise the client continues to read, and its earlier rows remain valid.
    reported: bool = True


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a client can be expected to report."""

    #: Whether the server counts entries, so that losses can be numbered.
    counts: bool = True


@dataclass
class Account:
    """The violations, and the numbers of lost entries according to the ledger and to the reports."""

    violations: list[Violation]
    lost: int = 0
    reported: int = 0


def check(records: Sequence[Record], lives: dict[str, list[Lineage]], promise: Promise) -> Account:
    """Check the records of a client with positions that has read everything.

    A report of a loss that comes with rows names no stream, so losses are compared for all streams together, between
    two replacements.
    """
    account = Account([])
    account.violations += unexpected(records)
    segments = _segments(records, lives, account)
    missing: list[str] = []
    twice: list[str] = []
    disorder: list[str] = []
    other: list[str] = []
    lost: list[str] = []
    certain: list[str] = []
    deleted = 0
    for key, parts in segments.items():
        earlier: set[Row] = set()
        for part, life in zip(parts, lives[key], strict=True):
            read = [entry_id for _, entry_id, _ in part.rows]
            known = set(read)
            if not part.reported:
                known |= {entry_id for _, entry_id, was in earlier if life.added.get(entry_id) == was}
            earlier |= set(part.rows)
            twice += _repeated(key, read)
            disorder += [f"{key} {b} after {a}" for a, b in pairwise(read) if parse_id(b) < parse_id(a)]
            other += [f"{key} {entry_id}" for _, entry_id, was in part.rows if life.added.get(entry_id) != was]
            if not life.over:
                missing += [f"{key} {entry_id}" for entry_id in life.live if entry_id not in known]
            gone = life.trimmed - known
            lost += [f"{key} {entry_id}" for entry_id in life.added if entry_id in gone]
            # Losses of a life that has ended need no report: the report of its end covers them. And if the server does
            # not count, a reader that has read nothing cannot know that there were earlier entries.
            first = (0, 0) if promise.counts else min(map(parse_id, read), default=None)
            if not life.over and first is not None:
                certain += [
                    f"{key} {entry_id}" for entry_id in life.added if entry_id in gone and parse_id(entry_id) > first
                ]
            deleted += len(life.deleted - known)
    account.lost = len(lost)
    for what, names in ((LOST, missing), (TWICE, twice), (ORDER, disorder), (OTHER, other)):
        account.violations += _violation(what, names)
    account.violations += _losses(records, promise, account, certain, deleted)
    return account


def unexpected(records: Sequence[Record]) -> Iterator[Violation]:
    """Find errors that the documentation does not name."""
    errors = [record.error for record in records if isinstance(record, Failed) and not record.expected]
    yield from _violation(UNEXPECTED, errors)


def _losses(
    records: Sequence[Record], promise: Promise, account: Account, certain: list[str], deleted: int
) -> Iterator[Violation]:
    done = [record for record in records if isinstance(record, Done)]
    account.reported = sum(record.lost for record in done)
    exact = all(record.exact for record in done if record.lost)
    if not promise.counts:
        if certain and not any(isinstance(record, Doubted) for record in records):
            yield from _violation(NO_DOUBT, certain)
        return
    most = account.lost if exact else account.lost + deleted
    yield from _violation(UNREPORTED, certain[account.reported :])
    yield from _violation(TOO_MANY, ["of an entry that is not lost"] * (account.reported - most))


def _segments(records: Sequence[Record], lives: dict[str, list[Lineage]], account: Account) -> dict[str, list[Segment]]:
    """The rows of each life of each stream. If a client reports no replacement, the digests show the life."""
    segments = {key: [Segment()] for key in lives}
    false, unnoticed = [], []
    for record in records:
        if isinstance(record, Replaced):
            if len(segments[record.key]) < len(lives[record.key]):
                segments[record.key].append(Segment())
            else:
                false.append(record.key)
        elif isinstance(record, Done):
            for row in record.rows:
                key, entry_id, was = row
                parts = segments[key]
                if lives[key][len(parts) - 1].added.get(entry_id) != was:
                    later = lives[key][len(parts) :]
                    found = [at for at, life in enumerate(later, 1) if life.added.get(entry_id) == was]
                    if found:
                        unnoticed += [f"{key} {entry_id}"] * found[0]
                        parts += [Segment(reported=False) for _ in range(found[0])]
                parts[-1].rows.append(row)
    for key, parts in segments.items():
        unnoticed += [f"{key} (end)"] * (len(lives[key]) - len(parts))
        parts += [Segment(reported=False) for _ in range(len(lives[key]) - len(parts))]
    account.violations += _violation(REPLACED, false)
    account.violations += _violation(UNNOTICED, unnoticed)
    return segments


def _repeated(key: str, read: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [f"{key} {entry_id}" for entry_id in read if entry_id in seen or seen.add(entry_id)]  # type: ignore[func-returns-value]


def _violation(what: str, names: Sequence[str]) -> Iterator[Violation]:
    if names:
        yield Violation(what, tuple(names))
