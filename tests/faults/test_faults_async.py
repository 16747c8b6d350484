"""The campaign with `AsyncDispatcher`: a few faults on each server in each mode, and defects that it must find."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from faults.calls import Call, account
from faults.campaign import Share, async_pairs, run_share
from faults.checker import Message
from faults.episode import run_episode
from faults.testbed import FaultTestbed
from headrace import AsyncDispatcher
from support.pipelines import Outcome
from support.servers import find_programs

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(("number", "pair"), list(enumerate(async_pairs(), 1)), ids=str)
def test_every_outcome_of_tasks_is_correct_under_faults(number: int, pair: tuple[str, str]) -> None:
    """Every second pair uses TLS, on servers that support it."""
    label, mode = pair
    played = run_share(Share(1, label, mode, number, 4))
    assert not played.failures
    assert played.result.messages > 0


def drop_the_outcome_of_a_cancelled_task(patch: pytest.MonkeyPatch) -> None:
    give_up = AsyncDispatcher._give_up

    def drop(self: AsyncDispatcher, future: Any, turn: Any) -> None:
        if future.done():
            future = asyncio.get_running_loop().create_future()
        give_up(self, future, turn)

    patch.setattr(AsyncDispatcher, "_give_up", drop)


def send_what_was_cancelled_in_the_line(patch: pytest.MonkeyPatch) -> None:
    give_up = AsyncDispatcher._give_up

    def keep(self: AsyncDispatcher, future: Any, turn: Any) -> None:
        if turn is None or turn.is_over:
            give_up(self, future, turn)
        else:
            turn.future = asyncio.get_running_loop().create_future()

    patch.setattr(AsyncDispatcher, "_give_up", keep)


def accept_the_last_of_the_line_first(patch: pytest.MonkeyPatch) -> None:
    wait = AsyncDispatcher._wait

    def overtake(self: AsyncDispatcher, future: Any, take: Any) -> Any:
        turn = wait(self, future, take)
        self._line.rotate()
        return turn

    patch.setattr(AsyncDispatcher, "_wait", overtake)


def end_a_flush_early(patch: pytest.MonkeyPatch) -> None:
    def end(self: AsyncDispatcher, future: Any) -> bool:
        future.set_result(None)
        return True

    patch.setattr(AsyncDispatcher, "_await_outcomes", end)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (drop_the_outcome_of_a_cancelled_task, "cancelled, without an outcome, but stored"),
        (drop_the_outcome_of_a_cancelled_task, "count of messages taken that is not the count of outcomes"),
        (send_what_was_cancelled_in_the_line, "messages accepted after their call was cancelled"),
        (accept_the_last_of_the_line_first, "out of order"),
        (end_a_flush_early, "messages without an outcome at the end of their flush"),
    ],
)
def test_the_campaign_finds_injected_defects(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], found: str
) -> None:
    break_it(monkeypatch)
    whats: set[str] = set()
    with FaultTestbed(max(find_programs())) as testbed:
        for seed in range(40):
            result = run_episode(testbed, "async-off", ["narrow", "CLIENT KILL"], random.Random(seed))
            whats |= {violation.what for violation in result.violations}
            if found in whats:
                return
    pytest.fail(f"found only {whats}")


MESSAGES = [Message(str(number), "a", b"payload-%d" % number) for number in range(4)]
STORED = {"a": [(f"7-{number}", message.payload) for number, message in enumerate(MESSAGES)]}


def delivered(*numbers: int) -> list[Outcome]:
    return [Outcome(str(number), f"7-{number}", None, None, None, None) for number in numbers]


def test_accepted_rows_of_a_cancelled_batch_are_its_first_rows() -> None:
    call = Call("produce_batch", MESSAGES, cancelled=True, taken=2)
    done = account([call], delivered(0, 1), {"a": STORED["a"][:2]}, 2)
    assert (done.accepted, done.withdrawn, done.violations) == (MESSAGES[:2], MESSAGES[2:], [])
    done = account([call], delivered(0, 2), {"a": [STORED["a"][0], STORED["a"][2]]}, 2)
    assert [str(wrong) for wrong in done.violations] == ["1 cancelled batches with a gap in the accepted rows: 0 to 3"]


def test_a_cancelled_message_stored_without_an_outcome_is_a_violation() -> None:
    done = account([Call("send", MESSAGES[:1], cancelled=True)], [], {"a": STORED["a"][:1]}, 0)
    assert [wrong.what for wrong in done.violations] == ["cancelled, without an outcome, but stored"]


def test_a_message_accepted_after_its_cancellation_is_a_violation() -> None:
    calls = [Call("produce", MESSAGES[:1], ended=True), Call("send", MESSAGES[1:2], cancelled=True, taken=1)]
    done = account(calls, delivered(0, 1), {"a": STORED["a"][:2]}, 2)
    assert [str(wrong) for wrong in done.violations] == ["1 messages accepted after their call was cancelled: 1"]


def test_a_call_that_does_not_end_is_a_violation() -> None:
    done = account([Call("produce", MESSAGES[:1])], delivered(0), STORED, 1)
    assert [wrong.what for wrong in done.violations] == ["messages whose call did not end"]


def test_an_accepted_message_without_an_outcome_is_a_violation() -> None:
    done = account([Call("send", MESSAGES[:1], cancelled=True)], [], {}, 1)
    assert [wrong.what for wrong in done.violations] == ["count of messages taken that is not the count of outcomes"]
