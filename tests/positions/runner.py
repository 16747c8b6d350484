"""Plays schedules in processes of their own: one that does not return is ended, and the others go on."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Literal, Self

from headrace import Reader
from support.servers import Program, program_named

from .chain import STUCK, UNEXPECTED, Violation
from .lies import LIES
from .plan import plan_of
from .play import WAIT, Play
from .servers import Servers

Topology = Literal["single", "cluster"]


@dataclass(frozen=True)
class Job:
    """A schedule, or some of its steps; with a lie that a reader tells."""

    seed: int
    number: int
    steps: tuple[int, ...] | None = None
    lie: str | None = None


@dataclass
class Result:
    """What was done, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    #: The kind of the violation. Empty: there was none.
    what: str = ""
    text: str = ""
    log: list[str] = field(default_factory=list)


def play(servers: Servers, job: Job, *, is_loud: bool = False) -> Result:
    """Play a schedule in this process."""
    plan = plan_of(f"{job.seed}/{job.number}")
    result = Result()
    if job.steps is not None:
        plan = plan.only(job.steps)
    open_reader = LIES[job.lie](job.number).open if job.lie else Reader
    player = Play(servers, plan, f"p{job.number}", open_reader, print if is_loud else str)
    try:
        player.run()
    except Violation as violation:
        result.what, result.text = violation.what, str(violation)
    except BaseException as error:
        error.add_note("\n".join([f"{job}", *player.log]))
        raise
    result.counts, result.log = player.counts, player.log
    return result


def run(
    program: Program, topology: Topology, jobs: Iterable[Job], processes: int = 1, *, is_loud: bool = False
) -> Iterator[tuple[Job, Result]]:
    """Play schedules, each process on servers of its own."""
    left = iter(jobs)
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = []
        for job, _ in zip(left, range(processes), strict=False):
            workers.append(stack.enter_context(Worker(program, topology, is_loud=is_loud)))
            workers[-1].begin(job)
        while busy := {worker.pipe: worker for worker in workers if worker.job}:
            wait(list(busy), timeout=1.0)
            for worker in busy.values():
                if result := worker.result():
                    job, worker.job = worker.job or job, None
                    if (following := next(left, None)) is not None:
                        worker.begin(following)
                    yield job, result


class Worker:
    """A process with servers, which plays one schedule after the other."""

    def __init__(self, program: Program, topology: Topology, *, is_loud: bool = False) -> None:
        self._arguments = (program.label, topology, is_loud)
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        # Not forked: a forked child of a process with threads may hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        assert self.pipe.recv() is None  # its servers have started

    def begin(self, job: Job) -> None:
        self.job, self._deadline = job, time.monotonic() + 3 * WAIT
        self.pipe.send(job)

    def result(self) -> Result | None:
        """The result of the job, once there is one."""
        if self.pipe.poll():
            try:
                found = self.pipe.recv()
            except EOFError:
                self.end()
                self._start()
                return Result(what=UNEXPECTED, text=f"{UNEXPECTED}: the process of the reader died")
            if isinstance(found, BaseException):
                raise found
            assert isinstance(found, Result)
            return found
        if time.monotonic() < self._deadline:
            return None
        self.end()
        self._start()
        return Result(what=STUCK, text=f"{STUCK}: a call does not return, and ignores its timeout")

    def play(self, job: Job) -> Result:
        """Play a schedule and wait for its result."""
        self.begin(job)
        while not (result := self.result()):
            self.pipe.poll(1.0)
        self.job = None
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        # By SIGKILL: a call that never returns ignores any other signal. The servers end with their process.
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(pipe: Connection, label: str, topology: Topology, is_loud: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("headrace").setLevel(logging.ERROR)
    with Servers(program_named(label), is_cluster=topology == "cluster") as servers:
        pipe.send(None)
        while True:
            try:
                job = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(play(servers, job, is_loud=is_loud))
            except Exception as error:
                pipe.send(RuntimeError("\n".join([repr(error), *getattr(error, "__notes__", [])])))
