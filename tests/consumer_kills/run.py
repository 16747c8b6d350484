"""One run: a group that reads its streams to their ends, while its processes are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from support.servers import Program

from .check import Entries, Verdict, check
from .slots import MID_WORK, Phase, Slot
from .targets import Target, Topology, start
from .worker import POISONED, Setting, create, work

#: `stable`: a process that is started again has the name of the one before it. `random`: each has its own.
Names = Literal["stable", "random"]
#: The processes of the group.
PLACES = 4
#: The streams of a cluster, each in a slot of its own.
STREAMS = 6
#: Workers are forked from a process that has imported what they need: they are at work at once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["consumer_kills.worker"])


@dataclass(frozen=True)
class Plan:
    """What a run is made of; the same seed draws the same entries, and about the same kills."""

    seed: int
    names: Names
    entries: int
    kills: int
    poison: int
    batch_rows: int = 100
    min_idle: float = 1.0
    #: The most seconds of work before a commit, and behind it.
    work: float = 0.02
    #: Seconds in which the run must end.
    timeout: float = 600.0
    topology: Topology = "single"
    #: How often a slot moves, or a replica takes over, in a cluster.
    disturbances: int = 0
    #: The most connections of a worker to each node of a cluster; None: one for each slot.
    connections: int | None = None
    #: Whether the workers have an `AsyncConsumer`.
    asynchronous: bool = False


@dataclass
class Outcome:
    """What became of a run."""

    verdict: Verdict
    #: Kills of living processes, by what they were doing.
    kills: Counter[Phase] = field(default_factory=Counter)
    #: Processes that a poison entry has ended.
    poisoned: int = 0
    #: Entries of batches that took longer than half of `min_idle`, and of those that lost their leases.
    late: int = 0
    lost_leases: int = 0
    #: What was changed in a cluster.
    disturbed: Counter[str] = field(default_factory=Counter)
    #: Seconds from the last end of a process, or the first delivery of the last entry, until nothing was pending.
    settled: float = 0.0
    seconds: float = 0.0

    @property
    def struck(self) -> int:
        """Kills in mid-work."""
        return sum(self.kills[phase] for phase in MID_WORK)

    def most_again(self, batch_rows: int) -> int:
        """The most commits beyond the first ones: a batch for each process that ended, and what others took over."""
        return (self.kills.total() + self.poisoned) * batch_rows + self.late


class WrongError(Exception):
    """A run did not end, or a worker failed."""


def run(plan: Plan, program: Program, folder: Path) -> Outcome:
    """Do a run in a new folder, which is kept.

    Raises:
        WrongError: It did not end in time, or a worker failed.
    """
    folder.mkdir()
    dice = random.Random(f"{plan.seed} entries")
    poison = frozenset(dice.sample(range(plan.entries), plan.poison))
    with start(plan.topology, program, STREAMS) as target:
        entries = Entries(plan.entries, poison, target.streams)
        setting = Setting(
            folder,
            target.endpoint,
            target.streams,
            plan.batch_rows,
            plan.min_idle,
            plan.work,
            plan.connections,
            plan.asynchronous,
        )
        create(setting.database)
        target.fill(entries)
        this = _Run(plan, setting, target)
        try:
            outcome = this.until_it_ends()
        finally:
            this.kill_all()
        outcome.verdict = check(entries, _rows(setting), _delivered(setting), list(target.dead()))
    return outcome


def _rows(setting: Setting) -> Iterator[tuple[str, str, int, int]]:
    with closing(sqlite3.connect(setting.database)) as database:
        yield from database.execute("SELECT stream, entry_id, number, commits FROM orders")


def _delivered(setting: Setting) -> Iterator[str]:
    for place in range(PLACES):
        # A process that was killed as it wrote has left a part of a line.
        yield from (line for line in (setting.folder / f"handed-{place}").read_text().split("\n") if "-" in line)


class _Run:
    """A run while it runs."""

    def __init__(self, plan: Plan, setting: Setting, target: Target) -> None:
        self._plan = plan
        self._setting = setting
        self._target = target
        self._dice = random.Random(f"{plan.seed} kills {plan.names}")
        #: How many entries are to be committed when a kill is due.
        self._due = sorted(self._dice.randrange(plan.entries) for _ in range(plan.kills))
        #: The same for the changes of a cluster, of which one thread makes one behind the other.
        self._changes = sorted(self._dice.randrange(plan.entries) for _ in range(plan.disturbances))
        self._thread = ThreadPoolExecutor(1)
        self._change: Future[str] | None = None
        self._began = time.monotonic()
        self._ended = self._began
        self._started = [0] * PLACES
        #: The batches that the workers of each place had before the present one.
        self._batches = [0] * PLACES
        self._outcome = Outcome(Verdict())
        self._slots = [Slot(setting.slots, place) for place in range(PLACES)]
        self._processes = [self._start(place) for place in range(PLACES)]

    def until_it_ends(self) -> Outcome:
        outcome = self._outcome
        all_delivered: float | None = None
        pending, left = self._plan.entries, self._plan.entries
        while True:
            self._reap()
            if outcome.struck < self._plan.kills and self._count("committed") >= self._due[outcome.struck]:
                self._kill()
            self._disturb()
            pending, left = self._target.state() or (pending, left)
            if left == 0 and all_delivered is None:
                all_delivered = time.monotonic()
            if all_delivered is not None and pending == 0 and outcome.disturbed.total() == len(self._changes):
                break
            if time.monotonic() - self._began > self._plan.timeout:
                raise WrongError(f"{pending} entries pending, {left} not delivered after {self._plan.timeout:g} s")
            time.sleep(0.001)
        now = time.monotonic()
        outcome.settled = now - max(self._ended, all_delivered)
        outcome.seconds = now - self._began
        self._stop()
        if (state := self._target.state()) != (0, 0):
            raise WrongError(f"pending, and not delivered: {state} again")
        outcome.late, outcome.lost_leases = self._count("late"), self._count("lost_leases")
        return outcome

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._thread.shutdown()

    def _start(self, place: int) -> Any:
        self._started[place] += 1
        number = self._started[place]
        seed = f"{self._plan.seed} {place} {number}"
        name = f"pod-{place}" if self._plan.names == "stable" else f"pod-{random.Random(seed).randbytes(4).hex()}"
        process = PROCESSES.Process(target=work, args=(self._setting, place, name, seed), daemon=True)
        process.start()
        return process

    def _reap(self) -> None:
        """Restart the processes that a poison entry ended."""
        for place, process in enumerate(self._processes):
            if process.exitcode is None:
                continue
            if process.exitcode != POISONED:
                log = (self._setting.folder / f"log-{place}").read_text()
                raise WrongError(f"a worker ended with {process.exitcode}:\n{log}")
            self._outcome.poisoned += 1
            self._replace(place)

    def _kill(self) -> None:
        """Kill a process in mid-work, a random moment after it was seen there.

        Its second batch or a later one, so the first one is acknowledged: an entry that is alone in its batch because
        it was delivered along with a poison entry must not die with three processes in a row, as a poison entry does.
        """
        at_work = [
            place
            for place, slot in enumerate(self._slots)
            if slot.phase in MID_WORK and slot.get("batches") >= self._batches[place] + 2
        ]
        if not at_work:
            return
        place = self._dice.choice(at_work)
        process, slot = self._processes[place], self._slots[place]
        time.sleep(self._dice.random() * self._plan.work)
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            return  # it ended by itself
        # What it was doing when it died.
        self._outcome.kills[slot.phase] += 1
        self._replace(place)

    def _replace(self, place: int) -> None:
        self._ended = time.monotonic()
        self._slots[place].phase = Phase.STARTING
        self._batches[place] = self._slots[place].get("batches")
        self._processes[place] = self._start(place)

    def _disturb(self) -> None:
        """Begin a change of the cluster where one is due, and note the one that has ended."""
        done = self._outcome.disturbed
        if self._change is not None and self._change.done():
            done[self._change.result()] += 1
            self._change = None
            self._ended = time.monotonic()
        count = done.total()
        if self._change is None and count < len(self._changes) and self._count("committed") >= self._changes[count]:
            self._change = self._thread.submit(self._target.disturb)

    def _count(self, name: str) -> int:
        return sum(slot.get(name) for slot in self._slots)

    def _stop(self) -> None:
        for process in self._processes:
            os.kill(process.pid, signal.SIGTERM)
        for place, process in enumerate(self._processes):
            process.join(30)
            if process.exitcode != 0:
                log = (self._setting.folder / f"log-{place}").read_text()
                raise WrongError(f"a worker did not end well: {process.exitcode}\n{log}")
