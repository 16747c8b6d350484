"""What a program knows that reads by stored positions, and what it must be told. No I/O.

A chain begins with a start that was asked for. Each result of a reader is handed to it, and each position that is
stored comes with a copy of the chain: the program that starts from this position continues with the copy. What is
promised is in docs/reading.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .world import LAST, ZERO, Entry, Id, Life, World, after, before, text_of

SKIPPED = "an entry was skipped"
TWICE = "an entry was returned twice, or out of order"
EARLY = "an entry before the start was returned"
BEYOND = "an entry beyond the end was returned"
FOREIGN = "something was returned that was never added"
TORN = "an entry was not returned as a whole"
UNTOLD = "fewer entries were reported than are lost"
OVERTOLD = "more entries were reported than are lost, as exact"
NEEDLESS = "a loss was reported although nothing can be missing"
BOUNDLESS = "a bound above all that was removed"
VAGUE = "a bound was reported where the number is exact"
REPLACED = "a replacement was reported, and there was none"
UNNOTICED = "a stream was replaced, and it was not reported"
AGAIN = "one bad stream stops the others"
NAMELESS = "a refusal does not name its stream"
DROPPED = "a stream was read that was dropped"
TOTAL = "Reader.lost is not what was reported"
STUCK = "what is there is not returned"
UNEXPECTED = "an unexpected error"


#: When a program begins that has only stored its position yet.
_LATER = 2**63
#: An ID above all IDs.
_EVERYTHING: Id = (2**64, 0)


class Violation(Exception):  # noqa: N818, it is a finding and not a failure of this program
    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


@dataclass(frozen=True)
class Row:
    """A row that a reader returned. Without unpacking `row` is 0."""

    id: Id
    number: int
    row: int = 0


@dataclass
class Place:
    """Where a program stands in a stream: all that it was returned and told of it."""

    key: bytes
    #: The number of the life that it reads. None: there was no stream yet.
    life: int | None
    #: The first ID that was asked for. None: there is none, the newest entry has the last ID.
    first: Id | None
    #: Entries that were trimmed after `began` are lost; those before `perhaps` are not; between the two both is right.
    perhaps: int
    began: int
    #: Whether the number of what is lost is exact, as long as entries are only trimmed.
    is_counted: bool
    #: The last entry that was returned.
    reached: Entry | None = None
    #: The number of entries that were passed over and are lost; of those where both is right; that was reported.
    lost: int = 0
    maybe: int = 0
    told: int = 0
    is_exact: bool = True
    #: Whether the stream was replaced, and it was not reported: nothing is known about what was removed.
    is_dubious: bool = False

    @property
    def low(self) -> Id | None:
        """The last ID that is not asked for any more. None: all are."""
        if self.reached:
            return self.reached.id
        if self.first is None:
            return LAST
        return before(self.first)

    def missing(self, life: Life, end: Id) -> tuple[int, int]:
        """How many entries that were asked for were trimmed, between the place and this ID: lost, and maybe lost."""
        removed = [entry.trimmed for entry in life.between(self.low, end) if entry.trimmed is not None]
        lost = sum(when > self.began for when in removed)
        return lost, sum(self.perhaps < when <= self.began for when in removed)


@dataclass
class Chain:
    """The places of a program in all its streams."""

    world: World
    places: dict[bytes, Place] = field(default_factory=dict)

    def store(self) -> Chain:
        """A copy, which belongs to a position that is stored now."""
        return Chain(self.world, {key: copy.copy(place) for key, place in self.places.items()})

    # What a reader did.

    def begin(self, key: bytes, first: Id | None, *, is_counted: bool) -> None:
        """A reader was created that begins here."""
        life, now = self.world.now(key), self.world.clock
        self.places[key] = Place(key, life.number if life else None, first, now, now, is_counted)

    def resumed(self) -> None:
        """A reader was created that continues."""
        for place in self.places.values():
            place.began = min(place.began, self.world.clock)

    def returned(self, key: bytes, rows: Sequence[Row], lost: int = 0, *, exact: bool = True, end: Id = LAST) -> None:
        """A batch was returned, with the loss that it reports."""
        place = self.places[key]
        if lost:
            self.told(key, lost, exact=exact)
        for entry in entries_of(self.world, key, rows):
            if entry.id > end:
                raise Violation(BEYOND, f"{_at(place, entry.id)}, the end is {text_of(end)}")
            self._pass(place, entry)
        self._compare(place)

    def told(self, key: bytes, lost: int, *, exact: bool) -> None:
        """A loss was reported, before what is returned next."""
        place = self.places[key]
        life = self._follow(place)
        place.told += lost
        place.is_exact &= exact
        text = f"{_at(place)}: {lost}{'' if exact else ' as a bound'}"
        if place.is_dubious:
            return
        if not life or (life.head and life.head.id <= (after(place.low) or LAST if place.low else ZERO)):
            raise Violation(NEEDLESS, f"{text}, and the oldest entry is {life and life.head and text_of(life.head.id)}")
        missing, maybe = place.missing(life, _EVERYTHING)
        ghosts = self._ghosts(place, life)
        at_most = place.lost + place.maybe + missing + maybe + ghosts
        if place.is_exact and place.told > at_most:
            raise Violation(OVERTOLD, f"{text}, in all {place.told}, at most {at_most} are")
        removed = sum(not entry.is_present for entry in life.entries) + life.ghosts.total()
        if place.told > removed:
            raise Violation(BOUNDLESS, f"{text}, in all {place.told}, {removed} were removed")
        if not exact and place.is_counted and life.is_counted:
            raise Violation(VAGUE, text)

    def replaced(self, key: bytes) -> None:
        """A replacement was reported: the program continues with the oldest entry of what is there now."""
        place = self.places[key]
        life = self.world.now(key)
        if not (self._is_replaced(place) or place.is_dubious):
            raise Violation(REPLACED, f"{_at(place)}, it was not deleted")
        number = life.number if life else None
        # What of it was trimmed before the program could know of it may count.
        deleted = max((life.over for life in self.world.lives(key) if life.over is not None), default=0)
        self.places[key] = Place(key, number, ZERO, deleted, _LATER, is_counted=False)

    def finished(self, ends: Mapping[bytes, Id], opened: int, rest: int | None, *, exact: bool) -> None:
        """A reader that was created at `opened` has returned all up to these ends.

        `rest` is the loss that it counts and that no batch reported. None if it raises what is lost.
        """
        untold, maybe, is_known, is_sure = 0, 0, True, True
        for key, end in ends.items():
            place = self.places[key]
            if self.must_be_replaced(key) and self._since(place) < opened:
                raise Violation(UNNOTICED, f"{_at(place)}, the reader is finished")
            life = self._follow(place)
            is_known &= not place.is_dubious
            is_sure &= place.is_exact
            if life is None or place.is_dubious:
                continue
            beyond = (end[0], end[1] + 1)
            if skipped := next((entry for entry in life.between(place.low, beyond) if entry.is_present), None):
                raise Violation(SKIPPED, f"{_at(place, skipped.id)}, the reader is finished")
            lost = place.lost + place.missing(life, beyond)[0]
            if rest is None and place.told < lost:
                raise Violation(UNTOLD, f"{_at(place)}: {place.told} of {lost}, the reader is finished")
            untold += max(0, lost - place.told)
            # What lies beyond the end is gone as well.
            missing, more = place.missing(life, _EVERYTHING)
            maybe += place.lost + missing - lost + place.maybe + more + self._ghosts(place, life)
        if rest is not None and is_known and (rest < untold or (exact and is_sure and rest > untold + maybe)):
            what = UNTOLD if rest < untold else OVERTOLD
            raise Violation(what, f"Reader.lost is {rest} more than was reported, not {untold}, the reader is finished")

    def is_done(self, key: bytes) -> bool:
        """Whether all that is present and was asked for was returned."""
        place = self.places[key]
        life = self.world.now(key)
        if not life or place.life not in (None, life.number):
            return False
        return not any(entry.is_present for entry in life.between(place.low, _EVERYTHING))

    def may_be_replaced(self) -> list[bytes]:
        """The streams that were deleted since."""
        return [key for key, place in self.places.items() if self._is_replaced(place)]

    def must_be_replaced(self, key: bytes) -> bool:
        """Whether a stream was replaced and its last entry is older than the one that was read."""
        place, life = self.places[key], self.world.now(key)
        return bool(self._is_replaced(place) and life and place.reached and life.last < place.reached.id)

    # How it is judged.

    def _since(self, place: Place) -> int:
        """When the stream was deleted that is read."""
        return min(life.over for life in self.world.lives(place.key)[place.life or 0 :] if life.over is not None)

    def _is_replaced(self, place: Place) -> bool:
        if place.life is None:
            # The stream may have come and gone since.
            return any(life.over is not None and life.over > place.perhaps for life in self.world.lives(place.key))
        return self.world.lives(place.key)[place.life].over is not None

    def _follow(self, place: Place) -> Life | None:
        """The life that is read. After a replacement that is not reported nothing is known of what was removed."""
        now = self.world.now(place.key)
        if self._is_replaced(place):
            place.is_dubious = True
            return now
        if place.life is None and now:
            place.life = now.number
        return now

    def _pass(self, place: Place, entry: Entry) -> None:
        lives = self.world.lives(place.key)
        life = next(life for life in lives if life.find(entry.id) is entry)
        if place.first is None or entry.id < place.first:
            raise Violation(EARLY, f"{_at(place, entry.id)}")
        if place.life is None:
            place.is_dubious |= self._is_replaced(place)
            place.life = life.number
        if life.number < place.life:
            raise Violation(TWICE, f"{_at(place, entry.id)}, of a stream that was deleted before")
        if place.reached and entry.id <= place.reached.id:
            is_ours = life.number == place.life
            raise Violation(TWICE if is_ours else UNNOTICED, f"{_at(place, entry.id)}")
        if life.number > place.life:
            if place.reached and life.last < place.reached.id:
                raise Violation(UNNOTICED, f"{_at(place, entry.id)}")
            place.life, place.is_dubious = life.number, True
        if skipped := next((e for e in life.between(place.low, entry.id) if e.is_present), None):
            raise Violation(SKIPPED, f"{_at(place, skipped.id)}, {text_of(entry.id)} was returned")
        lost, maybe = place.missing(life, entry.id)
        place.lost += lost
        place.maybe += maybe
        place.reached = entry

    def _compare(self, place: Place) -> None:
        """What was reported must be what was passed over."""
        # What was read of a stream that is gone is judged by what replaced it.
        self._follow(place)
        if place.is_dubious or place.life is None:
            return
        text = f"{_at(place)}: {place.told} of {place.lost}{'' if place.is_exact else ', as a bound'}"
        if place.told < place.lost:
            raise Violation(UNTOLD, text)
        life = self.world.lives(place.key)[place.life]
        # What was trimmed after a page was read counts with it already; if it is returned all the same, a later batch
        # has too many.
        allowed = place.lost + place.maybe + sum(place.missing(life, _EVERYTHING)) + self._ghosts(place, life)
        if place.is_exact and place.told > allowed:
            raise Violation(OVERTOLD, text)

    @staticmethod
    def _ghosts(place: Place, life: Life) -> int:
        return sum(count for when, count in life.ghosts.items() if when > place.perhaps)


def _at(place: Place, entry_id: Id | None = None) -> str:
    at = text_of(entry_id or (place.reached.id if place.reached else place.first) or LAST)
    return f"{place.key.decode()} {at}{'' if entry_id or place.reached else ' (start)'}"


def entries_of(world: World, key: bytes, rows: Sequence[Row]) -> list[Entry]:
    """The entries of the rows of a batch, which must be whole."""
    found: list[Entry] = []
    left: list[int] = []
    for row in rows:
        if not left:
            added = (life.find(row.id) for life in reversed(world.lives(key)))
            entry = next((entry for entry in added if entry and entry.number == row.number), None)
            if entry is None:
                raise Violation(FOREIGN, f"{key.decode()} {text_of(row.id)} with {row.number}")
            found.append(entry)
            left = list(range(entry.rows))
        if (row.id, row.number, row.row) != (found[-1].id, found[-1].number, left.pop(0)):
            raise Violation(TORN, f"{key.decode()} {text_of(row.id)}, row {row.row}")
    if left:
        raise Violation(TORN, f"{key.decode()} {text_of(found[-1].id)}, {len(left)} rows are missing")
    return found
