"""The streams of a schedule as they are: every entry ever added, and what became of it. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

Id = tuple[int, int]

#: The largest part of an ID.
TOP = 2**64 - 1
ZERO: Id = (0, 0)
LAST: Id = (TOP, TOP)


def text_of(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def id_of(text: str) -> Id:
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)


def after(entry_id: Id) -> Id | None:
    """The next ID that is possible. None after the last one."""
    if entry_id == LAST:
        return None
    return (entry_id[0] + 1, 0) if entry_id[1] == TOP else (entry_id[0], entry_id[1] + 1)


def before(entry_id: Id) -> Id | None:
    """The previous ID that is possible. None before the first one."""
    if entry_id == ZERO:
        return None
    return (entry_id[0], entry_id[1] - 1) if entry_id[1] else (entry_id[0] - 1, TOP)


@dataclass(eq=False)
class Entry:
    """An entry that was added. Its `number` is in each of its rows, and no other entry has it."""

    id: Id
    number: int
    rows: int = 1
    #: When it was trimmed, or deleted by XDEL, on the world's clock.
    trimmed: int | None = None
    deleted: int | None = None

    @property
    def is_present(self) -> bool:
        return self.trimmed is None and self.deleted is None


@dataclass(eq=False)
class Life:
    """A stream from its first entry until its key is deleted."""

    number: int
    entries: list[Entry] = field(default_factory=list)
    #: The last ID that the server gave, or that XSETID set.
    last: Id = ZERO
    #: When XSETID added how many to the count of entries, that never were.
    ghosts: Counter[int] = field(default_factory=Counter)
    #: When the key was deleted.
    over: int | None = None

    @property
    def present(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.is_present]

    @property
    def head(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.is_present), None)

    @property
    def is_counted(self) -> bool:
        """Whether all that the server counts was an entry and was removed by trimming only."""
        return not self.ghosts and all(entry.deleted is None for entry in self.entries)

    def find(self, entry_id: Id) -> Entry | None:
        at = bisect_left(self.entries, entry_id, key=lambda entry: entry.id)
        return self.entries[at] if at < len(self.entries) and self.entries[at].id == entry_id else None

    def between(self, low: Id | None, high: Id) -> Iterator[Entry]:
        """The entries after `low`, and before `high`."""
        at = bisect_left(self.entries, high, key=lambda entry: entry.id)
        start = 0 if low is None else bisect_left(self.entries, (low, 1), key=lambda entry: (entry.id, 0))
        return iter(self.entries[start:at])


class World:
    """All streams of a schedule, and a clock that counts what happens to them."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.clock = 0
        self._lives: dict[bytes, list[Life]] = {key: [] for key in keys}
        #: The number of entries of all streams.
        self.added = 0
        #: The keys that hold a string, and those that the reader's user may not read.
        self.strings: set[bytes] = set()
        self.forbidden: set[bytes] = set()
        #: When each key last became one of these, or ceased to be.
        self._turned: dict[bytes, int] = {}

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def lives(self, key: bytes) -> list[Life]:
        return self._lives[key]

    def now(self, key: bytes) -> Life | None:
        """The stream of this key. None if there is none."""
        lives = self._lives[key]
        return lives[-1] if lives and lives[-1].over is None else None

    def add(self, key: bytes, entry_id: Id, rows: int = 1) -> Entry:
        self.tick()
        life = self.now(key)
        if life is None:
            life = Life(len(self._lives[key]))
            self._lives[key].append(life)
        assert entry_id > life.last
        self.added += 1
        entry = Entry(entry_id, self.added, rows)
        life.entries.append(entry)
        life.last = entry_id
        return entry

    def trim(self, key: bytes, head: Id | None) -> None:
        """Everything before `head` was trimmed; without it, everything."""
        now, life = self.tick(), self.now(key)
        for entry in life.entries if life else ():
            if entry.is_present and (head is None or entry.id < head):
                entry.trimmed = now

    def delete(self, key: bytes, ids: list[Id]) -> None:
        now, life = self.tick(), self.now(key)
        for entry in filter(None, map(life.find, ids)) if life else ():
            assert entry.is_present
            entry.deleted = now

    def set_id(self, key: bytes, last: Id, ghosts: int = 0) -> None:
        now, life = self.tick(), self.now(key)
        assert life
        assert last >= life.last
        life.last = last
        if ghosts:
            life.ghosts[now] += ghosts

    def drop(self, key: bytes) -> None:
        """The key was deleted."""
        now = self.tick()
        if life := self.now(key):
            life.over = now
        if key in self.strings:
            self.strings.remove(key)
            self._turned[key] = now

    def spoil(self, key: bytes) -> None:
        """The key was replaced by a string."""
        self.drop(key)
        self.strings.add(key)
        self._turned[key] = self.clock

    def forbid(self, key: bytes) -> None:
        self._turned[key] = self.tick()
        self.forbidden.add(key)

    def allow(self, key: bytes) -> None:
        self._turned[key] = self.tick()
        self.forbidden.remove(key)

    def is_refused(self, key: bytes) -> bool:
        return key in self.strings or key in self.forbidden

    def was_refused(self, key: bytes, since: int) -> bool:
        return self.is_refused(key) or self._turned.get(key, 0) > since

    def changed(self, key: bytes) -> int:
        """When this key last began or ceased to be a stream that can be read."""
        return max([self._turned.get(key, 0), *(life.over or 0 for life in self._lives[key])])
