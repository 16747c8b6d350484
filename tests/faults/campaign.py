"""A campaign of episodes: each pair of server and mode gets an equal share of the faults, and each kind occurs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from laboratory import REPEAT
from support import modes
from support.patience import PATIENCE
from support.servers import Program, find_programs
from support.stacks import stacks_after

from .episode import ASYNC, REDIS_PY, THREADS, EpisodeResult, kinds_for, run_episode
from .testbed import FaultTestbed

#: Maximum faults per episode.
LONGEST = 6


@dataclass(frozen=True)
class Campaign:
    """The parts of a campaign: the faults for a mode, an episode with some of them, and the results."""

    #: The laboratory that repeats an episode.
    name: str
    kinds_for: Callable[[str], list[str]]
    run_episode: Callable[[FaultTestbed, str, Sequence[str], random.Random], Any]
    #: Creates an empty result. Results can be added, and have `faults` and `violations`.
    result: Callable[[], Any]
    #: Whether headrace is what is tested in this mode, and not a client to compare with.
    is_ours: Callable[[str], bool]


def _is_ours(mode: str) -> bool:
    return mode != REDIS_PY


#: The campaign that sends messages.
WRITING = Campaign("campaign", kinds_for, run_episode, EpisodeResult, _is_ours)


@dataclass(frozen=True)
class Share:
    """Some faults for one pair of server and mode: the part of a campaign that one process runs on one testbed."""

    seed: int
    server: str
    mode: str
    number: int
    faults: int
    campaign: Campaign = WRITING

    def episodes(self) -> Iterator[tuple[int, list[str], random.Random]]:
        """The number, fault names and random generator of each episode; deterministic."""
        rng = random.Random(f"{self.seed}/{self.server}/{self.mode}/{self.number}")
        names = self.campaign.kinds_for(self.mode)
        rng.shuffle(names)
        names = names[: self.faults]
        number = 0
        while names:
            count = rng.randint(1, LONGEST)
            yield number, names[:count], random.Random(rng.getrandbits(64))
            names, number = names[count:], number + 1

    def repeat(self, episode: int) -> str:
        """The command that repeats an episode."""
        where = f"{self.seed}/{self.server}/{self.mode}/{self.number}/{self.faults}/{episode}"
        return f"{REPEAT} {self.campaign.name} --episode {where}"


@dataclass
class ShareResult:
    """The result of a share."""

    share: Share
    #: An object made by the campaign's `result`.
    result: Any
    #: Each failure, with the command that repeats its episode.
    failures: list[tuple[str, str]]


def run_share(share: Share, only: int | None = None) -> ShareResult:
    """Run the episodes of a share, or one of them. If one takes long, stderr shows where it is."""
    campaign = share.campaign
    result, failures = campaign.result(), []
    program = program_of(share.server)
    # Every second share uses TLS, where the server supports it.
    with FaultTestbed(program, tls=share.number % 2 == 0 and program.can("tls")) as testbed:
        for number, names, rng in share.episodes():
            if only in (None, number):
                try:
                    with stacks_after(PATIENCE):
                        episode = campaign.run_episode(testbed, share.mode, names, rng)
                except BaseException as error:
                    error.add_note(f"repeat with: {share.repeat(number)}")
                    raise
                failures += [(str(violation), share.repeat(number)) for violation in episode.violations]
                result += episode
    return ShareResult(share, result, failures)


def pairs() -> list[tuple[str, str]]:
    """Each server program on this machine with each mode that it supports."""
    return [(pair.program.label, pair.mode) for pair in modes.pairs()]


def async_pairs() -> list[tuple[str, str]]:
    """The same pairs with an `AsyncDispatcher`."""
    return [(label, ASYNC + mode) for label, mode in pairs()]


def thread_pairs() -> list[tuple[str, str]]:
    """The same pairs with a `Dispatcher` that threads share."""
    return [(label, THREADS + mode) for label, mode in pairs()]


def redis_py_pairs() -> list[tuple[str, str]]:
    """Each server program with redis-py."""
    return [(program.label, REDIS_PY) for program in find_programs()]


def run(
    chosen: Sequence[tuple[str, str]],
    faults: int,
    seed: int,
    jobs: int,
    on_result: Callable[[ShareResult], object],
    campaign: Campaign = WRITING,
    seconds: float = math.inf,
) -> list[ShareResult]:
    """Run shares in `jobs` processes until each pair has had its share of the faults.

    After `seconds` no further share starts; each pair has then had about the same number of faults.
    """
    part = -(-faults // len(chosen))
    deadline = time.monotonic() + seconds
    missing = dict.fromkeys(chosen, part)
    numbers = dict.fromkeys(chosen, 0)
    done: list[ShareResult] = []

    def next_share() -> Share | None:
        # The pair that is furthest behind, so that all processes finish at about the same time.
        pair = max(missing, key=missing.__getitem__)
        if missing[pair] <= 0 or time.monotonic() > deadline:
            return None
        numbers[pair] += 1
        share = Share(seed, *pair, numbers[pair], min(missing[pair], len(campaign.kinds_for(pair[1]))), campaign)
        missing[pair] -= share.faults
        return share

    # Not forked: a forked child of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, context, _begin) as pool, _ended_by_interrupts():
        waiting: set[concurrent.futures.Future[ShareResult]] = set()
        while True:
            while len(waiting) < jobs and (share := next_share()):
                waiting.add(pool.submit(run_share, share))
            if not waiting:
                return done
            ready, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ready:
                played = future.result()
                # Replace faults whose byte was never reached.
                missing[played.share.server, played.share.mode] += played.share.faults - played.result.faults.total()
                done.append(played)
                on_result(played)


def _begin() -> None:
    """Begin a process of the pool. On Ctrl-C, which reaches it too in a terminal, its parent ends it, by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its servers are ended
    logging.getLogger("headrace").setLevel(logging.ERROR)  # each fault causes retries, with two warnings each


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """End the shares of a pool on Ctrl-C: the pool itself waits until they are done."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def program_of(label: str) -> Program:
    """The server program on this machine with this label."""
    return next(program for program in find_programs() if program.label == label)
