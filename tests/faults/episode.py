"""One episode, from a seed: a sender, its messages, faults at random bytes of its traffic, and a final check."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .async_sender import AsyncHeadrace
from .checker import Message, Violation, violations
from .fault_kinds import KINDS, FaultKind
from .proxy import Direction
from .senders import Headrace, RedisPy, Sender
from .testbed import TOO_LARGE, FaultTestbed
from .threaded_sender import CALLERS, ThreadedHeadrace

#: Faults in addition to those of `KINDS`, which strike connections.
CRASH = "the sender crashes"
ROW_TOO_LARGE = "row too large"

#: The mode name of the sender used for comparison.
REDIS_PY = "redis-py"
#: The prefixes of the modes of an `AsyncDispatcher`, and of a `Dispatcher` that threads share.
ASYNC, THREADS = "async-", "threads-"

KEY = "events"
#: Minimum size of an entry without its payload, and of its reply, in bytes, so that each fault reaches its byte.
_ENTRY, _REPLY = 80, 20


@dataclass
class EpisodeResult:
    """The counts of an episode, and the violations found."""

    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    delivered: int = 0
    unknown: int = 0
    duplicates: int = 0
    reported_duplicates: int = 0
    connections: int = 0
    replays: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    #: For tasks and threads: where outcomes arrived, what was cancelled, and how a dispatcher was called.
    calls: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: EpisodeResult) -> EpisodeResult:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def kinds_for(mode: str) -> list[str]:
    """The kinds of faults for a mode, each repeated by its weight."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.weight)]
    # Tasks and threads have no token in script mode, so no batch can be repeated.
    if mode in ("script", "idmp", ASYNC + "idmp", THREADS + "idmp"):
        names += [CRASH] * 3
    # In script mode the rows after it are blocked: tests/delivery/test_exactly_once.py covers that.
    if _bare(mode) != "script":
        names += [ROW_TOO_LARGE] * 3
    return names


def _bare(mode: str) -> str:
    return mode.removeprefix(ASYNC).removeprefix(THREADS)


def run_episode(testbed: FaultTestbed, mode: str, names: Sequence[str], rng: random.Random) -> EpisodeResult:
    """Send messages under these faults, one after the other, and check the outcomes against the streams."""
    return _Episode(testbed, mode, rng).run(names)


