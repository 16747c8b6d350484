"""The changes that happen to the streams of a schedule: redis-py makes them, and the model follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .packing import Packing
from .servers import Servers
from .world import LAST, TOP, Entry, Id, World, after, id_of, text_of


class Changes:
    """What happens to the streams of a schedule. Each random change is a method of the name that a step has."""

    def __init__(self, servers: Servers, world: World, packing: Packing, note: Callable[[str], object]) -> None:
        self.world, self.note = world, note
        self._servers, self._packing = servers, packing

    def _client(self, key: bytes) -> Any:
        return self._servers.client(key)

    def key(self, rng: random.Random) -> bytes:
        return rng.choice(self.world.keys)

    def _next_id(self, rng: random.Random, key: bytes) -> Id | None:
        life = self.world.now(key)
        last = life.last if life else (rng.randint(0, 30), 0)
        if last[0] > TOP - 100:
            return None
        if rng.random() < 0.3:
            return (last[0], last[1] + 1)
        return (last[0] + rng.randint(1, 9), rng.choice([0, 0, 1, 5]))

    def add(self, rng: random.Random) -> None:
        key = self.key(rng)
        self.add_some(rng, key, rng.choice([1, 2, 3, 5, 8, 13, 30]))

    def add_some(self, rng: random.Random, key: bytes, count: int, last: Id | None = None) -> None:
        self.heal(key)
        pipeline = self._client(key).pipeline(transaction=False)
        added: list[Entry] = []
        for _ in range(count):
            entry_id = last or self._next_id(rng, key)
            if entry_id is None or ((life := self.world.now(key)) and life.last == LAST):
                break
            entry = self.world.add(key, entry_id, rng.choice([1, 1, 2, 3]) if self._packing.has_rows else 1)
            pipeline.xadd(key, self._packing.fields(entry), id=text_of(entry_id))
            added.append(entry)
        pipeline.execute()
        if added:
            self.note(f"XADD {key.decode()} {text_of(added[0].id)}..{text_of(added[-1].id)} ({len(added)})")

    def heal(self, key: bytes) -> None:
        """There is no string."""
        if key in self.world.strings:
            self._client(key).delete(key)
            self.world.drop(key)
            self.note(f"DEL {key.decode()} (string)")

    def allow(self) -> None:
        """The reader's user may read all streams."""
        for key in [*self.world.forbidden]:
            self.world.allow(key)
        self._forbid()

    def _forbid(self) -> None:
        keys = [key for key in self.world.keys if key not in self.world.forbidden]
        self._servers.allow(keys if self.world.forbidden else [b"*"])
        self.note(f"ACL SETUSER, forbidden: {b' '.join(self.world.forbidden).decode()}")

    def last(self, rng: random.Random) -> None:
        self.add_some(rng, self.key(rng), 1, LAST)

    def trim(self, rng: random.Random) -> None:
        key = self.key(rng)
        life = self.world.now(key)
        if not life:
            return
        present, client = life.present, self._client(key)
        kind = rng.choice(["MAXLEN", "MAXLEN", "MINID", "MAXLEN ~", "MINID ~"])
        if kind.startswith("MAXLEN"):
            keep = rng.choice([0, 1, 1, 2, len(present) // 2, len(present) - 1])
            text = str(max(0, keep))
            client.xtrim(key, maxlen=max(0, keep), approximate="~" in kind)
        else:
            ids = [entry.id for entry in present] or [life.last]
            low = rng.choice(ids)
            low = rng.choice([low, after(low) or low, (low[0] + 1, 0) if low[0] < TOP else low])
            text = text_of(low)
            client.xtrim(key, minid=text, approximate="~" in kind)
        found = client.xrange(key, count=1)
        self.world.trim(key, id_of(found[0][0].decode()) if found else None)
        self.note(f"XTRIM {key.decode()} {kind} {text}: {len(present) - len(life.present)} of {len(present)}")

    def delete(self, rng: random.Random) -> None:
        key = self.key(rng)
        if (life := self.world.now(key)) and (present := life.present):
            at = rng.choice([0, len(present) - 1, rng.randrange(len(present))])
            ids = [entry.id for entry in present[at : at + rng.choice([1, 1, 2, 4])]]
            self._client(key).xdel(key, *map(text_of, ids))
            self.world.delete(key, ids)
            self.note(f"XDEL {key.decode()} {' '.join(map(text_of, ids))}")

    def set_id(self, rng: random.Random) -> None:
        key = self.key(rng)
        life = self.world.now(key)
        if not life or life.last[0] > TOP - 100:
            return
        last = rng.choice([life.last, (life.last[0], life.last[1] + 3), (life.last[0] + rng.randint(1, 20), 0)])
        words: list[object] = ["XSETID", key, text_of(last)]
        ghosts = 0
        if rng.random() < 0.5:
            ghosts = rng.choice([0, 0, 1, 5])
            info = self._client(key).xinfo_stream(key)
            words += ["ENTRIESADDED", info["entries-added"] + ghosts, "MAXDELETEDID", info["max-deleted-entry-id"]]
        self._client(key).execute_command(*words)
        self.world.set_id(key, last, ghosts)
        self.note(" ".join(str(word) for word in words))

    def replace(self, rng: random.Random) -> None:
        key = self.key(rng)
        life = self.world.now(key)
        self._client(key).delete(key)
        self.world.drop(key)
        self.note(f"DEL {key.decode()}")
        if life and rng.random() < 0.8:
            first = rng.choice([life.entries[0].id, life.last, after(life.last) or life.last, (1, 0)])
            if first != LAST and first[0] < TOP - 100:
                self.add_some(rng, key, 1, first)
                self.add_some(rng, key, rng.choice([0, 1, 3, len(life.entries), len(life.entries) + 5]))

    def spoil(self, rng: random.Random) -> None:
        """A stream becomes one that cannot be read."""
        key = self.key(rng)
        if rng.random() < 0.5:
            if key not in self.world.forbidden:
                self.world.forbid(key)
                self._forbid()
            return
        self._client(key).set(key, "a string")
        self.world.spoil(key)
        self.note(f"SET {key.decode()}")

    def look(self) -> None:
        """What redis-py sees must be what the model says."""
        for key in self.world.keys:
            life, client = self.world.now(key), self._client(key)
            seen = [id_of(entry_id.decode()) for entry_id, _ in client.xrange(key)]
            assert seen == [entry.id for entry in (life.present if life else [])], key
            if life:
                added = client.xinfo_stream(key)["entries-added"]
                assert added == len(life.entries) + life.ghosts.total(), key

    def clear(self) -> None:
        if self.world.forbidden:
            self.allow()
        for key in self.world.keys:
            self._client(key).delete(key)
