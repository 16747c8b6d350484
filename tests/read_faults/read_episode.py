"""One episode, from a seed: streams, a process that reads them, faults meanwhile, and the final check."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults.checker import Violation
from faults.fault_kinds import FaultKind
from faults.proxy import Direction, Pair
from faults.testbed import PASSWORD, USER, FaultTestbed
from support.processes import wait_until

from . import read_kinds as kinds
from .byte_faults import ByteFaults
from .checker import STUCK, Account, Promise, check
from .client_base import Config, GroupRules
from .clients import CLIENTS
from .group_changes import GroupChanges
from .group_checker import check_group
from .group_faults import GroupFaults
from .journal import Done, Failed, Handed, JournalView, Opened, Record, Replaced
from .ledger import Ledger, Lineage, parse_id
from .lost_tail import LostTail
from .process import ReadingProcess

#: Seconds within which a reader must have recovered from any fault.
PATIENCE = 30.0
#: It must have finished within this many times that period.
_LONGEST = 4
#: Seconds that another client gets to read what exists, or to notice that a stream was replaced.
_GLANCE = 0.5


@dataclass
class ReadResult:
    """The counts of an episode, and the violations found."""

    faults: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    read: int = 0
    #: Entries that were trimmed before they were read, according to the ledger and to the reports.
    lost: int = 0
    reported: int = 0
    replaced: int = 0
    #: Processes and connections that were opened, and errors that the client reported.
    opened: int = 0
    #: The steps at which processes were killed.
    steps: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    def __iadd__(self, other: ReadResult) -> ReadResult:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def run_episode(testbed: FaultTestbed, mode: str, names: Sequence[str], rng: random.Random) -> ReadResult:
    """Read under these faults, one after the other, and check the processed entries against the ledger."""
    return Episode(testbed, mode, rng).run(names)


class Episode:
    """The state of an episode, and what is known about it."""

    def __init__(self, testbed: FaultTestbed, client: str, rng: random.Random) -> None:
        self.testbed = testbed
        self.client = CLIENTS[client]
        self.rng = rng
        self.result = ReadResult()
        self.size = rng.choice([10, 200, 3_000])
        self.keys = rng.choice([["events"], ["events"], ["events", "orders", "payments"]])
        self.rules = GroupRules(rng.choice([0.4, 0.8]), rng.choice([None, 4]))
        #: Whether a restarted process gets another name.
        self.renames = self.client.ours and rng.random() < 0.3
        self.folder = Path(tempfile.mkdtemp())
        #: One for each consumer; a client without a group counts as one.
        self.journals = [JournalView(self.folder / f"journal-{at}") for at in range(self.client.processes)]
        self.processes: list[ReadingProcess] = []
        self.started = 0
        #: The process that the next fault of a process strikes.
        self.turn = 0
        self.struck: list[str] = []
        self.faults = 0
        #: Removals that count if one of their entries was never read.
        self.removals: list[tuple[str, Lineage, str, set[str]]] = []
        #: The last ID processed in each stream since it was replaced.
        self.last: dict[str, tuple[int, int]] = {}
        #: All entries that consumers of a group processed, in any order.
        self.done: set[tuple[str, str]] = set()

    def run(self, names: Sequence[str]) -> ReadResult:
        started = time.monotonic()
        self.testbed.empty()
        self.ledger = Ledger(self.testbed.control, self.keys, self.rng)
        self.group: GroupChanges | None = None
        if self.client.group:
            rng = random.Random(self.rng.getrandbits(64))
            self.group = GroupChanges(self.testbed, self.ledger, self.rules, rng)
        #: The first record of each process in its journal, which it continues.
        self.first_records = [0] * self.client.processes
        self.processes = [self.start(self.journals[at], self.next_name(at)) for at in range(self.client.processes)]
        try:
            self.add_entries(self.rng.randint(0, 50))
            for name in names:
                self.faults += 1
                self._fault(name)
            self._end()
        finally:
            self.testbed.proxy.disarm()
            self.testbed.proxy.rest()
            for process in self.processes:
                process.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.result.faults.update(self.struck)
        self.result.seconds = time.monotonic() - started
        return self.result

    # The reading process.

    @property
    def process(self) -> ReadingProcess:
        return self.processes[self.turn]

    @property
    def records(self) -> list[Record]:
        """The records of all consumers."""
        return [record for journal in self.journals for record in journal.records]

    def start(self, journal: JournalView, name: str) -> ReadingProcess:
        return ReadingProcess(
            Config(
                self.client.name, self.testbed.proxy.port, USER, PASSWORD, self.testbed.tls_ca_cert, tuple(self.keys),
                str(journal.path), self.rng.getrandbits(32), name, self.rules,
            )
        )  # fmt: skip

    def next_name(self, at: int) -> str:
        self.started += 1
        return f"consumer-{at}-{self.started}" if self.renames else f"consumer-{at}"

    def restart(self) -> None:
        self.process.close()
        self.update()
        self.first_records[self.turn] = len(self.journals[self.turn].records)
        self.processes[self.turn] = self.start(self.journals[self.turn], self.next_name(self.turn))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend all reading inside the block."""
        with ExitStack() as stack:
            for process in self.processes:
                stack.enter_context(process.suspended())
            yield

    def update(self) -> None:
        """Read the new records of the journals."""
        for record in [record for journal in self.journals for record in journal.update()]:
            if isinstance(record, Replaced):
                self.last.pop(record.key, None)
            elif isinstance(record, Done):
                for key, entry_id, _ in record.rows:
                    self.last[key] = parse_id(entry_id)
                    self.done.add((key, entry_id))

    def _has_read(self) -> bool:
        self.update()
        if self.group:
            if self.client.ours:
                return not self.group.left(self.done)
            return all((key, entry_id) in self.done for key in self.keys for entry_id in self.ledger.now(key).live)
        for key in self.keys:
            newest = self.ledger.now(key).newest
            if newest and self.last.get(key, (0, 0)) < parse_id(newest):
                return False
        return True

    def catch_up(self) -> bool:
        """Wait until everything was read; returns whether it was."""
        return self.wait_for(self._has_read, "entries that are there")

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> bool:
        # Losses of other clients are counted at the end.
        patience = seconds if self.client.ours else _GLANCE
        now = time.monotonic()
        deadline, end, steps = now + patience, now + _LONGEST * patience, 0
        while not condition():
            for at, process in enumerate(self.processes):
                if process.exit_code is not None:
                    self.turn = at
                    self.failure(f"the process ended with {process.exit_code}, and not all was read: {what}")
                    self.restart()
                    return False
            if steps != (steps := len(self.records)):
                deadline = min(time.monotonic() + patience, end)  # it makes progress
            if time.monotonic() > deadline:
                left = self.group.left(self.done) if self.group else ""
                self.failure(f"{patience} s without {what}: {left}")
                return False
            time.sleep(0.002)
        return True

    def failure(self, text: str) -> None:
        if self.client.ours:
            self.result.violations.append(Violation(STUCK, (text,)))

    # The faults.

    def add_entries(self, count: int) -> int:
        """Add entries to random streams; returns their approximate size in replies, in bytes."""
        total = 0
        while count:
            some = self.rng.randint(1, count)
            total += self.ledger.add(self.rng.choice(self.keys), some, self.size)
            count -= some
        return total

    def _fault(self, name: str) -> None:
        self.turn = self.rng.randrange(len(self.processes))
        if name in kinds.NETWORK:
            self.strike_at_byte(kinds.NETWORK[name])
        elif name == kinds.KILL_AT_STEP:
            self._kill_at_step()
        elif name == kinds.KILL_AT_BYTE:
            self._kill_at_byte()
        elif name in kinds.REMOVALS:
            self._remove(name)
        elif kinds.OF[name] == "group":
            GroupFaults(self).strike(name)
        elif kinds.OF[name] == "bytes":
            ByteFaults(self).strike(name)
        elif name in kinds.IN_MID_REPLY:
            self._trim_at_byte(name)
        elif name == kinds.RAISE_ID:
            key = self.rng.choice(self.keys)
            if not self.ledger.now(key).added:
                self.ledger.add(key, 1, self.size)  # XSETID needs an existing stream
            self.ledger.raise_id(key)
            self.add_entries(self.rng.choice([0, 1, 10]))
            self.struck.append(name)
        else:
            self._replace(name)
        if self.group:
            with self.suspended():
                self.update()
                self.group.look(self.done)
        if self.rng.random() < 0.7:
            self.catch_up()

    def strike_at_byte(self, kind: FaultKind) -> None:
        """Add entries with a fault at a random byte of the reader's next requests and replies."""
        count = self.rng.choice([1, 10, 100, 300])
        directions: list[Direction] = [kind.direction] if kind.direction else ["requests", "replies"]
        direction = self.rng.choice(directions)
        total = 400 if direction == "requests" else count * (60 + self.size // 2)
        with self.armed(kind, direction, self.rng.randint(0, total)) as struck:
            self.add_entries(count)
            # An idle reader keeps asking, so the byte will pass.
            deadline = time.monotonic() + 3.0
            while not struck and time.monotonic() < deadline:
                time.sleep(0.002)

    @contextmanager
    def armed(self, kind: FaultKind, direction: Direction, at: int) -> Iterator[list[str]]:
        """Arm a fault that waits for its byte inside the block. If the byte was not reached, it does not count."""
        seed = self.rng.getrandbits(64)
        struck: list[str] = []

        def act(pair: Pair) -> None:
            struck.append(kind.name)
            kind.strike(self.testbed, pair, random.Random(seed))

        self.testbed.proxy.at(direction, at, act)
        try:
            yield struck
        finally:
            self.testbed.proxy.disarm()
            self.testbed.proxy.rest()
            self.struck += struck

    @contextmanager
    def _maybe_cut(self) -> Iterator[None]:
        """Add another fault at the same time in half of the cases."""
        if self.rng.random() < 0.5:
            yield
            return
        name = self.rng.choice(["reset in replies", "end in replies", "reset in requests", "CLIENT KILL"])
        direction: Direction = self.rng.choice(["requests", "replies"])
        with self.armed(kinds.NETWORK[name], direction, self.rng.randint(0, 2_000)):
            yield

    def _kill_at_step(self) -> None:
        self.process.kill_in(self.rng.randint(1, 12))
        self.add_entries(self.rng.choice([1, 10, 100, 300]))
        self.killed(kinds.KILL_AT_STEP)

    def _kill_at_byte(self) -> None:
        process = self.process
        direction: Direction = self.rng.choice(["requests", "replies"])
        struck = threading.Event()

        def kill(pair: Pair) -> None:
            process.kill()
            struck.set()

        self.testbed.proxy.at(direction, self.rng.randint(0, 2_000), kill)
        self.add_entries(self.rng.choice([1, 10, 100, 300]))
        struck.wait(3.0)
        self.testbed.proxy.disarm()
        if struck.is_set():
            self.killed(kinds.KILL_AT_BYTE)

    def killed(self, name: str) -> None:
        """Wait until the process has died, and start another one."""
        process = self.process
        wait_until(lambda: process.exit_code is not None, PATIENCE)
        if process.exit_code == -9:
            self.struck.append(name)
            if name == kinds.KILL_AT_STEP:
                self.result.steps[process.step] += 1
        else:
            self.failure(f"the process ended with {process.exit_code}")
        if self.rng.random() < 0.3:
            self.add_entries(self.rng.choice([1, 10, 100]))
        self.restart()

    def _remove(self, name: str) -> None:
        """Remove entries that a suspended reader has not seen."""
        key = self.rng.choice(self.keys)
        life = self.ledger.now(key)
        if self.rng.random() < 0.3:
            self.catch_up()
        if self.group:
            self.group.watch_losses(self.done, self._reported())
        with self._maybe_cut():
            with self.suspended():
                self.ledger.add(key, self.rng.choice([5, 50, 300]), self.size)
                before = life.trimmed | life.deleted
                kept = self.rng.choice([0, 1, 3, 30])
                if name in (kinds.DELETE, kinds.DELETE_AND_TRIM):
                    live = life.live
                    ahead = live[len(live) // 2 :]
                    self.ledger.delete(key, self.rng.sample(ahead, self.rng.randint(1, min(10, len(ahead)))))
                if name in (kinds.TRIM_MAXLEN, kinds.TRIM_MINID, kinds.DELETE_AND_TRIM):
                    self.ledger.trim(key, kept, by_id=name == kinds.TRIM_MINID)
                elif name == kinds.ADD_MAXLEN:
                    self.ledger.add(key, self.rng.choice([1, 10]), self.size, maxlen=kept + 1)
                self._removed(name, life, key, (life.trimmed | life.deleted) - before)
            if self.rng.random() < 0.5:
                self.ledger.add(key, self.rng.choice([1, 10, 100]), self.size)
            self.catch_up()
        self._check_losses()

    def _check_losses(self) -> None:
        """Check that a group reports entries removed while pending, unless a connection or process was lost too."""
        if self.group and self.client.ours:
            group = self.group
            self.wait_for(lambda: group.has_reported(self.done, self._reported()), "a report of what was removed")

    def _reported(self) -> int:
        self.update()
        return sum(record.lost for record in self.records if isinstance(record, Done))

    def _trim_at_byte(self, name: str) -> None:
        """Remove entries while the reader has received part of a reply."""
        key = self.rng.choice(self.keys)
        stopped = threading.Event()
        if self.group:
            self.group.watch_losses(self.done, self._reported())

        def stop(pair: Pair) -> None:
            for process in self.processes:
                process.stop()
            stopped.set()

        with self.suspended():
            total = self.ledger.add(key, 300, self.size)
            if name == kinds.DELETE_AND_TRIM_AT_BYTE:
                self.ledger.delete(key, self.rng.sample(self.ledger.now(key).live[-300:-200], self.rng.randint(1, 10)))
            self.testbed.proxy.at("replies", self.rng.randint(0, total), stop)
        if not stopped.wait(3.0):
            self.testbed.proxy.disarm()
            if not stopped.is_set():
                return
        life = self.ledger.now(key)
        with self.suspended():
            before = set(life.trimmed)
            self.ledger.trim(key, self.rng.choice([0, 1, 30, 100]), by_id=self.rng.random() < 0.5)
            self._removed(name, life, key, life.trimmed - before)
        self.catch_up()
        self._check_losses()

    def _removed(self, name: str, life: Lineage, key: str, gone: set[str]) -> None:
        self.removals.append((name, life, key, gone))
        if self.group:
            self.group.removed(key, gone)

    def _replace(self, name: str) -> None:
        """Replace a stream. Nothing more is written until the reader has noticed."""
        key = self.rng.choice(self.keys)
        self.ledger.add(key, self.rng.choice([10, 100]), self.size)
        if not self.catch_up():
            return
        seen = self.count(Replaced)
        with self._maybe_cut():
            if name in (kinds.REPLACE_LOWER, kinds.REPLACE_HIGHER):
                lower = name == kinds.REPLACE_LOWER
                if not lower and not self._counts():
                    return  # Redis 6.2 cannot show that there are fewer entries
                # Fewer entries than were read, so that their number or the last ID shows the replacement.
                self.ledger.replace(key, self.rng.randint(1, 5), self.size, lower)
            else:
                self._roll_back(key, over=name == kinds.FAIL_OVER)
            self.struck.append(name)
            self.result.replaced += 1
            self.wait_for(lambda: self._noticed(seen), f"a report that the stream was replaced: {name}")

    def _noticed(self, seen: int) -> bool:
        self.update()
        return self.count(Replaced) > seen

    def count(self, kind: type[Record]) -> int:
        return sum(isinstance(record, kind) for record in self.records)

    def has_read(self) -> bool:
        """Whether the process has read since it started: only then what is pending under its name is its own."""
        records = self.journals[self.turn].records[self.first_records[self.turn] :]
        return any(isinstance(record, Handed) and record.ids for record in records)

    def _counts(self) -> bool:
        """Whether the server counts the entries that were added."""
        return not (self.testbed.program.is_redis and self.testbed.program.numbers < (7,))

    def _roll_back(self, key: str, over: bool) -> None:
        """Restart the server without its latest entries, which the reader has already read."""
        before = self.ledger.snapshot()
        after = LostTail(self.testbed, by_failover=over)
        self.ledger.add(key, self.rng.choice([1, 10, 50]), self.size)
        self.catch_up()
        after.lose()
        self.ledger.roll_back(key, before[key])

    # The end.

    def _end(self) -> None:
        self.catch_up()
        for process in self.processes:
            process.finish()
        deadline = time.monotonic() + PATIENCE
        for process in self.processes:
            while process.exit_code is None and time.monotonic() < deadline:
                time.sleep(0.002)
            if process.exit_code != 0:
                self.failure(f"the process did not end with what was there ({process.exit_code})")
            process.close()
        self.testbed.settle()
        self.update()
        self.ledger.verify()
        self._account()

    def _account(self) -> None:
        lives = self.ledger.lives
        if self.group:
            again = self.count(Opened) + self.count(Failed) + 2 * self.faults
            if self.client.ours:
                self.group.facts.removed = set()  # each removal was checked already
            facts = self.group.finish(None if kinds.NAMESAKE in self.struck else again)
            facts.namesakes = set(range(self.client.processes, len(self.journals)))
            account = check_group([*(journal.records for journal in self.journals), self.group.records], lives, facts)
        else:
            account = check(self.records, lives, Promise(counts=self._counts()))
        self.result.violations += account.violations
        self._count_results(account)

    def _count_results(self, account: Account) -> None:
        done = [record for record in self.records if isinstance(record, Done)]
        read = {(key, entry_id) for record in done for key, entry_id, _ in record.rows}
        for name, _, key, gone in self.removals:
            # If all of them had been read before, the reader was not affected.
            if any((key, entry_id) not in read for entry_id in gone):
                self.struck.append(name)
        self.result.entries = self.ledger.entries
        self.result.read = sum(len(record.rows) for record in done)
        self.result.lost, self.result.reported = account.lost, account.reported
        self.result.opened = self.count(Opened)
        self.result.errors = self.count(Failed)
