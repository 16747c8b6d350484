"""A random history of a stream and its groups, and what is true after it: every entry that was ever added is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GroupTruth", "History", "Id"]

Id = tuple[int, int]

KEY = "s"


@dataclass
class GroupTruth:
    """A group.

    Attributes:
        position: The last entry that it was given, or after which it was to begin.
        counted: The removed entries that ENTRIESREAD counted as read when the group was set to the start.
        has_skipped: Whether it read on after a loss: Redis 7.0 continues from an old count.
    """

    position: Id
    counted: frozenset[Id] = frozenset()
    has_skipped: bool = False


@dataclass
class History:
    """Changes a stream at random.

    Attributes:
        client: A client of redis-py.
        random: The source of all choices.
        counts: Whether the server counts entries.
        deletes: Whether entries are deleted by XDEL.
        ids: Every entry that was ever added, in order.
        last: The highest ID of the stream.
        trimmed: The entries that trimming removed.
        deleted: The entries that XDEL removed.
        groups: The groups, by name.
    """

    client: Any
    random: random.Random
    counts: bool
    deletes: bool
    ids: list[Id] = field(default_factory=list)
    last: Id = (0, 0)
    trimmed: set[Id] = field(default_factory=set)
    deleted: set[Id] = field(default_factory=set)
    groups: dict[str, GroupTruth] = field(default_factory=dict)

    @property
    def removed(self) -> set[Id]:
        return self.trimmed | self.deleted

    @property
    def entries(self) -> list[Id]:
        """Those that the stream has."""
        removed = self.removed
        return [one for one in self.ids if one not in removed]

    def lag(self, group: GroupTruth) -> int:
        return sum(one > group.position for one in self.entries)

    def unread(self, group: GroupTruth, removed: set[Id]) -> int:
        """How many of the removed entries the group has not read, and never will."""
        return sum(one > group.position and one not in group.counted for one in removed)

    def step(self) -> str:
        """Change something; returns what."""
        steps = [self.add, self.add, self.trim, self.trim_by_id, self.raise_last, self.create, self.move]
        steps += [self.read, self.read, self.read]
        steps += [self.delete] * self.deletes
        return self.random.choice(steps)() if self.ids else self.add()

    def add(self) -> str:
        made = []
        for _ in range(self.random.randint(1, 12)):
            ms, seq = self.last
            self.last = self.random.choice([(ms, seq + 1), (ms + 1, 0), (ms + self.random.randint(1, 9), 3)])
            self._send("XADD", KEY, show(self.last), "f", "v")
            made.append(self.last)
        self.ids += made
        return f"add {made}"

    def trim(self) -> str:
        entries = self.entries
        keep = self.random.randint(0, len(entries)) if self.random.random() < 0.3 else len(entries) * 2 // 3
        self._send("XTRIM", KEY, "MAXLEN", "=", keep)
        self.trimmed |= set(entries[: len(entries) - keep])
        return f"trim to {keep}"

    def trim_by_id(self) -> str:
        least = self._place()
        self._send("XTRIM", KEY, "MINID", "=", show(least))
        self.trimmed |= {one for one in self.entries if one < least}
        return f"trim below {least}"

    def delete(self) -> str:
        entries = self.entries
        gone = self.random.sample(entries, min(len(entries), self.random.randint(1, 2)))
        if gone:
            self._send("XDEL", KEY, *map(show, gone))
        self.deleted |= set(gone)
        return f"delete {gone}"

    def raise_last(self) -> str:
        self.last = (self.last[0] + self.random.randint(0, 3), self.last[1] + 1)
        counts: list[object] = []
        if self.counts and self.random.random() < 0.5:
            counts = ["ENTRIESADDED", len(self.ids), "MAXDELETEDID", show(max(self.deleted, default=(0, 0)))]
        self._send("XSETID", KEY, show(self.last), *counts)
        return f"set the last ID to {self.last}"

    def create(self) -> str:
        name = f"g{len(self.groups)}"
        return f"create {name} {self._set('CREATE', name)}"

    def move(self) -> str:
        if not self.groups:
            return self.create()
        name = self.random.choice(list(self.groups))
        return f"move {name} {self._set('SETID', name)}"

    def read(self) -> str:
        if not self.groups:
            return self.create()
        name = self.random.choice(list(self.groups))
        group = self.groups[name]
        count = self.random.randint(1, 8)
        reply = self._send("XREADGROUP", "GROUP", name, "c", "COUNT", count, "STREAMS", KEY, ">")
        due = [one for one in self.entries if one > group.position][:count]
        assert [one.decode() for _, found in (reply or []) for one, _ in found] == list(map(show, due))
        if due:
            skips = any(group.position < one < due[0] for one in self.removed)
            self.groups[name] = GroupTruth(due[-1], has_skipped=group.has_skipped or skips)
        return f"read {count} of {name}"

    def _set(self, command: str, name: str) -> str:
        """Set a group to the start, to the end, or in between; with its true number of entries, or without."""
        at = self.random.choice(["0", "$", show(self._place())])
        position = self.last if at == "$" else (0, 0) if at == "0" else parse(at)
        group = GroupTruth(position)
        counts: tuple[object, ...] = ()
        if self.counts and self.random.random() < 0.5:
            counts = ("ENTRIESREAD", sum(one <= position for one in self.ids))
            if at == "0" and self.random.random() < 0.5:
                # A query of Spark that begins with the oldest entry counts what was removed before as read.
                group, counts = GroupTruth(position, frozenset(self.removed)), ("ENTRIESREAD", len(self.removed))
        self._send("XGROUP", command, KEY, name, at, *counts)
        self.groups[name] = group
        return f"at {at} {counts}"

    def _place(self) -> Id:
        """An entry that exists or existed, or an ID beside one: none that an entry may still get."""
        ms, seq = self.random.choice(self.ids)
        return min(self.last, self.random.choice([(ms, seq), (ms, seq), (ms, seq + 1), (ms + 1, 0)]))

    def _send(self, *words: object) -> Any:
        return self.client.execute_command(*words)


def show(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def parse(text: str) -> Id:
    ms, seq = text.split("-")
    return int(ms), int(seq)
