"""The invariants of a consumer group: every entry is processed, and none is acknowledged before. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from faults.checker import Violation

from .checker import LOST, ORDER, OTHER, TOO_MANY, TWICE, UNREPORTED, Account, unexpected
from .journal import Acked, Dead, Done, Handed, LeaseLost, Opened, Record
from .ledger import Lineage, parse_id

EARLY = "R2 acknowledged before it was processed"
PENDING = "R3 left pending"
STALE = "R6 acknowledged after the lease was lost"
ENDS = "R8 both processed and dead"

Name = tuple[str, str]


def check_group(
    histories: Sequence[Sequence[Record]], lives: dict[str, list[Lineage]], pending: Sequence[Name], again: int
) -> Account:
    """Check what the consumers of one group did; they have read everything.

    `histories`: the records of each consumer. `pending`: what the server still has as pending. `again`: how often an
    entry may have been handed out again, by lost connections, killed processes and claims.
    """
    account = Account([found for records in histories for found in unexpected(records)])
    handed: Counter[Name] = Counter()
    done: set[Name] = set()
    dead: set[Name] = set()
    found: dict[str, list[Name]] = {what: [] for what in (EARLY, ORDER, OTHER, STALE, ENDS)}
    for records in histories:
        last: dict[str, tuple[int, int]] = {}
        mine: set[Name] = set()
        lost_leases: set[Name] = set()
        for record in records:
            match record:
                case Opened():
                    last = {}
                case Handed(ids, again=is_again):
                    handed.update(ids)
                    lost_leases -= set(ids)
                    if not is_again:
                        for key, entry_id in ids:
                            if parse_id(entry_id) <= last.get(key, (0, 0)):
                                found[ORDER].append((key, entry_id))
                            last[key] = parse_id(entry_id)
                case Done(rows):
                    for key, entry_id, was in rows:
                        if all(life.added.get(entry_id) != was for life in lives[key]):
                            found[OTHER].append((key, entry_id))
                        mine.add((key, entry_id))
                        done.add((key, entry_id))
                case Acked(ids):
                    found[EARLY] += [name for name in ids if name not in mine]
                    found[STALE] += [name for name in ids if name in lost_leases]
                case LeaseLost(ids):
                    lost_leases |= set(ids)
                case Dead(ids):
                    dead |= set(ids)
                    mine |= set(ids)
    found[ENDS] = sorted(done & dead)
    account.reported = sum(record.lost for records in histories for record in records if isinstance(record, Done))
    _entries(account, lives, done | dead, pending)
    twice = [name for name, count in handed.items() if count > 1 + again]
    for what, names in (*found.items(), (TWICE, twice), (PENDING, list(pending))):
        if names:
            account.violations.append(Violation(what, tuple(" ".join(name) for name in names)))
    return account


def _entries(account: Account, lives: dict[str, list[Lineage]], ended: set[Name], pending: Sequence[Name]) -> None:
    missing: list[str] = []
    lost: list[str] = []
    deleted = 0
    for key, each in lives.items():
        for life in each:
            for entry_id in life.added:
                if (key, entry_id) in ended:
                    continue
                if entry_id in life.deleted:
                    deleted += 1
                elif entry_id in life.trimmed:
                    lost.append(f"{key} {entry_id}")
                elif not life.over and (key, entry_id) not in pending:
                    missing.append(f"{key} {entry_id}")
    account.lost = len(lost)
    if missing:
        account.violations.append(Violation(LOST, tuple(missing)))
    if len(lost) > account.reported:
        account.violations.append(Violation(UNREPORTED, tuple(lost[account.reported :])))
    if account.reported > len(lost) + deleted:
        surplus = account.reported - len(lost) - deleted
        account.violations.append(Violation(TOO_MANY, ("of an entry that is not lost",) * surplus))
