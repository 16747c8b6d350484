"""The calls of tasks, and what a cancelled call may leave behind. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from support.pipelines import Outcome

from .checker import Message, Stored, Violation

Form = Literal["send", "produce", "produce_batch"]


@dataclass
class Call:
    """One call with its messages; calls are kept in the order in which they were made."""

    form: Form
    messages: Sequence[Message]
    #: Whether it was cancelled, and how many messages the dispatcher had accepted by then.
    cancelled: bool = False
    taken: int = 0
    #: Whether its task received the outcome (of `send`), or it returned.
    ended: bool = False


@dataclass(frozen=True)
class Account:
    """The messages of the calls, by whether they were accepted."""

    #: Accepted messages, in the order of the calls: each must have an outcome.
    accepted: Sequence[Message]
    #: Messages of calls that were cancelled before they were accepted.
    withdrawn: Sequence[Message]
    violations: Sequence[Violation]


def account(calls: Sequence[Call], reported: Iterable[Outcome], stored: Stored, taken: int) -> Account:
    """Determine which messages were accepted, and check those of cancelled calls; `taken` is the dispatcher's count.

    - If a call was cancelled, a message of it without an outcome was not accepted, and is not stored.
    - The accepted rows of a cancelled `produce_batch` are its first rows.
    - Nothing is accepted after its call was cancelled. Messages are accepted in the order of the calls, so that those
      taken by then are the first ones.
    - The dispatcher accepted as many messages as there are outcomes: each accepted message has one.
    - Every call ends.
    """
    reported = list(reported)
    named = {outcome.message_id for outcome in reported}
    accepted: list[Message] = []
    withdrawn: list[Message] = []
    gaps: list[str] = []
    later: list[str] = []
    endless: list[str] = []
    for call in calls:
        if not call.cancelled:
            accepted += call.messages
            endless += [message.message_id for message in call.messages if not call.ended]
            continue
        here = [message.message_id in named for message in call.messages]
        accepted += [message for message, is_here in zip(call.messages, here, strict=True) if is_here]
        withdrawn += [message for message, is_here in zip(call.messages, here, strict=True) if not is_here]
        if any(here) and len(accepted) > call.taken:
            later.append(accepted[-1].message_id)
        if sorted(here, reverse=True) != here:
            gaps.append(f"{call.messages[0].message_id} to {call.messages[-1].message_id}")
    payloads = {payload for entries in stored.values() for _, payload in entries}
    written = [message.message_id for message in withdrawn if message.payload in payloads]
    wrong = [
        *_violation("cancelled, without an outcome, but stored", written),
        *_violation("cancelled batches with a gap in the accepted rows", gaps),
        *_violation("messages accepted after their call was cancelled", later),
        *_violation("messages whose call did not end", endless),
    ]
    if taken != len(reported):
        wrong.append(
            Violation("count of messages taken that is not the count of outcomes", (f"{taken:,}, {len(reported):,}",))
        )
    return Account(accepted, withdrawn, wrong)


def _violation(what: str, names: Sequence[str]) -> Iterator[Violation]:
    if names:
        yield Violation(what, tuple(names))
