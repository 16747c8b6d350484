"""Many episodes: every pair of server and mode gets its share of the faults, every kind its turn."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from support import modes
from support.servers import Program, find_programs

from .episode import REDIS_PY, Result, kinds_for, play
from .lab import Lab

#: Faults of one episode at most.
LONGEST = 6


@dataclass(frozen=True)
class Share:
    """So many faults for a pair of server and mode: the part of a campaign that one process plays in one laboratory."""

    seed: int
    server: str
    mode: str
    number: int
    faults: int

    def episodes(self) -> Iterator[tuple[int, list[str], random.Random]]:
        """The number, the faults and the chance of each episode: the same ones each time."""
        rng = random.Random(f"{self.seed}/{self.server}/{self.mode}/{self.number}")
        names = kinds_for(self.mode)
        rng.shuffle(names)
        names = names[: self.faults]
        number = 0
        while names:
            count = rng.randint(1, LONGEST)
            yield number, names[:count], random.Random(rng.getrandbits(64))
            names, number = names[count:], number + 1

    def again(self, episode: int) -> str:
        """The argument of `python -m faults again` that plays an episode once more."""
        return f"{self.seed}/{self.server}/{self.mode}/{self.number}/{self.faults}/{episode}"


@dataclass
class Played:
    """What became of a share."""

    share: Share
    result: Result
    #: Each with what plays it again.
    failures: list[tuple[str, str]]


def play_share(share: Share, only: int | None = None) -> Played:
    """Play the episodes of a share, or one of them."""
    result, failures = Result(), []
    program = program_of(share.server)
    # Every second one over TLS, where the server has it.
    with Lab(program, tls=share.number % 2 == 0 and program.can("tls")) as lab:
        for number, names, rng in share.episodes():
            if only in (None, number):
                try:
                    played = play(lab, share.mode, names, rng)
                except BaseException as error:
                    error.add_note(f"once more: python -m faults again {share.again(number)}")
                    raise
                failures += [(str(violation), share.again(number)) for violation in played.violations]
                result += played
    return Played(share, result, failures)


def pairs() -> list[tuple[str, str]]:
    """Every server program of this machine with every mode that it can be used in."""
    return [(pair.program.label, pair.mode) for pair in modes.pairs()]


def redis_py_pairs() -> list[tuple[str, str]]:
    """Every server with redis-py instead."""
    return [(program.label, REDIS_PY) for program in find_programs()]


def run(
    chosen: Sequence[tuple[str, str]], faults: int, seed: int, jobs: int, tell: Callable[[Played], object]
) -> list[Played]:
    """Play shares until every pair has had its part of the faults, in so many processes."""
    part = -(-faults // len(chosen))
    missing = dict.fromkeys(chosen, part)
    numbers = dict.fromkeys(chosen, 0)
    done: list[Played] = []

    def next_share() -> Share | None:
        # The pair that lacks most: no process has to wait for the others at the end.
        pair = max(missing, key=missing.__getitem__)
        if missing[pair] <= 0:
            return None
        numbers[pair] += 1
        share = Share(seed, *pair, numbers[pair], min(missing[pair], len(kinds_for(pair[1]))))
        missing[pair] -= share.faults
        return share

    # Not forked: a child of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting: set[concurrent.futures.Future[Played]] = set()
        while True:
            while len(waiting) < jobs and (share := next_share()):
                waiting.add(pool.submit(play_share, share))
            if not waiting:
                return done
            ready, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ready:
                played = future.result()
                # Some faults did not meet their byte: they are made up for.
                missing[played.share.server, played.share.mode] += played.share.faults - played.result.faults.total()
                done.append(played)
                tell(played)


def program_of(label: str) -> Program:
    """The server program of this machine that is called so."""
    return next(program for program in find_programs() if program.label == label)