class _Episode:
    def __init__(self, testbed: FaultTestbed, mode: str, rng: random.Random) -> None:
        self.testbed = testbed
        self.is_async = mode.startswith(ASYNC)
        self.callers = CALLERS if mode.startswith(THREADS) else 1
        self.mode = _bare(mode)
        self.rng = rng
        self.messages: list[Message] = []
        self.result = EpisodeResult()
        self.size = rng.choice([10, 200, 3000])
        # The server deduplicates per stream, so `idmp` has no column of stream keys.
        self.keys = rng.choice([[KEY], [KEY], [KEY, "orders", "payments"]]) if self.mode in ("off", "script") else [KEY]
        self.struck: list[str] = []
        self.options = rng.getrandbits(64)
        self.sender = self._sender()

    def run(self, names: Sequence[str]) -> EpisodeResult:
        started = time.monotonic()
        self.testbed.empty()
        try:
            self._send(self._more(self.rng.randint(0, 50)))
            for name in names:
                self._fault(name)
            self._end()
        finally:
            self.testbed.proxy.disarm()
            self.testbed.proxy.rest()
            self.sender.close()
        self.result.faults.update(self.struck)
        self.result.seconds = time.monotonic() - started
        return self.result

    def _sender(self) -> Sender:
        # Each sender of an episode has the same options.
        rng = random.Random(self.options)
        if self.mode == REDIS_PY:
            return RedisPy(self.testbed, rng)
        if self.is_async:
            return AsyncHeadrace(self.testbed, self.mode, KEY, rng, "token", is_calm=self._begins_again())
        if self.callers > 1:
            return ThreadedHeadrace(self.testbed, self.mode, KEY, rng, "token")
        return Headrace(self.testbed, self.mode, KEY, rng, "token")

    def _begins_again(self) -> bool:
        return CRASH in self.struck or self.result.replays > 0

    def _more(self, count: int, size: int | None = None) -> list[Message]:
        """Add messages to the episode, of random size unless `size` is given."""
        made = []
        for _ in range(count):
            number = len(self.messages)
            caller = number % self.callers
            length = self.rng.randint(0, self.size) if size is None else size
            made.append(Message(str(number), self.rng.choice(self.keys), b"%d-" % number + b"x" * length, caller))
            self.messages.append(made[-1])
        return made

    def _send(self, messages: Sequence[Message]) -> None:
        """Send messages in pieces of random size."""
        while messages:
            count = self.rng.randint(1, len(messages))
            self.sender.send(messages[:count])
            messages = messages[count:]

    def _fault(self, name: str) -> None:
        messages = self._more(self.rng.choice([1, 10, 100, 300]) * (10 if self.callers > 1 else 1))
        if name == CRASH:
            self._send(messages)
            self._crash()
        elif name == ROW_TOO_LARGE:
            middle = self.rng.randint(0, len(messages))
            large = self._more(1, TOO_LARGE)
            messages = [*messages[:middle], *large, *messages[middle:]]
            self.messages[-len(messages) :] = messages
            self._send(messages)
            self.struck.append(name)
        else:
            self._strike(KINDS[name], messages)

    def _strike(self, kind: FaultKind, messages: Sequence[Message]) -> None:
        """Send messages with a fault at a random byte."""
        if kind.prepare:
            kind.prepare(self.testbed)
        directions: list[Direction] = [kind.direction] if kind.direction else ["requests", "replies"]
        direction = self.rng.choice(directions)
        # In a script call a row may be barely larger than its payload, and one reply is for all rows.
        replies = max(len(messages) // self.sender.per_reply, 1)
        entry = 0 if self.mode == "script" else _ENTRY
        total = _REPLY * replies if direction == "replies" else sum(entry + len(m.payload) for m in messages)
        seed = self.rng.getrandbits(64)
        struck = []

        def act(pair: object) -> None:
            struck.append(kind.name)
            kind.strike(self.testbed, pair, random.Random(seed))  # type: ignore[arg-type]

        self.testbed.proxy.at(direction, self.rng.randint(0, total), act)
        self._send(messages)
        if not struck or self.rng.random() < 0.7:
            self.sender.flush()
        self.testbed.proxy.disarm()
        self.testbed.proxy.rest()
        # A fault whose byte was not reached does not count.
        self.struck += struck

    def _crash(self) -> None:
        """Drop the sender while messages are in flight; another sender repeats the batch."""
        self.struck.append(CRASH)
        self._close_sender()
        self.sender = self._sender()
        self._send(self.messages)

    def _close_sender(self) -> None:
        self.result.connections += self.sender.connections
        self.sender.close()

    def _end(self) -> None:
        self._finish()
        if self.sender.replays and self._failed():
            # The same batch again: the exactly-once modes write each message once.
            self.result.replays += 1
            self.sender = self._sender()
            self.sender.send(self.messages)
            self._finish()
            if failed := self._failed():
                self.result.violations.append(Violation("replayed without faults but not delivered", tuple(failed)))

    def _finish(self) -> None:
        """Collect the last outcomes, and compare all of them with the streams once no further copy can arrive."""
        self.sender.finish()
        self._close_sender()
        self.testbed.settle()
        self._account()

    def _failed(self) -> list[str]:
        """The messages that failed although they could have been delivered."""
        large = {message.message_id for message in self.messages if len(message.payload) > TOO_LARGE}
        failed = [outcome for outcome in self.sender.reported.outcomes if outcome.code is not None]
        # A message that is too large ends the connection before WAITAOF has confirmed the preceding messages.
        return [
            f"{outcome.message_id} ({outcome.code})"
            for outcome in failed
            if outcome.message_id not in large and not (large and outcome.code == "NOT_REPLICATED")
        ]

    def _account(self) -> None:
        reported = self.sender.reported
        stored = self.testbed.stored(self.keys)
        kinds = [KINDS[name] for name in self.struck if name in KINDS]
        promise = self.sender.promise(kinds, again=self._begins_again())
        messages, wrong = self.sender.account(self.messages, stored)
        self.result.calls = Counter(reported.calls)
        self.result.violations += [*wrong, *violations(messages, reported.outcomes, stored, promise)]
        self.result.messages = len(self.messages)
        self.result.delivered = sum(outcome.code is None for outcome in reported.outcomes)
        self.result.unknown = sum(outcome.written == "unknown" for outcome in reported.outcomes)
        payloads = [payload for entries in stored.values() for _, payload in entries]
        self.result.duplicates = len(payloads) - len(set(payloads))
        self.result.reported_duplicates = reported.possible_duplicates
