"""Changes that others make to a consumer group, and its state on the server: positions, consumers, claims, pending."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from faults.testbed import FaultTestbed

from .client_base import DEAD_LETTERS, GROUP, GroupRules
from .consumer_client import LONGEST_DELAY
from .group_checker import GroupFacts, Name
from .journal import Acked, Done, Handed, Record, Row, digest
from .ledger import Ledger, parse_id

#: The consumer that takes entries from others.
OTHER = "another client"
_ALL = 1_000_000


@dataclass
class _Claim:
    """The entries that the other client has claimed, and the time of the claim."""

    key: str
    ids: list[str]
    since: float


class GroupChanges:
    """The group of an episode. Each change returns whether it affected entries."""

    def __init__(self, testbed: FaultTestbed, ledger: Ledger, rules: GroupRules, rng: random.Random) -> None:
        self._testbed = testbed
        self._control: Any = testbed.control
        self._ledger = ledger
        self._rules = rules
        self._rng = rng
        self._keys = list(ledger.lives)
        self._claim: _Claim | None = None
        #: Each move back: the stream, the ID after which the group reads again, and its position before.
        self._moves: list[tuple[str, tuple[int, int], tuple[int, int]]] = []
        #: Entries that were removed while they were pending; the number reported as lost before that; the connections.
        self._gone: set[Name] = set()
        self._reported = 0
        self._connections: set[int] | None = None
        self._namesake_ended = -math.inf
        self.facts = GroupFacts()
        #: The actions of the other client.
        self.records: list[Record] = []
        self._done: set[Name] = set()
        for key in self._keys:
            self._control.xgroup_create(key, GROUP, "0", mkstream=True)

    # Changes.

    def move_back(self) -> bool:
        """XGROUP SETID to an entry that was already delivered, or to the start."""
        key = self._rng.choice(self._keys)
        found = self._position(key)
        delivered = [entry_id for entry_id in self._ledger.now(key).live if parse_id(entry_id) <= found]
        if not delivered:
            return False
        return bool(self._move(key, self._rng.choice(["0-0", *delivered])))

    def move_forward(self) -> bool:
        """XGROUP SETID to an entry that was not yet delivered."""
        key = self._rng.choice(self._keys)
        found = self._position(key)
        ahead = [entry_id for entry_id in self._ledger.now(key).live if parse_id(entry_id) > found]
        return bool(ahead and self._move(key, self._rng.choice(ahead)))

    def delete_consumer(self, name: str) -> bool:
        """XGROUP DELCONSUMER: the entries pending for the consumer are dropped."""
        key = self._rng.choice(self._keys)
        pending, _ = self._together(
            ("XPENDING", key, GROUP, "-", "+", _ALL, name), ("XGROUP", "DELCONSUMER", key, GROUP, name)
        )
        if isinstance(pending, Exception):
            return False
        dropped = {(key, entry[0].decode()) for entry in pending}
        self.facts.excused |= dropped
        return bool(dropped)

    def destroy(self) -> bool:
        """XGROUP DESTROY."""
        key = self._rng.choice(self._keys)
        groups, destroyed = self._together(("XINFO", "GROUPS", key), ("XGROUP", "DESTROY", key, GROUP))
        before = _last_delivered(groups) or (0, 0)
        self._moves.append((key, (0, 0), before))
        return bool(destroyed == 1 and before > (0, 0))

    def claim(self) -> bool:
        """XCLAIM of some entries that consumers are working on."""
        key = self._rng.choice(self._keys)
        pending = self._pending(key)
        if not pending:
            return False
        first = self._rng.randrange(len(pending))
        ids = [entry[0] for entry in pending[first : first + self._rng.randint(1, 10)]]
        since = time.monotonic()
        (reply,) = self._together(("XCLAIM", key, GROUP, OTHER, 0, *ids))
        if isinstance(reply, Exception):
            return False
        # Redis 6.2 returns nil in place of a deleted entry.
        rows = [(key, entry[0].decode(), digest(_pairs(entry[1]))) for entry in reply if entry]
        if not rows:
            return False
        self._claim = _Claim(key, [entry_id for _, entry_id, _ in rows], since)
        names = tuple((key, entry_id) for _, entry_id, _ in rows)
        self.records.append(Handed(names, again=True))
        self._claimed = tuple(rows)
        return True

    def end_claim(self) -> None:
        """Check that the other client still owns what it claimed; it processes and acknowledges that, or dies."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        time.sleep(self._rng.uniform(0.0, 0.5) * self._rules.min_idle)
        has = {entry_id for entry_id, *_ in self._pending(claim.key, OTHER)}
        # Within the lease; and if the group was destroyed meanwhile, the other client has no entries.
        if time.monotonic() - claim.since < 0.9 * self._rules.min_idle:
            self.facts.stale |= {(claim.key, entry_id) for entry_id in claim.ids if entry_id not in has}
        if self._rng.random() < 0.5:
            names = tuple((key, entry_id) for key, entry_id, _ in self._claimed)
            self.records += [Done(self._claimed), Acked(names)]
            self._done |= set(names)
            self._testbed.command("XACK", claim.key, GROUP, *claim.ids)

    # The state of the group.

    def look(self, ended: set[Name]) -> None:
        """Check that acknowledged entries were processed or are dead letters. All consumers are suspended."""
        ended = ended | self._done | self.facts.excused
        early: set[Name] = set()
        for key in self._keys:
            pending, groups = self._together(("XPENDING", key, GROUP, "-", "+", _ALL), ("XINFO", "GROUPS", key))
            if isinstance(pending, Exception) or not (last := _last_delivered(groups)):
                continue
            ended |= {(key, entry[0].decode()) for entry in pending}
            delivered = [entry_id for entry_id in self._ledger.now(key).live if parse_id(entry_id) <= last]
            early |= {(key, entry_id) for entry_id in delivered if (key, entry_id) not in ended}
        if early:
            # Read last: the server may get a request to move one while the consumer that sent it is suspended.
            early -= {(key, entry_id) for key, entry_id, _ in self.dead_letters()}
        self.facts.early |= early

    def removed(self, key: str, gone: set[str]) -> None:
        """Record that entries were removed from the stream; all consumers are suspended."""
        pending = {entry_id for entry_id, *_ in self._pending(key)}
        self._gone |= {(key, entry_id) for entry_id in gone & pending}
        self.facts.removed |= self._gone

    def watch_losses(self, done: set[Name], reported: int) -> None:
        """Prepare for the removal of entries. `reported` is the number reported as lost so far."""
        self._gone = set()
        self._reported = reported
        # Entries that were already pending may also have been removed earlier.
        self._connections = None if self.left(done) else set(self._testbed.client_ids())

    def has_reported(self, done: set[Name], reported: int) -> bool:
        """Whether entries that were removed while they were pending were processed, or reported as lost.

        When a consumer claims such an entry, the server drops it and says so only once, in a reply that may be lost.
        So nothing is required if a connection was lost.
        """
        if self._connections != set(self._testbed.client_ids()):
            return True
        dead = {(key, entry_id) for key, entry_id, _ in self.dead_letters()}
        return len(self._gone - done - self._done - dead) <= reported - self._reported

    def left(self, done: set[Name]) -> str:
        """Describe entries that were not delivered, not processed or not acknowledged; empty if none."""
        ended = done | self._done | self.facts.excused
        missing = [(key, entry_id) for key in self._keys for entry_id in self._ledger.now(key).live]
        missing = [name for name in missing if name not in ended]
        if missing:
            dead = {(key, entry_id) for key, entry_id, _ in self.dead_letters()}
            missing = [name for name in missing if name not in dead]
        if missing:
            return f"{len(missing)} not processed, {missing[0]} the first"
        for key in self._keys:
            if pending := self._pending(key):
                return f"{len(pending)} of {key} pending, {pending[0]} the first"
            newest = self._ledger.now(key).newest
            if newest and self._position(key) < parse_id(newest):
                return f"{newest} of {key} not delivered"
        return ""

    def namesake_ended(self) -> None:
        """Record that a second process with a consumer's name has ended, and that the server knows."""
        self._namesake_ended = time.monotonic()

    def stopped(self, name: str) -> None:
        """Record unacknowledged entries that a stopped consumer did not make available to others immediately.

        Entries left behind by a second process with its name may stay pending for the name until `min_idle` has passed.
        """
        since_namesake = time.monotonic() - self._namesake_ended
        least = 1000 * min(self._rules.min_idle - LONGEST_DELAY, since_namesake)
        for key in self._keys:
            self.facts.stranded |= {
                (key, entry_id) for entry_id, _, idle, _ in self._pending(key, name) if idle < least
            }

    def consumers_named(self, name: str) -> set[str]:
        """The connection names of headrace's consumers with this name: each consumer has its own."""
        group, consumer = (part.replace("-", "%2D") for part in (GROUP, name))
        prefix = f"headrace-consumer:{group}/{consumer}/"
        return {client["name"] for client in self._control.client_list() if client["name"].startswith(prefix)}

    def dead_letters(self) -> list[Row]:
        """The dead letters, without the fields that the client added."""
        letters = []
        for _, parts in self._testbed.command("XRANGE", DEAD_LETTERS, "-", "+"):
            *fields, key, entry_id, _, _ = _pairs(parts)
            letters.append((key[1].decode(), entry_id[1].decode(), digest(fields)))
        return letters

    def finish(self, again: int | None) -> GroupFacts:
        """Collect all facts, at the end."""
        self.facts.pending = [(key, entry_id) for key in self._keys for entry_id, *_ in self._pending(key)]
        self.facts.dead = self.dead_letters()
        self.facts.again = again
        for move in self._moves:
            self.facts.moved |= self._between(*move)
        if self._rules.max_failures is not None:
            self.facts.poison = self._ledger.poison
        return self.facts

    # Commands.

    def _position(self, key: str) -> tuple[int, int]:
        """The last ID that was delivered; (0, 0) if there is no group."""
        (groups,) = self._together(("XINFO", "GROUPS", key))
        return _last_delivered(groups) or (0, 0)

    def _move(self, key: str, entry_id: str) -> set[Name]:
        """Call XGROUP SETID; returns the entries that will be delivered again, or not at all."""
        groups, moved = self._together(("XINFO", "GROUPS", key), ("XGROUP", "SETID", key, GROUP, entry_id))
        if isinstance(moved, Exception):
            return set()
        before, after = _last_delivered(groups) or (0, 0), parse_id(entry_id)
        between = self._between(key, min(before, after), max(before, after))
        if after < before:
            # The ledger does not yet know the latest entries.
            self._moves.append((key, after, before))
            self.facts.excused -= between
        else:
            self.facts.excused |= between
        return between

    def _between(self, key: str, low: tuple[int, int], high: tuple[int, int]) -> set[Name]:
        """The entries after one ID, up to another one."""
        return {(key, each) for each in list(self._ledger.now(key).added) if low < parse_id(each) <= high}

    def _pending(self, key: str, consumer: str | None = None) -> list[tuple[str, str, int, int]]:
        of = () if consumer is None else (consumer,)
        (reply,) = self._together(("XPENDING", key, GROUP, "-", "+", _ALL, *of))
        if isinstance(reply, Exception):
            return []  # there is no group
        return [(entry_id.decode(), name.decode(), idle, count) for entry_id, name, idle, count in reply]

    def _together(self, *commands: Sequence[Any]) -> list[Any]:
        """Run commands in one transaction; returns the raw replies, with exceptions for errors."""
        pipeline = self._control.pipeline(transaction=True)
        pipeline.response_callbacks = {}
        for command in commands:
            pipeline.execute_command(*command)
        results: list[Any] = pipeline.execute(raise_on_error=False)
        return results


def _last_delivered(groups: Any) -> tuple[int, int] | None:
    if isinstance(groups, Exception):
        return None
    for group in groups:
        found = dict(zip(group[::2], group[1::2], strict=True))
        if found[b"name"] == GROUP.encode():
            return parse_id(found[b"last-delivered-id"].decode())
    return None


def _pairs(parts: Any) -> list[tuple[bytes, bytes]]:
    """The fields of an entry, from a server's reply or from the dict that redis-py makes of it."""
    if isinstance(parts, dict):
        return list(parts.items())
    return list(zip(parts[::2], parts[1::2], strict=True))
