"""The checker of reading finds each kind of incorrect history, and nothing in a correct one. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults.campaign import Share, run
from read_faults import checker, group_checker
from read_faults.checker import Promise, check
from read_faults.group_checker import GroupFacts, check_group
from read_faults.journal import (
    Acked,
    Closed,
    Dead,
    Done,
    Doubted,
    Failed,
    Handed,
    Journal,
    JournalView,
    Kept,
    LeaseLost,
    Opened,
    Record,
    Replaced,
    Returned,
    Row,
    digest,
)
from read_faults.ledger import Lineage
from read_faults.read_campaign import READING

KEY = "s"


def row(number: int, life: str = "first") -> Row:
    return KEY, f"{number}-0", digest([(b"n", f"{life} {number}".encode())])


def lineage(numbers: range, life: str = "first") -> Lineage:
    return Lineage({entry_id: was for _, entry_id, was in (row(number, life) for number in numbers)})


class History:
    """The entries 1 to 20: 9 and 10 were trimmed before they were read, 15 was deleted. Then the stream is replaced."""

    def __init__(self) -> None:
        self.first, self.second = lineage(range(1, 21)), lineage(range(1, 6), "second")
        self.first.trimmed = {f"{number}-0" for number in range(1, 11)}
        self.first.deleted = {"15-0"}
        self.first.over = True
        self.lives = {KEY: [self.first, self.second]}
        self.records: list[Record] = [
            Opened(),
            Done(tuple(row(number) for number in range(1, 9)), "p"),
            Failed("ConnectionFailedError"),
            Opened(),
            Done(tuple(row(number) for number in (11, 12, 13, 14)), "q", lost=2),
            Done(tuple(row(number) for number in range(16, 20)), "r"),  # 20 was not read when the stream was deleted
            Replaced(KEY),
            Done(tuple(row(number, "second") for number in range(1, 6)), "s"),
        ]
        self.promise = Promise()

    def found(self) -> set[str]:
        return {found.what for found in check(self.records, self.lives, self.promise).violations}

    def change(self, at: int, **fields: Any) -> None:
        self.records[at] = replace(self.records[at], **fields)

    def only_the_first(self) -> None:
        """Change the history as if the stream had not been replaced, and everything had been read."""
        self.first.over = False
        self.lives[KEY].pop()
        self.records[-2:] = [Done((row(20),), "s")]


def test_a_correct_history_has_no_violations() -> None:
    history = History()
    assert history.found() == set()
    account = check(history.records, history.lives, history.promise)
    assert (account.lost, account.reported) == (2, 2)
    history.only_the_first()
    assert history.found() == set()
    history.change(4, lost=3, exact=False)  # an upper bound, which includes the deleted entry
    assert history.found() == set()
    uncounted = History()
    uncounted.promise = Promise(counts=False)
    uncounted.change(4, lost=0)
    uncounted.records.append(Doubted())
    assert uncounted.found() == set()


def skip_an_entry(history: History) -> None:
    history.change(-1, rows=tuple(row(number, "second") for number in (1, 2, 4, 5)))


def read_nothing_after_the_replacement(history: History) -> None:
    history.records.pop()


def repeat_a_batch(history: History) -> None:
    history.records.insert(6, history.records[5])


def swap_batches(history: History) -> None:
    history.records[4], history.records[5] = history.records[5], history.records[4]


def swap_rows(history: History) -> None:
    history.change(1, rows=tuple(row(number) for number in (2, 1, *range(3, 9))))


def change_a_value(history: History) -> None:
    history.change(1, rows=(*(row(number) for number in range(1, 8)), row(8, "other")))


def invent_a_row(history: History) -> None:
    history.change(5, rows=(*(row(number) for number in range(16, 20)), row(99)))


def report_no_loss(history: History) -> None:
    history.only_the_first()
    history.change(4, lost=0)


def report_too_little(history: History) -> None:
    history.only_the_first()
    history.change(4, lost=1, exact=False)


def report_too_much(history: History) -> None:
    history.change(4, lost=3)


def report_more_than_a_bound_may_be(history: History) -> None:
    history.change(4, lost=4, exact=False)


def report_a_loss_twice(history: History) -> None:
    history.change(5, lost=2)


def warn_of_nothing(history: History) -> None:
    history.only_the_first()
    history.promise = Promise(counts=False)


def report_a_replacement_too_many(history: History) -> None:
    history.records.append(Replaced(KEY))


def report_no_replacement(history: History) -> None:
    del history.records[6]


def notice_no_replacement(history: History) -> None:
    del history.records[6:]


def fail_unexpectedly(history: History) -> None:
    history.records.append(Failed("InternalError", expected=False))


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (skip_an_entry, {checker.LOST}),
        (read_nothing_after_the_replacement, {checker.LOST}),
        (repeat_a_batch, {checker.TWICE, checker.ORDER}),
        (swap_batches, {checker.ORDER}),
        (swap_rows, {checker.ORDER}),
        (change_a_value, {checker.OTHER}),
        (invent_a_row, {checker.OTHER}),
        (report_no_loss, {checker.UNREPORTED}),
        (report_too_little, {checker.UNREPORTED}),
        (report_too_much, {checker.TOO_MANY}),
        (report_more_than_a_bound_may_be, {checker.TOO_MANY}),
        (report_a_loss_twice, {checker.TOO_MANY}),
        (warn_of_nothing, {checker.NO_DOUBT}),
        (report_a_replacement_too_many, {checker.REPLACED}),
        (report_no_replacement, {checker.UNNOTICED}),
        (notice_no_replacement, {checker.UNNOTICED, checker.LOST}),
        (fail_unexpectedly, {checker.UNEXPECTED}),
    ],
)
def test_each_wrong_history_is_detected(spoil: Callable[[History], None], what: set[str]) -> None:
    history = History()
    spoil(history)
    assert history.found() == what


class GroupHistory:
    """The entries 1 to 10 in a group: 1 to 4 at once, 3 and 4 again after a crash, 5 is dead, 6 was trimmed."""

    def __init__(self) -> None:
        self.lives = {KEY: [lineage(range(1, 14))]}
        self.lives[KEY][0].trimmed = {"6-0"}
        self.records: list[Record] = [
            Opened(),
            Handed(self.ids(1, 2, 3, 4)),
            Done((row(1), row(2))),
            Acked(self.ids(1, 2)),
            Opened(),
            Handed(self.ids(3, 4), again=True),
            Handed(self.ids(5)),
            Done((row(3), row(4))),
            Dead(self.ids(5)),
            Acked(self.ids(3, 4, 5)),
            Handed(self.ids(7, 8, 9, 10, 11)),
            LeaseLost(self.ids(10)),
            Handed(self.ids(10), again=True),
            Done(tuple(row(number) for number in (7, 8, 9, 10, 11)), lost=1),
            Acked(self.ids(7, 8, 9, 10, 11)),
        ]
        #: Another consumer, which gets later entries first: the order holds for each consumer.
        self.others: list[Record] = [
            Opened(),
            Handed(self.ids(12)),
            Done((row(12),)),
            Acked(self.ids(12)),
            Handed(self.ids(13)),
            Done((row(13),)),
            Acked(self.ids(13)),
        ]
        self.facts = GroupFacts(again=1, removed=set(self.ids(6)))

    @staticmethod
    def ids(*numbers: int) -> tuple[tuple[str, str], ...]:
        return tuple((KEY, f"{number}-0") for number in numbers)

    def change(self, at: int, **fields: Any) -> None:
        self.records[at] = replace(self.records[at], **fields)

    def found(self) -> set[str]:
        account = check_group([self.records, self.others], self.lives, self.facts)
        return {found.what for found in account.violations}


def test_a_correct_group_history_has_no_violations() -> None:
    assert GroupHistory().found() == set()


def test_external_changes_to_a_group_are_not_violations() -> None:
    history = GroupHistory()
    # Moved back before 12, which comes again as new; moved past 14; 15 was dropped with its consumer.
    history.lives[KEY][0].added |= lineage(range(14, 17)).added
    history.facts.moved = set(history.ids(12))
    history.facts.excused = set(history.ids(14, 15))
    history.others += [Handed(history.ids(16)), Done((row(16),)), Handed(history.ids(12)), Done((row(12),))]
    # A released entry comes again with its first delivery count, and so does one of another consumer.
    history.records += [Handed(history.ids(16), again=True, reclaimed=True, at=5.0), Returned(history.ids(16))]
    history.records += [Handed(history.ids(16)), Done((row(16),)), Acked(history.ids(16))]
    # Entries that a consumer has read but not returned are released at its end.
    history.lives[KEY][0].added |= lineage(range(18, 20)).added
    history.records += [Handed(history.ids(19), at=6.0), Done((row(19),))]
    history.others.append(Closed(at=7.0))
    history.records += [Handed(history.ids(18), at=8.0), Done((row(18),))]
    history.facts.dead = [row(17, "poison")]
    history.facts.poison = {*history.ids(5), *history.ids(17)}
    history.lives[KEY][0].added["17-0"] = row(17, "poison")[2]
    assert history.found() == set()


def acknowledge_before(history: GroupHistory) -> None:
    history.records[2], history.records[3] = history.records[3], history.records[2]


def forget_one(history: GroupHistory) -> None:
    history.change(13, rows=tuple(row(number) for number in (7, 9, 10, 11)))
    history.change(14, ids=history.ids(7, 9, 10, 11))


def leave_one_pending(history: GroupHistory) -> None:
    history.facts.pending = history.ids(10)


def hand_out_backwards(history: GroupHistory) -> None:
    history.change(10, ids=history.ids(7, 9, 8, 10, 11))


def hand_out_too_often(history: GroupHistory) -> None:
    history.records.insert(7, Handed(history.ids(3), again=True))


def acknowledge_what_another_has(history: GroupHistory) -> None:
    del history.records[12]


def acknowledge_what_another_processed(history: GroupHistory) -> None:
    history.others.insert(1, Acked(history.ids(7)))


def spoil_a_value(history: GroupHistory) -> None:
    history.change(2, rows=(row(1), row(2, "other")))


def keep_a_dead_one(history: GroupHistory) -> None:
    history.change(7, rows=(row(3), row(4), row(5)))


def acknowledge_unseen(history: GroupHistory) -> None:
    history.facts.early = set(history.ids(7))


def acknowledge_what_was_claimed(history: GroupHistory) -> None:
    history.facts.stale = set(history.ids(7))


def keep_what_another_claimed(history: GroupHistory) -> None:
    """Another consumer owned 7 from 2.0 on, by a claim; at 3.0 the first one got the answer that it still owned it."""
    first = history.records[10]
    assert isinstance(first, Handed)
    history.records[10] = replace(first, at=1.0)
    history.records.insert(11, Kept(history.ids(7), at=3.0))
    history.others.append(Handed(history.ids(7), again=True, reclaimed=True, at=2.0))


def bury_a_healthy_one(history: GroupHistory) -> None:
    history.facts.poison = set()


def bury_with_other_fields(history: GroupHistory) -> None:
    history.facts.dead = [row(5, "other")]


def keep_what_a_stopped_one_had(history: GroupHistory) -> None:
    history.facts.stranded = set(history.ids(7))


def hide_a_loss(history: GroupHistory) -> None:
    history.change(13, lost=0)


def exaggerate_a_loss(history: GroupHistory) -> None:
    history.change(13, lost=2)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (acknowledge_before, group_checker.EARLY),
        (forget_one, checker.LOST),
        (leave_one_pending, group_checker.PENDING),
        (hand_out_backwards, checker.ORDER),
        (hand_out_too_often, checker.TWICE),
        (acknowledge_what_another_has, group_checker.STALE),
        (acknowledge_what_another_processed, group_checker.EARLY),
        (spoil_a_value, checker.OTHER),
        (keep_a_dead_one, group_checker.ENDS),
        (acknowledge_unseen, group_checker.EARLY),
        (acknowledge_what_was_claimed, group_checker.STALE),
        (keep_what_another_claimed, group_checker.SHARED),
        (bury_a_healthy_one, group_checker.HEALTHY),
        (bury_with_other_fields, checker.OTHER),
        (keep_what_a_stopped_one_had, group_checker.STRANDED),
        (hide_a_loss, checker.UNREPORTED),
        (exaggerate_a_loss, checker.TOO_MANY),
    ],
)
def test_each_wrong_group_history_is_detected(spoil: Callable[[GroupHistory], None], what: str) -> None:
    history = GroupHistory()
    spoil(history)
    assert history.found() == {what}


def test_two_consumers_of_one_name_may_have_the_same_entry() -> None:
    history = GroupHistory()
    keep_what_another_claimed(history)
    history.facts.namesakes = {1}
    assert history.found() == set()


def test_a_partial_record_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(Done((row(1),), "first"))
    journal.add(Done((row(2),), "second"))
    journal.close()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        again = Journal(path)
        assert again.position == ("first" if size >= len(whole) // 2 else None)
        again.add(Done((row(3),), "third"))
        again.close()
        view = JournalView(path)
        view.update()
        assert view.records[-1] == Done((row(3),), "third")


def test_the_seed_of_a_share_determines_its_faults() -> None:
    def drawn(seed: int) -> list[tuple[int, list[str], float]]:
        share = Share(seed, "redis-8.6", "reader", 1, 40, READING)
        return [(number, names, rng.random()) for number, names, rng in share.episodes()]

    assert drawn(3) == drawn(3) != drawn(4)
    assert sum(len(names) for _, names, _ in drawn(3)) == 40


def test_a_campaign_without_time_left_runs_no_episodes() -> None:
    assert run([("redis-8.6", "reader")], 10, 1, 1, lambda _: None, READING, seconds=-1.0) == []
