"""The checker of the fault tests finds each kind of wrong report, and nothing in a correct one. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from faults.campaign import Share
from faults.checker import Message, Promise, violations
from support.pipelines import Outcome

MESSAGES = [Message(str(number), "ab"[number % 2], b"payload-%d" % number) for number in range(10)]
#: What the modes allow.
AT_MOST_ONCE = Promise()
TWICE = Promise(duplicates=1)


def delivered(number: int) -> Outcome:
    return Outcome(str(number), f"7-{number}", None, None, None, None)


def failed(number: int, written: str | None, kind: str = "retryable") -> Outcome:
    return Outcome(str(number), None, kind, "RESET", "lost", written)


class Account:
    """Ten messages to two streams: six delivered, two not written, two unknown, of which the last is stored."""

    def __init__(self) -> None:
        self.messages = list(MESSAGES)
        self.reported = [delivered(number) for number in range(10)]
        self.reported[4:8] = [failed(4, "no"), failed(5, "no", "permanent"), failed(6, "unknown"), failed(7, "unknown")]
        here = [number for number in range(10) if number not in (4, 5, 6)]
        self.stored = {
            key: [(f"7-{number}", MESSAGES[number].payload) for number in here if MESSAGES[number].key == key]
            for key in "ab"
        }
        self.promise = AT_MOST_ONCE

    def found(self) -> list[str]:
        return [found.what for found in violations(self.messages, self.reported, self.stored, self.promise)]

    def change(self, number: int, **fields: Any) -> None:
        self.reported[number] = dataclasses.replace(self.reported[number], **fields)

    def put(self, number: int, entry_id: str, key: str | None = None) -> None:
        """Store a message under this ID."""
        entries = self.stored[key or self.messages[number].key]
        entries.append((entry_id, self.messages[number].payload))
        entries.sort(key=lambda entry: tuple(map(int, entry[0].split("-"))))

    def take(self, number: int) -> None:
        """Remove a message."""
        key = self.messages[number].key
        self.stored[key] = [entry for entry in self.stored[key] if entry[1] != self.messages[number].payload]


def test_a_correct_report_has_no_violations() -> None:
    assert Account().found() == []
    account = Account()
    account.take(7)  # messages whose outcome is unknown may be stored or not
    assert account.found() == []


def lose(account: Account) -> None:
    account.take(2)


def lose_the_only_one(account: Account) -> None:
    account.messages, account.reported = account.messages[:1], account.reported[:1]
    account.stored = {"a": []}


def store_other_bytes(account: Account) -> None:
    account.stored["a"][1] = ("7-2", b"payload-two")


def store_in_another_stream(account: Account) -> None:
    account.take(2)
    account.put(2, "7-2", "b")


def report_another_id(account: Account) -> None:
    account.change(2, entry_id="7-3")


def swap_two_ids(account: Account) -> None:
    account.change(0, entry_id="7-2")
    account.change(2, entry_id="7-0")


def report_no_id(account: Account) -> None:
    account.change(2, entry_id=None)


def store_an_unwritten_message(account: Account) -> None:
    account.put(4, "7-4")


def store_twice(account: Account) -> None:
    account.put(2, "9-2")


def store_an_unknown_message_twice(account: Account) -> None:
    account.put(7, "9-7")


def drop_an_outcome(account: Account) -> None:
    del account.reported[2]


def report_an_outcome_twice(account: Account) -> None:
    account.reported.append(account.reported[2])


def report_an_unsent_message(account: Account) -> None:
    account.reported.append(delivered(99))


def report_under_the_wrong_message_id(account: Account) -> None:
    account.change(6, message_id="2")


def reorder(account: Account) -> None:
    account.take(2)
    account.put(2, "9-2")
    account.change(2, entry_id="9-2")


def fail_without_a_kind(account: Account) -> None:
    account.change(4, kind=None)


def fail_without_written(account: Account) -> None:
    account.change(4, written=None)


def fail_with_an_id(account: Account) -> None:
    account.change(6, entry_id="7-6")


def deliver_as_unknown(account: Account) -> None:
    account.change(2, written="unknown")


CONTRADICTION = "contradictory outcomes"
FOREIGN = "entries of no message"
LOST = "delivered but not stored"
SEVERAL_OUTCOMES = "messages with several outcomes"
NO_OUTCOME = "messages without an outcome"


@pytest.mark.parametrize(
    ("falsify", "found"),
    [
        (lose, [LOST]),
        (lose_the_only_one, [LOST]),
        (store_other_bytes, [FOREIGN, LOST]),
        (store_in_another_stream, [FOREIGN, LOST]),
        (report_another_id, ["delivered but stored under another entry ID"]),
        (swap_two_ids, ["delivered but stored under another entry ID", "out of order"]),
        (report_no_id, ["delivered without an entry ID"]),
        (store_an_unwritten_message, ["not written but stored"]),
        (store_twice, ["more duplicates than reported"]),
        (store_an_unknown_message_twice, ["more duplicates than reported"]),
        (drop_an_outcome, [NO_OUTCOME]),
        (report_an_outcome_twice, [SEVERAL_OUTCOMES]),
        (report_an_unsent_message, ["outcomes of no message"]),
        (report_under_the_wrong_message_id, [NO_OUTCOME, SEVERAL_OUTCOMES]),
        (reorder, ["out of order"]),
        (fail_without_a_kind, [CONTRADICTION]),
        (fail_without_written, [CONTRADICTION]),
        (fail_with_an_id, [CONTRADICTION]),
        (deliver_as_unknown, [CONTRADICTION]),
    ],
)
def test_each_wrong_report_is_detected(falsify: Callable[[Account], None], found: list[str]) -> None:
    account = Account()
    falsify(account)
    assert account.found() == found


def test_no_more_duplicates_than_reported_are_allowed() -> None:
    account = Account()
    account.promise = TWICE
    store_twice(account)
    assert account.found() == []
    store_an_unknown_message_twice(account)
    assert account.found() == ["more duplicates than reported"]


def test_only_the_oldest_entries_may_be_trimmed() -> None:
    account = Account()
    account.take(0)
    account.take(2)
    assert account.found() == [LOST]
    account.promise = Promise(trimmed=True)
    assert account.found() == []
    account.put(0, "7-0")
    assert account.found() == [LOST]  # 2 is missing although the older 0 is stored


def test_a_deduplicated_message_is_stored_and_may_lack_its_entry_id() -> None:
    account = Account()
    account.promise = Promise(deduplicated=True)
    report_no_id(account)
    assert account.found() == []
    account.take(2)
    assert account.found() == [LOST]


def test_unknown_messages_may_be_out_of_order_unless_promised() -> None:
    account = Account()
    account.take(7)
    account.put(7, "7-99")  # it arrived after its successors
    assert account.found() == []
    account.promise = Promise(unknown_ordered=True)
    assert account.found() == ["out of order"]
    account.promise = Promise(unknown_ordered=True, ordered=False)
    assert account.found() == []


def test_only_the_messages_of_one_caller_are_in_order() -> None:
    account = Account()
    reorder(account)
    account.messages[2] = dataclasses.replace(account.messages[2], caller=1)
    assert account.found() == []
    account.messages[8] = dataclasses.replace(account.messages[8], caller=1)
    assert account.found() == ["out of order"]


def test_a_copy_may_precede_the_reported_entry() -> None:
    account = Account()
    account.promise = Promise(duplicates=2)
    account.put(8, "7-1")  # its first copy arrived earlier
    assert account.found() == []


def test_shares_are_determined_by_their_seeds() -> None:
    share = Share(seed=3, server="redis-8.6", mode="idmp", number=1, faults=40)
    first = [(number, names, rng.random()) for number, names, rng in share.episodes()]
    assert first == [(number, names, rng.random()) for number, names, rng in share.episodes()]
    assert sum(len(names) for _, names, _ in first) == 40
    assert first != [(n, names, rng.random()) for n, names, rng in dataclasses.replace(share, seed=4).episodes()]
