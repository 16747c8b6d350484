"""The invariant under every fault: the reported outcomes agree with the content of the streams. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from support.pipelines import Outcome

#: How many messages a violation names.
EXAMPLES = 3


@dataclass(frozen=True)
class Message:
    """A message passed to a sender. No two messages have the same payload."""

    message_id: str
    key: str
    payload: bytes
    #: The messages of one caller keep their order.
    caller: int = 0


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the sender's mode guarantees or allows beyond the invariant."""

    #: The number of extra copies allowed in all streams together: as many as the sender reported, and never more than
    #: were in flight on the connections that it lost.
    duplicates: int = 0
    #: Whether messages keep their order even if some were sent again after an error reply.
    ordered: bool = True
    #: Whether no late copy can arrive after later messages: messages whose outcome is unknown are then in order too.
    unknown_ordered: bool = False
    #: Whether the oldest entries may have been removed.
    trimmed: bool = False
    #: Whether a delivered message may lack an entry ID because it was deduplicated.
    deduplicated: bool = False


@dataclass(frozen=True)
class Violation:
    """One kind of wrong outcome, and the messages that it affects."""

    what: str
    messages: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.messages[:EXAMPLES])
        return f"{len(self.messages):,} {self.what}: {named}{', …' * (len(self.messages) > EXAMPLES)}"


#: The entries of each stream key: entry ID and payload, in the stream's order.
Stored = Mapping[str, Sequence[tuple[str, bytes]]]


def violations(
    messages: Sequence[Message], reported: Iterable[Outcome], stored: Stored, promise: Promise | None = None
) -> list[Violation]:
    """Return the violations of the invariant.

    - Each message has exactly one outcome, and there are no others.
    - A delivered message is in its stream, under its entry ID, with its bytes; trimming may have removed it if all
      remaining entries are newer.
    - A message reported as not written is not stored. One whose outcome is unknown is stored at most once.
    - There are no duplicates beyond what the mode allows, no foreign entries, and none in another stream.
    - The messages of a stream are in the order in which each caller sent them.
    """
    return list(_Account(messages, list(reported), stored, promise or Promise()).violations())


class _Account:
    def __init__(self, messages: Sequence[Message], reported: list[Outcome], stored: Stored, promise: Promise) -> None:
        self.messages = messages
        self.reported = reported
        self.stored = stored
        self.promise = promise
        self.by_payload = {message.payload: number for number, message in enumerate(messages)}
        assert len(self.by_payload) == len(messages), "payloads must differ"
        #: The entry IDs of each message, in the stream's order.
        self.entries: dict[int, list[str]] = {}
        self.foreign: list[str] = []
        for key, entries in stored.items():
            for entry_id, payload in entries:
                number = self.by_payload.get(payload)
                if number is None or messages[number].key != key:
                    self.foreign.append(f"{key} {entry_id} {payload[:40]!r}")
                else:
                    self.entries.setdefault(number, []).append(entry_id)
        self.oldest = {key: _parse_id(entries[0][0]) for key, entries in stored.items() if entries}

    def violations(self) -> Iterator[Violation]:
        yield from _violation("entries of no message", self.foreign)
        yield from self._outcomes()
        outcome_of = {outcome.message_id: outcome for outcome in self.reported}
        outcomes = [outcome_of.get(message.message_id) for message in self.messages]
        yield from self._fates(outcomes)
        yield from self._duplicates()
        yield from self._order(outcomes)

    def _outcomes(self) -> Iterator[Violation]:
        """Check that each message has one outcome."""
        counts = Counter(outcome.message_id for outcome in self.reported)
        known = {message.message_id for message in self.messages}
        assert len(known) == len(self.messages), "message IDs must differ"
        yield from _violation("messages without an outcome", [name for name in known if name not in counts])
        yield from _violation("outcomes of no message", [name for name in counts if name not in known])
        yield from _violation("messages with several outcomes", [name for name, count in counts.items() if count > 1])

    def _fates(self, outcomes: Sequence[Outcome | None]) -> Iterator[Violation]:
        """Check each outcome against the stored entries."""
        lost: list[str] = []
        elsewhere: list[str] = []
        nameless: list[str] = []
        written: list[str] = []
        labels: list[str] = []
        for number, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            entries = self.entries.get(number, [])
            name = f"{outcome.message_id} ({outcome.entry_id or outcome.code})"
            if outcome.code is None:
                if outcome.kind is not None or outcome.written is not None:
                    labels.append(name)
                if outcome.entry_id is None:
                    if not self.promise.deduplicated:
                        nameless.append(name)
                    elif not entries and not self.promise.trimmed:
                        lost.append(name)
                elif outcome.entry_id not in entries and not self._was_trimmed(number, outcome.entry_id):
                    (elsewhere if entries else lost).append(name)
            elif outcome.entry_id is not None or outcome.kind not in ("permanent", "retryable"):
                labels.append(name)
            elif outcome.written == "no":
                if entries:
                    written.append(name)
            elif outcome.written != "unknown":
                labels.append(name)
        yield from _violation("delivered but not stored", lost)
        yield from _violation("delivered but stored under another entry ID", elsewhere)
        yield from _violation("delivered without an entry ID", nameless)
        yield from _violation("not written but stored", written)
        yield from _violation("contradictory outcomes", labels)

    def _was_trimmed(self, number: int, entry_id: str) -> bool:
        oldest = self.oldest.get(self.messages[number].key)
        return self.promise.trimmed and oldest is not None and _parse_id(entry_id) < oldest

    def _duplicates(self) -> Iterator[Violation]:
        extra = {number: len(entries) - 1 for number, entries in self.entries.items() if len(entries) > 1}
        if sum(extra.values()) > self.promise.duplicates:
            names = [f"{self.messages[number].message_id} {1 + count} times" for number, count in extra.items()]
            yield from _violation("more duplicates than reported", names)

    def _order(self, outcomes: Sequence[Outcome | None]) -> Iterator[Violation]:
        """Check that the first copies are in the order of the messages."""
        if not self.promise.ordered:
            return
        last: dict[tuple[str, int], tuple[tuple[int, int], str]] = {}
        wrong = []
        for number, message in enumerate(self.messages):
            outcome = outcomes[number]
            is_open = outcome is None or outcome.code is not None
            if number not in self.entries or (is_open and not self.promise.unknown_ordered):
                continue
            # A delivered message is at its entry ID; a first copy of it may have arrived late.
            at = _parse_id((outcome and outcome.entry_id) or self.entries[number][0])
            before = last.get((message.key, message.caller))
            if before is not None and at < before[0]:
                wrong.append(f"{message.message_id} before {before[1]}")
            last[message.key, message.caller] = at, message.message_id
        yield from _violation("out of order", wrong)
        for key, entries in self.stored.items():
            assert all(_parse_id(a) < _parse_id(b) for (a, _), (b, _) in pairwise(entries)), f"not as stored: {key}"


def _parse_id(entry_id: str) -> tuple[int, int]:
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)


def _violation(what: str, names: Sequence[str]) -> Iterator[Violation]:
    if names:
        yield Violation(what, tuple(names))
