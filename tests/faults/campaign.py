"""A campaign of episodes: each pair of server and mode gets an equal share of the faults, and each kind occurs."""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from support import modes
from support.servers import Program, find_programs

from .episode import ASYNC, REDIS_PY, EpisodeResult, kinds_for, run_episode
from .testbed import FaultTestbed

#: Maximum faults per episode.
LONGEST = 6


@dataclass(frozen=True)
class Campaign:
    """The parts of a campaign: the faults for a mode, an episode with some of them, and the results."""

    #: The module whose command `replay` repeats an episode.
    module: str
    kinds_for: Callable[[str], list[str]]
    run_episode: Callable[[FaultTestbed, str, Sequence[str], random.Random], Any]
    #: Creates an empty result. Results can be added, and have `faults` and `violations`.
    result: Callable[[], Any]


#: The campaign that sends messages.
WRITING = Campaign("faults", kinds_for, run_episode, EpisodeResult)


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

    def replay_id(self, episode: int) -> str:
        """The argument of the command `replay` that repeats an episode."""
        return f"{self.seed}/{self.server}/{self.mode}/{self.number}/{self.faults}/{episode}"


@dataclass
class ShareResult:
    """The result of a share."""

    share: Share
    #: An object made by the campaign's `result`.
    result: Any
    #: Each failure, with the ID that replays it.
    failures: list[tuple[str, str]]


def run_share(share: Share, only: int | None = None) -> ShareResult:
    """Run the episodes of a share, or one of them."""
    campaign = share.campaign
    result, failures = campaign.result(), []
    program = program_of(share.server)
    # Every second share uses TLS, where the server supports it.
    with FaultTestbed(program, tls=share.number % 2 == 0 and program.can("tls")) as testbed:
        for number, names, rng in share.episodes():
            if only in (None, number):
                try:
                    episode = campaign.run_episode(testbed, share.mode, names, rng)
                except BaseException as error:
                    error.add_note(f"repeat with: python -m {campaign.module} replay {share.replay_id(number)}")
                    raise
                failures += [(str(violation), share.replay_id(number)) for violation in episode.violations]
                result += episode
    return ShareResult(share, result, failures)


def pairs() -> list[tuple[str, str]]:
    """Each server program on this machine with each mode that it supports."""
    return [(pair.program.label, pair.mode) for pair in modes.pairs()]


def async_pairs() -> list[tuple[str, str]]:
    """The same pairs with an `AsyncDispatcher`."""
    return [(label, ASYNC + mode) for label, mode in pairs()]


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
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
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


def program_of(label: str) -> Program:
    """The server program on this machine with this label."""
    return next(program for program in find_programs() if program.label == label)
