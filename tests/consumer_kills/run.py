"""One run: a group that reads a stream to its end, while its processes are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import redis

from headrace.testing import LocalServer
from support.servers import Program

from .check import Entries, Fields, Verdict, check
from .slots import MID_WORK, Phase, Slot
from .worker import DEAD_LETTER_KEY, GROUP, POISONED, STREAM_KEY, Setting, create, work

#: `stable`: a process that is started again has the name of the one before it. `random`: each has its own.
Names = Literal["stable", "random"]
#: The processes of the group.
PLACES = 4
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
    entries = Entries(plan.entries, frozenset(dice.sample(range(plan.entries), plan.poison)))
    with (
        LocalServer(program.path, transport="tcp") as server,
        redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
    ):
        setting = Setting(folder, str(server.host), int(server.port or 0), plan.batch_rows, plan.min_idle, plan.work)
        create(setting.database)
        _fill(client, entries)
        this = _Run(plan, setting, client)
        try:
            outcome = this.until_it_ends()
        finally:
            this.kill_all()
        outcome.verdict = check(entries, _rows(setting), _delivered(setting), list(_dead(client)))
    return outcome


def _fill(client: redis.Redis, entries: Entries) -> None:
    for first in range(0, entries.count, 5_000):
        pipeline = cast("Any", client.pipeline(transaction=False))
        for number in range(first, min(first + 5_000, entries.count)):
            # redis-py takes a dict, which has no name twice.
            fields = [part for pair in entries.fields(number) for part in pair]
            pipeline.execute_command("XADD", STREAM_KEY, entries.entry_id(number), *fields)
        pipeline.execute()
    client.xgroup_create(STREAM_KEY, GROUP, id="0")


def _rows(setting: Setting) -> Iterator[tuple[str, str, int, int]]:
    with closing(sqlite3.connect(setting.database)) as database:
        yield from database.execute("SELECT stream, entry_id, number, commits FROM orders")


def _delivered(setting: Setting) -> Iterator[str]:
    for place in range(PLACES):
        # A process that was killed as it wrote has left a part of a line.
        yield from (line for line in (setting.folder / f"handed-{place}").read_text().split("\n") if "-" in line)


def _dead(client: redis.Redis) -> Iterator[Fields]:
    # As the server has them: redis-py makes a dict of the fields.
    reply = cast("Any", client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, DEAD_LETTER_KEY))
    for _, parts in reply:
        yield tuple(zip(parts[::2], parts[1::2], strict=True))


class _Run:
    """A run while it runs."""

    def __init__(self, plan: Plan, setting: Setting, client: redis.Redis) -> None:
        self._plan = plan
        self._setting = setting
        self._client = client
        self._dice = random.Random(f"{plan.seed} kills {plan.names}")
        #: How many entries are to be committed when a kill is due.
        self._due = sorted(self._dice.randrange(plan.entries) for _ in range(plan.kills))
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
        all_delivered = None
        while True:
            self._reap()
            if outcome.struck < self._plan.kills and self._count("committed") >= self._due[outcome.struck]:
                self._kill()
            pending, left = self._state()
            if left == 0 and all_delivered is None:
                all_delivered = time.monotonic()
            if all_delivered is not None and pending == 0:
                break
            if time.monotonic() - self._began > self._plan.timeout:
                raise WrongError(f"{pending} entries pending, {left} not delivered after {self._plan.timeout:g} s")
            time.sleep(0.001)
        now = time.monotonic()
        outcome.settled = now - max(self._ended, all_delivered)
        outcome.seconds = now - self._began
        self._stop()
        if pending := self._state()[0]:
            raise WrongError(f"{pending} entries are pending again")
        outcome.late, outcome.lost_leases = self._count("late"), self._count("lost_leases")
        return outcome

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

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

    def _state(self) -> tuple[int, int]:
        """The numbers of pending entries, and of those that the group has not delivered yet."""
        (group,) = cast("Any", self._client.xinfo_groups(STREAM_KEY))
        return group["pending"], group["lag"]

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
