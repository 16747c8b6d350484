"""The chain of positions finds each kind of wrong result, and nothing in right ones. No I/O."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from positions import chain as kinds
from positions.backward import Backward
from positions.chain import Chain, Row, Violation
from positions.world import LAST, ZERO, Id, World, after

KEY, OTHER = b"s", b"t"


def ids(*numbers: int) -> list[Id]:
    return [(number, 0) for number in numbers]


class History:
    """The entries 1-0 to 20-0. 1 to 3 were trimmed before the program began, 6 to 9 before it read them; it has read 4
    and 5. The entry 12 was deleted."""

    def __init__(self, first: Id = ZERO, *, is_counted: bool = True, rows: int = 1) -> None:
        self.world = World([KEY, OTHER])
        self.rows = rows
        self.add(*range(1, 11))
        self.world.trim(KEY, (4, 0))
        self.chain = Chain(self.world)
        for key in self.world.keys:
            self.chain.begin(key, first, is_counted=is_counted)

    def add(self, *numbers: int, key: bytes = KEY) -> None:
        for entry_id in ids(*numbers):
            self.world.add(key, entry_id, self.rows)

    def rows_of(self, *numbers: int, key: bytes = KEY, life: int = -1) -> list[Row]:
        entries = filter(None, map(self.world.lives(key)[life].find, ids(*numbers)))
        return [Row(entry.id, entry.number, row) for entry in entries for row in range(entry.rows)]

    def read(self, *numbers: int, lost: int = 0, exact: bool = True, key: bytes = KEY) -> None:
        self.chain.returned(key, self.rows_of(*numbers, key=key), lost, exact=exact)

    def read_two_and_trim(self) -> History:
        self.read(4, 5)
        self.world.trim(KEY, (10, 0))
        return self

    def finish(self, rest: int | None, *, exact: bool = True, opened: int = 0) -> None:
        ends = dict.fromkeys(self.world.keys, LAST)
        self.chain.finished(ends, opened, rest, exact=exact)


def found(act: Callable[[History], object], history: History | None = None) -> str:
    with pytest.raises(Violation) as raised:
        act(history or History())
    return raised.value.what


def test_right_results_have_no_violations() -> None:
    history = History().read_two_and_trim()
    history.chain.told(KEY, 4, exact=True)
    stored = history.chain.store()
    history.read(10)
    history.chain = stored
    history.read(10)
    history.add(11, 12, 13)
    history.world.delete(KEY, ids(12))
    history.read(11, 13)
    history.add(14, 15)
    history.world.trim(KEY, None)
    history.finish(2)
    history.add(16)
    history.read(16, lost=3, exact=False)
    history.finish(0)
    assert history.chain.is_done(KEY)


def test_a_position_that_is_stored_before_a_loss_reports_it_again() -> None:
    history = History().read_two_and_trim()
    stored = history.chain.store()
    history.read(10, lost=4)
    history.chain = stored
    history.read(10, lost=4)
    history.chain = stored.store()
    assert found(lambda history: history.read(10), history) == kinds.TWICE


def test_a_replacement_may_be_reported_and_everything_begins_again() -> None:
    history = History().read_two_and_trim()
    history.world.drop(KEY)
    assert not history.chain.must_be_replaced(KEY)
    history.add(1, 2)
    assert history.chain.must_be_replaced(KEY)
    history.chain.replaced(KEY)
    history.chain.resumed()
    history.read(1, 2)
    assert history.chain.is_done(KEY)


def test_what_is_trimmed_before_a_position_is_used_may_be_reported() -> None:
    for lost in (0, 2):
        history = History().read_two_and_trim()
        history.world.drop(KEY)
        history.add(1, 2, 3)
        history.chain.replaced(KEY)
        history.world.trim(KEY, (3, 0))
        history.chain.resumed()
        history.read(3, lost=lost)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda history: history.read(4, 6), kinds.SKIPPED),
        (lambda history: history.read(5), kinds.SKIPPED),
        (lambda history: history.finish(0), kinds.SKIPPED),
        (lambda history: (history.read(4, 5), history.read(5, 6)), kinds.TWICE),
        (lambda history: history.read(5, 4), kinds.SKIPPED),
        (lambda history: history.chain.returned(KEY, [Row((4, 0), 99)]), kinds.FOREIGN),
        (lambda history: history.chain.returned(KEY, [Row((4, 1), 4)]), kinds.FOREIGN),
        (lambda history: history.chain.returned(KEY, history.rows_of(4, 5), end=(4, 0)), kinds.BEYOND),
        (lambda history: (history.read_two_and_trim(), history.read(10)), kinds.UNTOLD),
        (lambda history: (history.read_two_and_trim(), history.read(10, lost=3)), kinds.UNTOLD),
        (lambda history: (history.read_two_and_trim(), history.read(10, lost=3, exact=False)), kinds.VAGUE),
        (lambda history: (history.read_two_and_trim(), history.read(10, lost=4, exact=False)), kinds.VAGUE),
        (lambda history: (history.read_two_and_trim(), history.read(10, lost=5)), kinds.OVERTOLD),
        (lambda history: (history.read_two_and_trim(), history.chain.told(KEY, 5, exact=True)), kinds.OVERTOLD),
        (lambda history: history.read(4, 5, lost=1), kinds.OVERTOLD),
        (lambda history: (history.read(4, 5), history.chain.told(KEY, 1, exact=False)), kinds.NEEDLESS),
        (lambda history: history.chain.told(OTHER, 1, exact=False), kinds.NEEDLESS),
        (lambda history: (history.read(4), history.chain.replaced(KEY)), kinds.REPLACED),
        (lambda history: history.chain.replaced(OTHER), kinds.REPLACED),
    ],
)
def test_each_wrong_result_is_found(act: Callable[[History], object], what: str) -> None:
    assert found(act) == what


def test_an_entry_before_the_start_is_found() -> None:
    assert found(lambda history: history.read(4), History((5, 0))) == kinds.EARLY
    history = History(after((10, 0)) or LAST)
    assert found(lambda history: history.read(10), history) == kinds.EARLY


def test_part_of_an_entry_is_found() -> None:
    history = History(rows=2)
    rows = history.rows_of(4, 5)
    assert found(lambda history: history.chain.returned(KEY, rows[:-1]), history) == kinds.TORN
    assert found(lambda history: history.chain.returned(KEY, [rows[0], rows[2]]), History(rows=2)) == kinds.TORN


def test_entries_below_a_start_are_not_lost() -> None:
    """The program began after the newest entry. Then 11 to 15 came, and all were trimmed up to 14 or 13."""
    history = History((14, 0), is_counted=False)
    history.add(*range(11, 16))
    history.world.trim(KEY, (14, 0))
    assert found(lambda history: history.chain.told(KEY, 3, exact=False), history) == kinds.NEEDLESS
    history = History((13, 0), is_counted=False)
    history.add(*range(11, 16))
    history.world.trim(KEY, (14, 0))
    stored = history.chain.store()
    assert found(lambda history: history.read(14, 15, lost=2), history) == kinds.OVERTOLD
    history.chain = stored.store()
    assert found(lambda history: history.read(14, 15), history) == kinds.UNTOLD
    history.chain = stored.store()
    history.read(14, 15, lost=4, exact=False)
    history.chain = stored.store()
    assert found(lambda history: history.read(14, 15, lost=14, exact=False), history) == kinds.BOUNDLESS


def test_a_loss_at_the_end_is_found() -> None:
    history = History()
    history.read(*range(4, 11))
    history.add(11, 12)
    history.world.trim(KEY, None)
    stored = history.chain.store()
    assert found(lambda history: history.finish(1), history) == kinds.UNTOLD
    assert found(lambda history: history.finish(3), history) == kinds.OVERTOLD
    assert found(lambda history: history.finish(None), history) == kinds.UNTOLD
    history.chain = stored
    history.chain.told(KEY, 2, exact=True)
    history.finish(None)


def test_a_replacement_that_is_not_reported_is_found() -> None:
    history = History().read_two_and_trim()
    history.world.drop(KEY)
    history.add(1, 2)
    stored = history.chain.store()
    assert found(lambda history: history.finish(0, opened=history.world.clock), history) == kinds.UNNOTICED
    history.chain = stored
    assert found(lambda history: history.read(1), history) == kinds.UNNOTICED


def test_entries_added_by_setid_may_be_reported_and_need_not() -> None:
    for lost in (4, 7):
        history = History().read_two_and_trim()
        history.world.set_id(KEY, (10, 0), ghosts=3)
        history.read(10, lost=lost)


class Backwards:
    """The entries 1-0 to 10-0 of two streams, read from the newest to the oldest."""

    def __init__(self) -> None:
        self.world = World([KEY, OTHER])
        for key in self.world.keys:
            for entry_id in ids(*range(1, 11)):
                self.world.add(key, entry_id)
        self.chain = Backward(self.world)
        for key in self.world.keys:
            self.chain.begin(key, LAST)

    def read(self, *numbers: int, key: bytes = KEY) -> None:
        entries = filter(None, map(self.world.lives(key)[0].find, ids(*numbers)))
        self.chain.returned(key, [Row(entry.id, entry.number) for entry in entries])

    def finish(self, rest: int) -> None:
        self.chain.finished(dict.fromkeys(self.world.keys, ZERO), 0, rest, exact=True)


def test_right_results_backwards_have_no_violations() -> None:
    history = Backwards()
    history.read(10, 9, 8)
    history.world.trim(KEY, (3, 0))
    history.read(7, 6, 5, 4, 3)
    history.read(*range(10, 0, -1), key=OTHER)
    history.finish(2)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda history: history.read(10, 8), kinds.SKIPPED),
        (lambda history: (history.read(10), history.read(10)), kinds.TWICE),
        (lambda history: (history.read(10), history.read(10, key=OTHER), history.read(9)), kinds.TWICE),
        (lambda history: history.finish(0), kinds.SKIPPED),
        (lambda history: history.chain.told(KEY, 1, exact=False), kinds.NEEDLESS),
        (lambda history: history.chain.replaced(KEY), kinds.REPLACED),
    ],
)
def test_each_wrong_result_backwards_is_found(act: Callable[[Backwards], object], what: str) -> None:
    with pytest.raises(Violation) as raised:
        act(Backwards())
    assert raised.value.what == what


def test_a_wrong_count_backwards_is_found() -> None:
    for rest, what in ((1, kinds.UNTOLD), (3, kinds.OVERTOLD)):
        history = Backwards()
        history.read(10, 9, 8)
        history.world.trim(KEY, (3, 0))
        history.read(7, 6, 5, 4, 3)
        history.read(*range(10, 0, -1), key=OTHER)
        with pytest.raises(Violation) as raised:
            history.finish(rest)
        assert raised.value.what == what
