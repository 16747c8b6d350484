"""What a program knows that reads from new entries to old ones. No I/O."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chain import BEYOND, EARLY, NEEDLESS, OVERTOLD, REPLACED, SKIPPED, TWICE, UNTOLD, Row, Violation, entries_of
from .world import LAST, Entry, Id, Life, World, before, text_of


@dataclass
class BackwardPlace:
    key: bytes
    life: int | None
    #: The last ID that was asked for.
    top: Id
    #: When the chain began, and when this stream was begun: it is not looked at while those before it are read.
    since: int
    began: int
    #: The number of entries that had been added to all streams when the chain began.
    added: int
    reached: Entry | None = None
    #: Whether it was begun after a later stream: it had no entries until the program was restarted, or is another one.
    is_late: bool = False
    #: The number of entries that were passed over and are lost; of those where both is right; that was reported.
    lost: int = 0
    maybe: int = 0
    told: int = 0


@dataclass
class Backward:
    """The places in all streams, which are read one after the other."""

    world: World
    places: dict[bytes, BackwardPlace] = field(default_factory=dict)
    #: Whether a position was stored in between.
    is_resumed: bool = False
    #: The end that the program asks for, always the same: a stream that was read to its end is not begun again.
    end: Any = None
    ends: dict[bytes, Id] = field(default_factory=dict)

    def store(self) -> Backward:
        places = {key: copy.copy(place) for key, place in self.places.items()}
        return Backward(self.world, places, True, self.end, self.ends)

    def begin(self, key: bytes, top: Id) -> None:
        life, now = self.world.now(key), self.world.clock
        self.places[key] = BackwardPlace(key, life.number if life else None, top, now, now, self.world.added)

    def resumed(self) -> None:
        """A reader was created that continues: the same is asked for."""

    def returned(self, key: bytes, rows: Sequence[Row], lost: int = 0, *, exact: bool = True, end: Id = (0, 0)) -> None:
        place = self.places[key]
        if lost:
            self.told(key, lost, exact=exact)
        later = list(self.places)[list(self.places).index(key) + 1 :]
        is_behind = any(self.places[other].reached for other in later)
        is_new = not place.reached or key in self.may_be_replaced()
        place.is_late |= is_behind and self.is_resumed and is_new
        if is_behind and not place.is_late:
            raise Violation(TWICE, f"{_at(place)}, after a later stream was begun")
        for entry in entries_of(self.world, key, rows):
            self._pass(place, entry, end)

    def _pass(self, place: BackwardPlace, entry: Entry, end: Id) -> None:
        lives = self.world.lives(place.key)
        life = next(life for life in lives if life.find(entry.id) is entry)
        if entry.id < end:
            raise Violation(BEYOND, f"{_at(place, entry.id)}, the end is {text_of(end)}")
        if place.reached is None:
            # A stream begins with what is its newest entry once those before it were read.
            place.added, place.began = max(place.added, entry.number), self.world.clock
        if (entry.id > place.top or entry.number > place.added) and life.number == (place.life or 0):
            raise Violation(EARLY, f"{_at(place, entry.id)}, it came later")
        if place.reached and entry.id >= place.reached.id:
            raise Violation(TWICE, _at(place, entry.id))
        if life.number == place.life:
            self._skip(place, life, entry.id)
        else:
            place.added = max(place.added, entry.number)
        place.life = life.number
        place.reached = entry

    def _skip(self, place: BackwardPlace, life: Life, low: Id | None) -> None:
        """Everything above `low` must have been returned."""
        for entry in self._asked(place, life, low):
            if entry.is_present:
                raise Violation(SKIPPED, f"{_at(place, entry.id)}, {text_of(low) if low else 'the end'} was reached")
            place.lost += entry.trimmed is not None and entry.trimmed > place.began
            place.maybe += entry.trimmed is not None and place.since < entry.trimmed <= place.began

    def _asked(self, place: BackwardPlace, life: Life, low: Id | None) -> list[Entry]:
        high = place.reached.id if place.reached else (place.top[0], place.top[1] + 1)
        return [entry for entry in life.between(low, high) if entry.number <= place.added]

    def told(self, key: bytes, lost: int, *, exact: bool) -> None:
        place, life = self.places[key], self.world.now(key)
        place.told += lost
        # What is missing of a stream that was replaced was lost with it, even if nothing shows that it is another one.
        if life is None or life.number != place.life or key in self.may_be_replaced():
            return
        removed = [entry.trimmed or (not exact and entry.deleted) or 0 for entry in life.entries]
        if not any(when > place.since for when in removed):
            raise Violation(NEEDLESS, f"{_at(place)}: {lost}")

    def replaced(self, key: bytes) -> None:
        place = self.places[key]
        if not any(life.over is not None and life.over > place.since for life in self.world.lives(key)):
            raise Violation(REPLACED, _at(place))
        # A reader that continues begins with the stream as it is, even if this one noticed it only at the end.
        self.begin(key, LAST)

    def finished(self, ends: Mapping[bytes, Id], _opened: int, rest: int | None, *, exact: bool) -> None:
        """All down to these ends was returned. The loss is counted at the end of a stream."""
        lost, maybe, is_known = 0, 0, True
        for key, end in ends.items():
            place, life = self.places[key], self.world.now(key)
            if life is None or life.number != place.life:
                is_known &= place.life is None
                continue
            self._skip(place, life, before(end))
            # Of a later stream that was empty when its turn came, the reader knows nothing.
            is_unbegun = place.reached is None and key != next(iter(self.places))
            untold = max(0, place.lost - place.told)
            lost += 0 if is_unbegun else untold
            maybe += place.maybe + (untold if is_unbegun else 0)
            is_known &= life.is_counted
        if rest is not None and is_known and not self.is_resumed:
            if rest < lost:
                raise Violation(UNTOLD, f"Reader.lost is {rest}, {lost} are, the reader is finished")
            if exact and rest > lost + maybe and all(not end[0] for end in ends.values()):
                raise Violation(OVERTOLD, f"Reader.lost is {rest}, {lost} are, the reader is finished")

    def may_be_replaced(self) -> list[bytes]:
        return [
            key
            for key, place in self.places.items()
            if any(life.over is not None and life.over > place.since for life in self.world.lives(key))
        ]


def _at(place: BackwardPlace, entry_id: Id | None = None) -> str:
    return f"{place.key.decode()} {text_of(entry_id or (place.reached.id if place.reached else LAST))}, reverse"
