"""The invariants of a consumer group: every entry is processed, and none is acknowledged before that. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from faults.checker import Violation

from .checker import LOST, ORDER, OTHER, TOO_MANY, TWICE, UNREPORTED, Account, unexpected
from .journal import Acked, Closed, Dead, Done, Handed, Kept, LeaseLost, Opened, Record, Returned, Row
from .ledger import Lineage, parse_id

EARLY = "R2 acknowledged before it was processed"
PENDING = "R3 left pending"
STALE = "R6 acknowledged after the lease was lost"
SHARED = "R6 a lease that another consumer had"
ENDS = "R8 both processed and dead"
HEALTHY = "R8 dead and not poison"
STRANDED = "R11 kept by a consumer that was stopped"

Name = tuple[str, str]


@dataclass
class GroupFacts:
    """What others did to a group, and its state on the server."""

    #: Entries that are still pending on the server at the end.
    pending: Sequence[Name] = ()
    #: How often an entry may come again: after lost connections, killed processes, group changes. None: no limit.
    again: int | None = 0
    #: Entries that the group was moved past, or that were dropped with their consumer: no consumer has to get them.
    excused: set[Name] = field(default_factory=set)
    #: Entries that count as new again, because the group was moved back before them, or created again.
    moved: set[Name] = field(default_factory=set)
    #: Entries that were removed while they were pending, and must have been processed or reported.
    removed: set[Name] = field(default_factory=set)
    #: The dead letters. The client must have moved only poison there.
    dead: list[Row] = field(default_factory=list)
    poison: set[Name] | None = None
    #: Entries acknowledged on the server before a consumer had processed them, or while another client owned them.
    early: set[Name] = field(default_factory=set)
    stale: set[Name] = field(default_factory=set)
    #: The histories of second processes with a name. Two processes with one name get each other's entries as their own.
    namesakes: set[int] = field(default_factory=set)
    #: Entries that stopped consumers did not release.
    stranded: set[Name] = field(default_factory=set)


def check_group(histories: Sequence[Sequence[Record]], lives: dict[str, list[Lineage]], facts: GroupFacts) -> Account:
    """Check what the consumers of one group did; they have read everything. `histories` has the records of each."""
    account = Account([found for records in histories for found in unexpected(records)])
    records = [record for each in histories for record in each]
    returned = Counter(name for record in records if isinstance(record, Returned) for name in record.ids)
    closed = min((record.at for record in records if isinstance(record, Closed)), default=math.inf)
    handed: Counter[Name] = Counter()
    done: set[Name] = set()
    dead = {(key, entry_id) for key, entry_id, _ in facts.dead}
    found: dict[str, list[Name]] = {what: [] for what in (EARLY, ORDER, OTHER, STALE, ENDS)}
    for each in histories:
        last: dict[str, tuple[int, int]] = {}
        mine: set[Name] = set()
        lost_leases: set[Name] = set()
        for record in each:
            match record:
                case Opened():
                    last = {}
                case Handed(ids):
                    lost_leases -= set(ids)
                    if not record.reclaimed:
                        handed.update(ids)
                    # Released entries are delivered again, to any consumer, as if they had not been delivered.
                    is_new = not (record.again or record.reclaimed) and record.at < closed
                    for key, entry_id in ids if is_new else ():
                        if (key, entry_id) in facts.moved or (key, entry_id) in returned:
                            continue
                        if parse_id(entry_id) <= last.get(key, (0, 0)):
                            found[ORDER].append((key, entry_id))
                        last[key] = parse_id(entry_id)
                case Done(rows):
                    found[OTHER] += _others(rows, lives)
                    done |= {(key, entry_id) for key, entry_id, _ in rows}
                    mine |= {(key, entry_id) for key, entry_id, _ in rows}
                case Acked(ids):
                    found[EARLY] += [name for name in ids if name not in mine]
                    found[STALE] += [name for name in ids if name in lost_leases]
                case LeaseLost(ids):
                    lost_leases |= set(ids)
                case Dead(ids):
                    dead |= set(ids)
                    mine |= set(ids)
    found[OTHER] += _others(facts.dead, lives)
    found[ENDS] = sorted(done & dead)
    found[HEALTHY] = [] if facts.poison is None else sorted(dead - facts.poison)
    found[EARLY] += sorted(facts.early)
    found[STALE] += sorted(facts.stale)
    found[STRANDED] = sorted(facts.stranded)
    found[SHARED] = list(_shared(histories, facts.namesakes))
    found[PENDING] = list(facts.pending)
    if (again := facts.again) is not None:
        found[TWICE] = [name for name, count in handed.items() if count > 1 + again + returned[name]]
    account.reported = sum(record.lost for record in records if isinstance(record, Done))
    _entries(account, lives, done | dead, facts)
    for what, names in found.items():
        if names:
            account.violations.append(Violation(what, tuple(" ".join(name) for name in names)))
    return account


def _others(rows: Iterable[Row], lives: dict[str, list[Lineage]]) -> list[Name]:
    """The rows that differ from the entries that were added."""
    return [
        (key, entry_id)
        for key, entry_id, was in rows
        if all(life.added.get(entry_id) != was for life in lives.get(key, ()))
    ]


def _shared(histories: Sequence[Sequence[Record]], namesakes: set[int]) -> Iterable[Name]:
    """Entries confirmed as one consumer's although one with another name had already claimed and received them."""
    claims: dict[Name, list[tuple[int, float]]] = {}
    others = [(at, records) for at, records in enumerate(histories) if at not in namesakes]
    for at, records in others:
        for record in records:
            if isinstance(record, Handed) and record.reclaimed:
                for name in record.ids:
                    claims.setdefault(name, []).append((at, record.at))
    for at, records in others:
        since: dict[Name, float] = {}
        for record in records:
            if isinstance(record, Handed):
                since |= dict.fromkeys(record.ids, record.at)
            elif isinstance(record, Kept):
                for name in record.ids:
                    if any(by != at and since[name] < when < record.at for by, when in claims.get(name, ())):
                        yield name


def _entries(account: Account, lives: dict[str, list[Lineage]], ended: set[Name], facts: GroupFacts) -> None:
    missing: list[str] = []
    lost: list[str] = []
    unreported: list[str] = []
    removed = 0
    for key, each in lives.items():
        for life in each:
            removed += len(life.deleted | life.trimmed)
            for entry_id in life.added:
                name = (key, entry_id)
                if name in ended or name in facts.excused:
                    continue
                if entry_id in life.trimmed or entry_id in life.deleted:
                    if entry_id in life.trimmed:
                        lost.append(f"{key} {entry_id}")
                    # Entries trimmed before they were read are not reported by the group; `inspect` shows them.
                    if name in facts.removed:
                        unreported.append(f"{key} {entry_id}")
                elif not life.over and name not in facts.pending:
                    missing.append(f"{key} {entry_id}")
    account.lost = len(lost)
    if missing:
        account.violations.append(Violation(LOST, tuple(missing)))
    if len(unreported) > account.reported:
        account.violations.append(Violation(UNREPORTED, tuple(unreported[account.reported :])))
    if account.reported > removed:
        surplus = account.reported - removed
        account.violations.append(Violation(TOO_MANY, ("of an entry that is not lost",) * surplus))
