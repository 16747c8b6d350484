"""The checker of the laboratory looks at itself: it finds each kind of lie, and nothing where there is none. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from faults.campaign import Share
from faults.checker import Message, Promise, violations
from support.pipelines import Outcome

MESSAGES = [Message(str(number), "ab"[number % 2], b"payload-%d" % number) for number in range(10)]
#: As far as the modes go.
AT_MOST_ONCE = Promise()
TWICE = Promise(duplicates=1)


def delivered(number: int) -> Outcome:
    return Outcome(str(number), f"7-{number}", None, None, None, None)


def failed(number: int, written: str | None, kind: str = "retryable") -> Outcome:
    return Outcome(str(number), None, kind, "RESET", "lost", written)


class Account:
    """Ten messages to two streams: six delivered, two not written, two doubtful, of which the second is there."""

    def __init__(self) -> None:
        self.messages = list(MESSAGES)
        self.told = [delivered(number) for number in range(10)]
        self.told[4:8] = [failed(4, "no"), failed(5, "no", "permanent"), failed(6, "unknown"), failed(7, "unknown")]
        here = [number for number in range(10) if number not in (4, 5, 6)]
        self.stored = {
            key: [(f"7-{number}", MESSAGES[number].payload) for number in here if MESSAGES[number].key == key]
            for key in "ab"
        }
        self.promise = AT_MOST_ONCE

    def found(self) -> list[str]:
        return [found.what for found in violations(self.messages, self.told, self.stored, self.promise)]

    def change(self, number: int, **fields: Any) -> None:
        self.told[number] = dataclasses.replace(self.told[number], **fields)

    def put(self, number: int, entry_id: str, key: str | None = None) -> None:
        """Store a message, under this ID."""
        entries = self.stored[key or self.messages[number].key]
        entries.append((entry_id, self.messages[number].payload))
        entries.sort(key=lambda entry: tuple(map(int, entry[0].split("-"))))

    def take(self, number: int) -> None:
        """Remove a message."""
        key = self.messages[number].key
        self.stored[key] = [entry for entry in self.stored[key] if entry[1] != self.messages[number].payload]


def test_the_truth() -> None:
    assert Account().found() == []
    account = Account()
    account.take(7)  # doubtful ones may be there or not
    assert account.found() == []


def lose(account: Account) -> None:
    account.take(2)


def lose_the_only_one(account: Account) -> None:
    account.messages, account.told = account.messages[:1], account.told[:1]
    account.stored = {"a": []}


def store_other_bytes(account: Account) -> None:
    account.stored["a"][1] = ("7-2", b"payload-two")


def store_in_another_stream(account: Account) -> None:
    account.take(2)
    account.put(2, "7-2", "b")


def tell_another_id(account: Account) -> None:
    account.change(2, entry_id="7-3")


def tell_the_next_one_s_id(account: Account) -> None:
    account.change(0, entry_id="7-2")
    account.change(2, entry_id="7-0")


def tell_no_id(account: Account) -> None:
    account.change(2, entry_id=None)


def store_what_was_not_written(account: Account) -> None:
    account.put(4, "7-4")


def store_twice(account: Account) -> None:
    account.put(2, "9-2")


def store_a_doubtful_one_twice(account: Account) -> None:
    account.put(7, "9-7")


def forget_an_outcome(account: Account) -> None:
    del account.told[2]


def tell_an_outcome_twice(account: Account) -> None:
    account.told.append(account.told[2])


def tell_of_nobody(account: Account) -> None:
    account.told.append(delivered(99))


def tell_of_one_for_another(account: Account) -> None:
    account.change(6, message_id="2")


def mix_up(account: Account) -> None:
    account.take(2)
    account.put(2, "9-2")
    account.change(2, entry_id="9-2")


def be_of_no_kind(account: Account) -> None:
    account.change(4, kind=None)


def leave_open_whether_written(account: Account) -> None:
    account.change(4, written=None)


def fail_with_an_id(account: Account) -> None:
    account.change(6, entry_id="7-6")


def deliver_with_a_doubt(account: Account) -> None:
    account.change(2, written="unknown")


CONTRADICTION = "outcomes that contradict themselves"
FOREIGN = "entries that nobody handed over"
LOST = "delivered, and not there"
TOLD_TWICE = "messages with several outcomes"
UNTOLD = "messages without an outcome"


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (lose, [LOST]),
        (lose_the_only_one, [LOST]),
        (store_other_bytes, [FOREIGN, LOST]),
        (store_in_another_stream, [FOREIGN, LOST]),
        (tell_another_id, ["delivered, and there under other entry IDs only"]),
        (tell_the_next_one_s_id, ["delivered, and there under other entry IDs only", "out of order"]),
        (tell_no_id, ["delivered without an entry ID"]),
        (store_what_was_not_written, ["not written, and there"]),
        (store_twice, ["there more often than was told"]),
        (store_a_doubtful_one_twice, ["there more often than was told"]),
        (forget_an_outcome, [UNTOLD]),
        (tell_an_outcome_twice, [TOLD_TWICE]),
        (tell_of_nobody, ["outcomes of no message"]),
        (tell_of_one_for_another, [UNTOLD, TOLD_TWICE]),
        (mix_up, ["out of order"]),
        (be_of_no_kind, [CONTRADICTION]),
        (leave_open_whether_written, [CONTRADICTION]),
        (fail_with_an_id, [CONTRADICTION]),
        (deliver_with_a_doubt, [CONTRADICTION]),
    ],
)
def test_a_lie(lie: Callable[[Account], None], found: list[str]) -> None:
    account = Account()
    lie(account)
    assert account.found() == found


def test_duplicates_are_allowed_as_far_as_they_were_told_of() -> None:
    account = Account()
    account.promise = TWICE
    store_twice(account)
    assert account.found() == []
    store_a_doubtful_one_twice(account)
    assert account.found() == ["there more often than was told"]


def test_trimming_takes_the_oldest_only() -> None:
    account = Account()
    account.take(0)
    account.take(2)
    assert account.found() == [LOST]
    account.promise = Promise(trimmed=True)
    assert account.found() == []
    account.put(0, "7-0")
    assert account.found() == [LOST]  # 2 is away, and 0 is there


def test_what_was_deduplicated_has_no_id_and_is_there() -> None:
    account = Account()
    account.promise = Promise(deduplicated=True)
    tell_no_id(account)
    assert account.found() == []
    account.take(2)
    assert account.found() == [LOST]


def test_the_order_of_doubtful_ones() -> None:
    account = Account()
    account.take(7)
    account.put(7, "7-99")  # it came behind its successor
    assert account.found() == []
    account.promise = Promise(unknown_ordered=True)
    assert account.found() == ["out of order"]
    account.promise = Promise(unknown_ordered=True, ordered=False)
    assert account.found() == []


def test_a_late_copy_before_the_one_that_was_told_of() -> None:
    account = Account()
    account.promise = Promise(duplicates=2)
    account.put(8, "7-1")  # a first copy of it came before
    assert account.found() == []


def test_shares_are_those_of_their_seeds() -> None:
    share = Share(seed=3, server="redis-8.6", mode="idmp", number=1, faults=40)
    first = [(number, names, rng.random()) for number, names, rng in share.episodes()]
    assert first == [(number, names, rng.random()) for number, names, rng in share.episodes()]
    assert sum(len(names) for _, names, _ in first) == 40
    assert first != [(n, names, rng.random()) for n, names, rng in dataclasses.replace(share, seed=4).episodes()]
