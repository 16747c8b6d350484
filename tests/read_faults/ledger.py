"""What really happened to the streams: every entry that was added, and how it was removed."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from .journal import digest

Fields = dict[bytes, bytes]

#: One in this many entries is poison.
_POISON_EVERY = 61


def is_poison(fields: Mapping[bytes, bytes]) -> bool:
    """Whether a consumer fails to process an entry every time."""
    return int(fields[b"n"]) % _POISON_EVERY == _POISON_EVERY // 2


def parse_id(entry_id: str) -> tuple[int, int]:
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)


@dataclass
class Lineage:
    """One life of a stream: from its first entry until it is deleted or its latest entries are lost."""

    #: The digests of all entries ever added, by ID, in order.
    added: dict[str, bytes] = field(default_factory=dict)
    trimmed: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    #: Whether another life followed.
    over: bool = False

    @property
    def live(self) -> list[str]:
        """The IDs of the existing entries."""
        return [entry_id for entry_id in list(self.added) if self._is_live(entry_id)]

    @property
    def newest(self) -> str | None:
        """The last of `live`."""
        return next((entry_id for entry_id in reversed(list(self.added)) if self._is_live(entry_id)), None)

    def _is_live(self, entry_id: str) -> bool:
        return entry_id not in self.trimmed and entry_id not in self.deleted


class Ledger:
    """The only writer of the streams of an episode. If a fault prevents writing, it waits for the server."""

    def __init__(self, client: Any, keys: Sequence[str], rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self._numbers = itertools.count()
        self._next = dict.fromkeys(keys, 1)
        self.lives: dict[str, list[Lineage]] = {key: [Lineage()] for key in keys}
        self.entries = 0
        #: Entries that no client can process.
        self.poison: set[tuple[str, str]] = set()

    def now(self, key: str) -> Lineage:
        return self.lives[key][-1]

    def add(self, key: str, count: int, size: int, maxlen: int | None = None) -> int:
        """Add entries; returns their approximate size in a reply, in bytes."""
        entries = [(self._take_id(key), self._fields(size)) for _ in range(count)]
        trim: list[Any] = [] if maxlen is None else ["MAXLEN", "=", maxlen]
        commands = [["XADD", key, *trim, entry_id, *itertools.chain(*fields.items())] for entry_id, fields in entries]
        while commands:
            some = self._rng.randint(1, len(commands))
            self._run(commands[:some], repeated="equal or smaller")
            commands = commands[some:]
        life = self.now(key)
        for entry_id, fields in entries:
            life.added[entry_id] = digest(fields.items())
            if is_poison(fields):
                self.poison.add((key, entry_id))
        self.entries += count
        if maxlen is not None:
            self._cut(life, maxlen)
        return sum(60 + sum(len(name) + len(value) + 16 for name, value in fields.items()) for _, fields in entries)

    def trim(self, key: str, maxlen: int, by_id: bool = False) -> None:
        """Call XTRIM to keep this number of entries, by MAXLEN or by MINID."""
        live = self.now(key).live
        maxlen = min(maxlen, len(live))
        if by_id:
            oldest = live[len(live) - maxlen] if maxlen else f"{self._next[key]}-0"
            self._run([["XTRIM", key, "MINID", "=", oldest]])
        else:
            self._run([["XTRIM", key, "MAXLEN", "=", maxlen]])
        self._cut(self.now(key), maxlen)

    def delete(self, key: str, ids: Sequence[str]) -> None:
        """XDEL."""
        self._run([["XDEL", key, *ids]])
        self.now(key).deleted |= set(ids)

    def raise_id(self, key: str) -> None:
        """Call XSETID with an ID that no entry has."""
        self._next[key] += self._rng.randint(1, 100)
        self._run([["XSETID", key, f"{self._next[key]}-0"]])
        self._next[key] += 1

    def replace(self, key: str, count: int, size: int, lower: bool) -> None:
        """Call DEL, then add entries with lower or higher IDs than before."""
        self._run([["DEL", key]])
        self.now(key).over = True
        self.lives[key].append(Lineage())
        if lower:
            self._next[key] = 1
        self.add(key, count, size)

    def snapshot(self) -> dict[str, Lineage]:
        return {key: copy.deepcopy(lives[-1]) for key, lives in self.lives.items()}

    def roll_back(self, key: str, life: Lineage) -> None:
        """Record that the server has lost everything after this snapshot."""
        self.now(key).over = True
        self.lives[key].append(life)
        last = max(map(parse_id, life.added), default=(0, 0))
        self._next[key] = last[0] + 1

    def verify(self) -> None:
        """Check that the ledger itself is correct."""
        for key in self.lives:
            found = [entry.decode() for entry, _ in self._client.xrange(key)]
            assert found == self.now(key).live, f"the ledger is wrong: {key}"

    def _take_id(self, key: str) -> str:
        number = self._next[key]
        self._next[key] += 1
        return f"{number}-0"

    def _fields(self, size: int) -> Fields:
        fields = {b"n": b"%d" % next(self._numbers), b"v": self._rng.randbytes(self._rng.randint(0, size))}
        if self._rng.random() < 0.2:
            fields[b"note \xff" if self._rng.random() < 0.3 else b"note"] = b""
        return fields

    @staticmethod
    def _cut(life: Lineage, maxlen: int) -> None:
        live = life.live
        life.trimmed |= set(live[: max(len(live) - maxlen, 0)])

    def _run(self, commands: Sequence[Sequence[Any]], repeated: str = "\0") -> None:
        """Run commands in one transaction, and repeat it until it has taken effect.

        `repeated` is the error if it had already taken effect and its reply was lost.
        """
        deadline = time.monotonic() + 30.0
        while True:
            pipeline = self._client.pipeline(transaction=True)
            for command in commands:
                pipeline.execute_command(*command)
            try:
                results: list[Any] = pipeline.execute(raise_on_error=False)
            except redis.RedisError as error:
                results = [error]
            wrong = [result for result in results if isinstance(result, redis.RedisError)]
            if not wrong or all(repeated in str(error) for error in wrong):
                return
            assert time.monotonic() < deadline, f"the server takes no writes: {wrong[0]}"
            time.sleep(0.005)
