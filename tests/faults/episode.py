"""One episode: a sender, its messages, and faults at chosen bytes of its traffic; then the account. All from a seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .checker import Message, Violation, violations
from .kinds import KINDS, Kind
from .lab import TOO_LARGE, Lab
from .proxy import Direction
from .senders import Headrace, RedisPy, Sender

#: Beside the kinds of `KINDS`, which happen to the connection.
CRASH = "the sender crashes"
ROW_TOO_LARGE = "row too large"

#: The mode of the sender that is compared with.
REDIS_PY = "redis-py"

KEY = "events"
#: An entry beside its payload, and the reply to it: that many bytes at least, so that each fault meets its byte.
_ENTRY, _REPLY = 80, 20


@dataclass
class Result:
    """What came of an episode."""

    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    delivered: int = 0
    unknown: int = 0
    duplicates: int = 0
    told_duplicates: int = 0
    connections: int = 0
    replays: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    def __iadd__(self, other: Result) -> Result:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def kinds_for(mode: str) -> list[str]:
    """The kinds of faults that a mode is put to, as often as they are drawn."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.weight)]
    if mode in ("script", "idmp"):
        names += [CRASH] * 3
    # A run of the script fails as a whole by a row that is too large: tests/test_error_texts.py has that.
    if mode != "script":
        names += [ROW_TOO_LARGE] * 3
    return names


def play(lab: Lab, mode: str, names: Sequence[str], rng: random.Random) -> Result:
    """Send messages in the face of these faults, one after the other, and hold what was told against what is there."""
    return _Episode(lab, mode, rng).play(names)


class _Episode:
    def __init__(self, lab: Lab, mode: str, rng: random.Random) -> None:
        self.lab = lab
        self.mode = mode
        self.rng = rng
        self.messages: list[Message] = []
        self.result = Result()
        self.size = rng.choice([10, 200, 3000])
        # Names of the server are of one stream, so `idmp` has no column of stream keys.
        self.keys = rng.choice([[KEY], [KEY], [KEY, "orders", "payments"]]) if mode in ("off", "script") else [KEY]
        self.struck: list[str] = []
        self.options = rng.getrandbits(64)
        self.sender = self._sender()

    def play(self, names: Sequence[str]) -> Result:
        started = time.monotonic()
        self.lab.empty()
        try:
            self._send(self._more(self.rng.randint(0, 50)))
            for name in names:
                self._fault(name)
            self._end()
        finally:
            self.lab.proxy.disarm()
            self.lab.proxy.rest()
            self.result.connections += self.sender.connections
            self.sender.close()
        self.result.faults.update(self.struck)
        self.result.seconds = time.monotonic() - started
        return self.result

    def _sender(self) -> Sender:
        # One that begins anew is made like the first one.
        rng = random.Random(self.options)
        return RedisPy(self.lab, rng) if self.mode == REDIS_PY else Headrace(self.lab, self.mode, KEY, rng, "token")

    def _more(self, count: int, size: int | None = None) -> list[Message]:
        """Make up messages."""
        made = []
        for _ in range(count):
            number = len(self.messages)
            length = self.rng.randint(0, self.size) if size is None else size
            made.append(Message(str(number), self.rng.choice(self.keys), b"%d-" % number + b"x" * length))
            self.messages.append(made[-1])
        return made

    def _send(self, messages: Sequence[Message]) -> None:
        """In pieces."""
        while messages:
            count = self.rng.randint(1, len(messages))
            self.sender.send(messages[:count])
            messages = messages[count:]

    def _fault(self, name: str) -> None:
        messages = self._more(self.rng.choice([1, 10, 100, 300]))
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

    def _strike(self, kind: Kind, messages: Sequence[Message]) -> None:
        """Send messages so that the fault meets them at a byte that is left to chance."""
        if kind.prepare:
            kind.prepare(self.lab)
        directions: list[Direction] = [kind.direction] if kind.direction else ["requests", "replies"]
        direction = self.rng.choice(directions)
        total = _REPLY * len(messages) if direction == "replies" else sum(_ENTRY + len(m.payload) for m in messages)
        seed = self.rng.getrandbits(64)
        struck = []

        def act(pair: object) -> None:
            struck.append(kind.name)
            kind.strike(self.lab, pair, random.Random(seed))  # type: ignore[arg-type]

        self.lab.proxy.at(direction, self.rng.randint(0, total), act)
        self._send(messages)
        if not struck or self.rng.random() < 0.7:
            self.sender.flush()
        self.lab.proxy.disarm()
        self.lab.proxy.rest()
        # One that missed its byte, because less was sent than was thought, is none.
        self.struck += struck

    def _crash(self) -> None:
        """The sender is gone in mid-flight; another one begins the batch again."""
        self.struck.append(CRASH)
        self._begin_anew()
        self._send(self.messages)

    def _begin_anew(self) -> None:
        self.result.connections += self.sender.connections
        self.sender.close()
        self.sender = self._sender()

    def _end(self) -> None:
        self.sender.flush()
        self._account()
        if self.sender.replays and self._failed():
            # What the exactly-once modes are for: the same batch again, and each message is there once.
            self.result.replays += 1
            self._begin_anew()
            self.sender.send(self.messages)
            self.sender.flush()
            self._account()
            if failed := self._failed():
                self.result.violations.append(Violation("begun again without faults, and not delivered", tuple(failed)))

    def _failed(self) -> list[str]:
        """What was not delivered though nothing stood in its way."""
        large = {message.message_id for message in self.messages if len(message.payload) > TOO_LARGE}
        failed = [outcome for outcome in self.sender.told.outcomes if outcome.code is not None]
        # One that is too large costs the connection, and so the proof that those before it are in the append-only file.
        return [
            f"{outcome.message_id} ({outcome.code})"
            for outcome in failed
            if outcome.message_id not in large and not (large and outcome.code == "NOT_REPLICATED")
        ]

    def _account(self) -> None:
        told = self.sender.told
        stored = self.lab.stored(self.keys)
        kinds = [KINDS[name] for name in self.struck if name in KINDS]
        # A row that is too large meets the server again with each connection, until it is told what was wrong.
        losses = self.sender.connections if ROW_TOO_LARGE in self.struck else len(kinds)
        promise = self.sender.promise(kinds, losses, again=CRASH in self.struck or self.result.replays > 0)
        self.result.violations += violations(self.messages, told.outcomes, stored, promise)
        self.result.messages = len(self.messages)
        self.result.delivered = sum(outcome.code is None for outcome in told.outcomes)
        self.result.unknown = sum(outcome.written == "unknown" for outcome in told.outcomes)
        payloads = [payload for entries in stored.values() for _, payload in entries]
        self.result.duplicates = len(payloads) - len(set(payloads))
        self.result.told_duplicates = told.possible_duplicates
