"""Plays a schedule: redis-py changes the streams, a reader reads them, and the chain of its positions judges it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace import CommandError, DataLossError, HeadraceError, ReadBatch, Reader, StreamReplacedError

from .backward import Backward
from .chain import AGAIN, DROPPED, NAMELESS, STUCK, TOTAL, UNEXPECTED, UNNOTICED, Chain, Violation
from .changes import Changes
from .packing import PACKINGS
from .plan import PROGRAM, Plan
from .servers import Servers
from .world import LAST, TOP, ZERO, Id, World, after, text_of

#: Creates a reader: `Reader`, or one that lies.
Open = Callable[..., Reader]

#: Seconds without a result after which what is there will not come: thousands of times what it takes.
WAIT = 20.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Opened:
    """A reader at work, and what it has reported so far."""

    reader: Reader
    at: int
    raises: bool
    #: The last ID, or with `reverse` the first, of each stream that it is to read. None: it follows them.
    ends: dict[bytes, Id] | None
    #: The last ID of each stream when it was created: it does not wait for more up to its end.
    due: dict[bytes, Id]
    limit: int | None
    entries: int = 0
    told: int = 0
    is_exact: bool = True
    #: The streams that it reported as refused or replaced, and when.
    bad: dict[bytes, int] = field(default_factory=dict)
    #: Those that were replaced: they are read by a new reader.
    replaced: set[bytes] = field(default_factory=set)
    has_dropped: bool = False


class Play:
    """One schedule."""

    def __init__(
        self, servers: Servers, plan: Plan, name: str, open_reader: Open = Reader, say: Callable[[str], object] = str
    ) -> None:
        tag = f"{{{name}}}" if plan.has_one_slot else name
        self.world = World([f"{tag}:{number}".encode() for number in range(plan.streams)])
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._servers, self._plan, self._open_reader, self._say = servers, plan, open_reader, say
        self._packing = PACKINGS[plan.packing]
        self._changes = Changes(servers, self.world, self._packing, self._note)
        self._chain: Chain | Backward | None = None
        self._opened: Opened | None = None
        #: The positions that the program has stored, each with what it knew then.
        self._stored: list[tuple[str, Chain | Backward]] = []

    def run(self) -> None:
        """Play all steps, then read until everything is read. Raises `Violation`."""
        try:
            for step in self._plan.steps:
                of = self if step.action in PROGRAM else self._changes
                getattr(of, step.action)(random.Random(step.seed))
            self._drain(random.Random(len(self._plan.steps)))
            self._changes.look()
        finally:
            self._close()
            self._changes.clear()

    def _note(self, text: str) -> None:
        self.log.append(text)
        self._say(text)

    # What the program does.

    def open(self, rng: random.Random) -> None:
        if self._opened and self._chain and rng.random() < 0.5:
            self._store("Reader.position", self._opened.reader.position)
        self._close()
        if self._stored and rng.random() < 0.75:
            at = -1 if rng.random() < 0.6 else rng.randrange(len(self._stored))
            position, chain = self._stored[at]
            self._create(rng, position, chain)
        else:
            self._create(rng, None, None)

    def _create(
        self, rng: random.Random, position: str | None, chain: Chain | Backward | None, *, has_end: bool = True
    ) -> None:
        """Create a reader that begins with a position, or anywhere."""
        keys = self.world.keys if chain is None else [*chain.places]
        options = self._options(rng)
        start: Any = position
        begin: Callable[[], Chain | Backward]
        if chain is None:
            if self.world.forbidden:
                # Where else would "latest" be?
                self._changes.allow()
            start, begin = self._start(rng)
        else:
            begin = chain.store
        limits = self._ends(rng, options) if has_end or self._plan.is_reverse else None
        if isinstance(chain, Backward):
            limits = chain.ends
            options["end"] = chain.end
        if has_end and rng.random() < 0.1:
            options["limit"] = rng.randint(1, 12)
        if start is not None:
            options["start"] = start
        text = {key: value for key, value in options.items() if key not in ("schema", "metadata")}
        self._note(f"Reader({text})")
        opened, lives = self.world.clock, {key: self.world.now(key) for key in keys}
        due = {key: life.last if life else ZERO for key, life in lives.items()}
        if chain is None:
            self._stored = []
        chain = begin()
        if isinstance(chain, Backward) and limits:
            chain.end, chain.ends = options.get("end"), limits
        self._chain, self._opened = chain, None
        self.counts["readers"] += 1
        try:
            reader = self._open_reader(self._servers.endpoint(keys[0]), [*keys], **options)
        except HeadraceError as error:
            self._failed(error, raises=options["on_loss"] == "fail")
            return
        chain.resumed()
        self._opened = Opened(reader, opened, options["on_loss"] == "fail", limits, due, options.get("limit"))
        if rng.random() < 0.3:
            self._store("Reader.position when opened", reader.position)

    def _options(self, rng: random.Random) -> dict[str, Any]:
        options: dict[str, Any] = {
            "on_loss": rng.choice(["fail", "report"]),
            "linger": 0,
            "batch_rows": rng.choice([1, 2, 3, 5, 5, 100]),
            "block": rng.choice([0.001, 0.01, 1.0]),
            **self._packing.options(),
        }
        if self._packing.has_rows is False and "metadata" not in options:
            options["metadata"] = ["entry_id"]
        if rng.random() < 0.2:
            options["page_bytes"] = rng.choice([1, 300, 2000])
        if rng.random() < 0.1:
            options["batch_bytes"] = rng.choice([1, 300])
        if self._servers.is_cluster and rng.random() < 0.5:
            options["connections"] = rng.choice([1, 2])
        if self._plan.is_reverse:
            options["reverse"] = True
        return options

    def _ids(self, rng: random.Random) -> Id:
        """An ID: of an entry, beside one, before or after all of them."""
        life = self.world.now(self._changes.key(rng))
        ids = [entry.id for entry in life.entries] if life else []
        ids += [life.last if life else ZERO, (0, 1), (rng.randint(0, 200), 0)]
        at = rng.choice(ids)
        return rng.choice([at, at, after(at) or at, (min(TOP, at[0] + rng.choice([1, 50, 1000])), 0)])

    def _start(self, rng: random.Random) -> tuple[Any, Callable[[], Chain | Backward]]:
        """A start, and what begins a chain there, which is called when the reader begins."""
        kind = rng.choice(["earliest", "earliest", "latest", "ID", "ID", "ID", "milliseconds", "datetime"])
        at = self._ids(rng)
        start: Any = text_of(at)
        first = at
        if kind == "milliseconds" or (kind == "datetime" and at[0] > 10**9):
            start, first = str(at[0]), (at[0], TOP if self._plan.is_reverse else 0)
        elif kind == "datetime":
            part = rng.choice([0, 0, 0.5])
            start = _EPOCH + timedelta(milliseconds=at[0] + part)
            first = (at[0], TOP) if self._plan.is_reverse else (at[0] + (part > 0), 0)
        elif kind != "ID":
            start = kind
        if self._plan.is_reverse:
            return (None if kind == "earliest" else start), lambda: self._begin_backward(kind, first)
        return start, lambda: self._begin(kind, first)

    def _begin(self, kind: str, first: Id) -> Chain:
        chain = Chain(self.world)
        for key in self.world.keys:
            life = self.world.now(key)
            if kind == "earliest":
                chain.begin(key, ZERO, is_counted=True)
            elif kind == "latest":
                chain.begin(key, after(life.last if life else ZERO), is_counted=True)
            else:
                chain.begin(key, first, is_counted=False)
        return chain

    def _begin_backward(self, kind: str, top: Id) -> Backward:
        chain = Backward(self.world)
        for key in self.world.keys:
            chain.begin(key, LAST if kind in ("earliest", "latest") else top)
        return chain

    def _ends(self, rng: random.Random, options: dict[str, Any]) -> dict[bytes, Id] | None:
        """The end of a reader, which is put into its options."""
        kind = rng.choice(["none", "none", "none", "latest", "latest", "ID", "milliseconds", "datetime"])
        at = self._ids(rng)
        ends = dict.fromkeys(self.world.keys, at)
        if kind == "none" or (self._plan.is_reverse and kind == "latest"):
            return dict.fromkeys(self.world.keys, ZERO) if self._plan.is_reverse else None
        if kind == "latest":
            options["end"] = "latest"
            lives = {key: self.world.now(key) for key in self.world.keys}
            return {key: life.last if life else ZERO for key, life in lives.items()}
        if kind == "ID":
            options["end"] = text_of(at)
            return ends
        edge = 0 if self._plan.is_reverse else TOP
        part = rng.choice([0, 0.5]) if kind == "datetime" and at[0] < 10**9 else None
        options["end"] = str(at[0]) if part is None else _EPOCH + timedelta(milliseconds=at[0] + part)
        return dict.fromkeys(self.world.keys, (at[0] + (self._plan.is_reverse and bool(part)), edge))

    def read(self, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 1, 2, 4, 10])):
            if not self._read_once(rng, rng.choice([0, 0.001, 0.01])):
                break
        if self._opened and rng.random() < (0.3 if self._opened.bad else 0.03):
            self._drop(rng)

    def _read_once(self, rng: random.Random, timeout: float) -> bool:
        """Call `read`. Returns whether there was a result."""
        opened = self._opened
        if not opened:
            return False
        self.counts["reads"] += 1
        try:
            batch = opened.reader.read(timeout)
        except HeadraceError as error:
            return self._failed(error, raises=opened.raises)
        if batch:
            self._returned(rng, opened, batch)
            return True
        if opened.reader.is_finished:
            self._note("finished")
            if opened.limit is None or opened.entries < opened.limit:
                assert self._chain
                if opened.ends is None and not self._is_full():
                    raise Violation(UNEXPECTED, "a reader that follows is finished")
                rest = None if opened.raises else opened.reader.lost - opened.told
                is_all = not opened.bad and not opened.has_dropped
                ends = {key: end for key, end in (opened.ends or {}).items() if key in self._good}
                if not self._plan.is_reverse:
                    ends = {key: min(end, opened.due[key]) for key, end in ends.items()}
                self._chain.finished(ends, opened.at, rest, exact=is_all and opened.reader.is_lost_exact)
            self._opened = None
            self._store("Reader.position at the end", opened.reader.position)
            opened.reader.close()
        return False

    def _is_full(self) -> bool:
        """Whether the last possible ID was read of all streams that are read: nothing can follow."""
        return isinstance(self._chain, Chain) and all(self._chain.places[key].low == LAST for key in self._good)

    def _returned(self, rng: random.Random, opened: Opened, batch: ReadBatch) -> None:
        assert self._chain
        rows = self._packing.rows(batch)
        key, end = batch.stream, (opened.ends or {}).get(batch.stream)
        text = f"{batch.lost}{'' if batch.is_lost_exact else ' at most'} lost, " if batch.lost else ""
        self._note(f"batch {key.decode()} {text}{text_of(rows[0].id)}..{text_of(rows[-1].id)} {batch.position}")
        self.counts["batches"] += 1
        if key not in self._chain.places:
            raise Violation(DROPPED, key.decode())
        opened.bad.pop(key, None)
        opened.entries += len({row.id for row in rows})
        if batch.lost:
            self.counts["losses"] += 1
            if opened.raises:
                raise Violation(UNEXPECTED, 'ReadBatch.lost with on_loss="fail"')
            self._count(opened, batch.lost, exact=batch.is_lost_exact)
        kwargs = {"end": end} if end is not None else {}
        self._chain.returned(key, rows, batch.lost, exact=batch.is_lost_exact, **kwargs)
        self._check_total(opened)
        if opened.limit is not None and opened.entries > opened.limit:
            raise Violation(UNEXPECTED, f"{opened.entries} entries with limit={opened.limit}")
        if rng.random() < 0.5:
            self._store("ReadBatch.position", batch.position)
        if rng.random() < 0.3:
            self._store("Reader.position", opened.reader.position)

    @staticmethod
    def _count(opened: Opened, lost: int, *, exact: bool) -> None:
        opened.told += lost
        opened.is_exact &= exact

    @staticmethod
    def _check_total(opened: Opened) -> None:
        if opened.reader.lost < opened.told:
            raise Violation(TOTAL, f"{opened.reader.lost}, {opened.told} were reported")
        if opened.reader.is_lost_exact and not opened.is_exact:
            raise Violation(TOTAL, "it is called exact, and a bound was reported")

    def _failed(self, error: HeadraceError, *, raises: bool) -> bool:
        """Judge an error. Returns whether the reader may have more."""
        chain, opened = self._chain, self._opened
        assert chain
        where = "read" if opened else "Reader()"
        position: str = getattr(error, "position", "")
        self._note(f"{where}: {type(error).__name__}: {error} {position}")
        if isinstance(error, DataLossError):
            self.counts["losses"] += 1
            if not raises:
                raise Violation(UNEXPECTED, 'DataLossError with on_loss="report"')
            chain.told(error.stream, error.lost, exact=error.exact)
            if opened:
                opened.bad.pop(error.stream, None)
                self._count(opened, error.lost, exact=error.exact)
                self._check_total(opened)
            self._store("DataLossError.position", position)
            return True
        if isinstance(error, StreamReplacedError):
            self.counts["replacements"] += 1
            following = chain.store()
            following.replaced(error.stream)
            if position:
                self._store("StreamReplacedError.position", position, following)
            if opened:
                opened.replaced.add(error.stream)
            return self._goes_on(error.stream, f"{type(error).__name__}: {error}")
        since = opened.at if opened else self.world.clock
        refused = [key for key in chain.places if self.world.was_refused(key, since)]
        if isinstance(error, CommandError) and error.code in ("WRONGTYPE", "NOPERM") and refused:
            self.counts["refusals"] += 1
            if error.stream not in refused or error.stream.decode() not in str(error):
                raise Violation(NAMELESS, str(error))
            return self._goes_on(error.stream, str(error))
        raise Violation(UNEXPECTED, f"{type(error).__name__}: {error}")

    @property
    def _good(self) -> list[bytes]:
        """The streams that are read and not reported as refused or replaced."""
        bad = self._opened.bad if self._opened else {}
        return [key for key in self._chain.places if key not in bad] if self._chain else []

    def _goes_on(self, key: bytes, text: str) -> bool:
        """A stream was refused or replaced: once while others are read, until it changes again."""
        opened, chain = self._opened, self._chain
        assert chain
        others = [other for other in self._good if other != key]
        if not opened:
            replaced = chain.may_be_replaced()
            if any(other not in replaced and not self.world.is_refused(other) for other in others):
                raise Violation(AGAIN, f"{text}, as a reader is created")
            return False
        if others and opened.bad.get(key, -1) >= self.world.changed(key):
            raise Violation(AGAIN, text)
        opened.bad[key] = self.world.clock
        if not others:
            # It raises at each call.
            self._close()
        return bool(others)

    def _drop(self, rng: random.Random) -> None:
        """Read one of the streams no longer: one that was refused or replaced, or any."""
        opened, chain = self._opened, self._chain
        if not opened or not chain or len(chain.places) == 1:
            return
        key = rng.choice([*(opened.bad or chain.places)])
        self._note(f"drop_stream {key.decode()}")
        self.counts["dropped streams"] += 1
        opened.reader.drop_stream(key)
        opened.has_dropped = True
        opened.bad.pop(key, None)
        del chain.places[key]

    def _store(self, what: str, position: str, chain: Chain | Backward | None = None) -> None:
        """Store a position, and what the program knows that starts there: what it knows now."""
        assert self._chain
        self.counts[what] += 1
        self._note(f"  stored {what} {position}")
        self._stored.append((position, chain or self._chain.store()))

    def _close(self) -> None:
        if self._opened:
            self._opened.reader.close()
            self._opened = None

    # The end.

    def _drain(self, rng: random.Random) -> None:
        """Add an entry to each stream, and read until everything was returned."""
        for key in self.world.keys:
            self._changes.heal(key)
        if self.world.forbidden:
            self._changes.allow()
        if isinstance(self._chain, Backward) or self._plan.is_reverse:
            self._drain_backward(rng)
            return
        opened = self._opened
        if not opened or opened.ends or opened.limit or opened.replaced or self._is_replaced():
            if opened:
                self._store("Reader.position", opened.reader.position)
            self._reopen(rng)
        for key in self.world.keys:
            self._changes.add_some(rng, key, 1)
            # One that was asked for, or nothing would have to be returned.
            place, life = self._chain.places.get(key) if isinstance(self._chain, Chain) else None, self.world.now(key)
            if place and place.first and life and life.last < place.first <= (TOP - 100, 0):
                self._changes.add_some(rng, key, 1, place.first)
        deadline = time.monotonic() + WAIT
        restarts = 0
        while self._chain and (left := [key for key in self._chain.places if not self._is_done(key)]):
            if not (opened := self._opened):
                # A reader that cannot be created, and no position to go on from.
                if restarts > len(self.world.keys) or not self._stored:
                    return
                restarts += 1
                self._reopen(rng)
                continue
            if self._read_once(rng, 0.05 if self._is_replaced() else 1.0):
                deadline = time.monotonic() + WAIT
            elif opened.replaced.issuperset(left):
                # Positions from before the error lead to it again.
                if restarts > len(self.world.keys):
                    return
                restarts += 1
                self._reopen(rng)
            elif time.monotonic() > deadline:
                raise Violation(STUCK, f"{b' '.join(left).decode()}")
            elif self._is_replaced() and not any(map(self._must, left)) and all(map(self._may, left)):
                return
            elif any(map(self._must, left)) and time.monotonic() > deadline - WAIT / 2:
                raise Violation(UNNOTICED, f"{b' '.join(key for key in left if self._must(key)).decode()}")
        opened = self._opened
        if not opened or opened.bad or opened.has_dropped or self._is_replaced():
            return
        lives = [self.world.now(key) for key in self._chain.places] if self._chain else []
        # The loss before an entry with the last ID that is gone as well is in no batch: none can follow.
        if all(life and life.last < LAST for life in lives) and opened.reader.lost != opened.told:
            raise Violation(TOTAL, f"{opened.reader.lost}, {opened.told} were reported")

    def _reopen(self, rng: random.Random) -> None:
        self._close()
        position, chain = self._stored[-1] if self._stored else (None, None)
        self._create(rng, position, chain, has_end=False)

    def _is_done(self, key: bytes) -> bool:
        return isinstance(self._chain, Chain) and self._chain.is_done(key)

    def _is_replaced(self) -> bool:
        return bool(self._chain and self._chain.may_be_replaced())

    def _may(self, key: bytes) -> bool:
        return self._chain is not None and key in self._chain.may_be_replaced()

    def _must(self, key: bytes) -> bool:
        return isinstance(self._chain, Chain) and self._chain.must_be_replaced(key)

    def _drain_backward(self, rng: random.Random) -> None:
        if not self._opened:
            self._reopen(rng)
        deadline = time.monotonic() + WAIT
        while self._opened:
            if self._read_once(rng, 1.0):
                deadline = time.monotonic() + WAIT
            elif not self._good:
                return
            elif time.monotonic() > deadline:
                raise Violation(STUCK, "reverse")
