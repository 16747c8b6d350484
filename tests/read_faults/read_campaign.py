"""The campaign of reading: each server with each kind of client."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from faults.campaign import Campaign, program_of
from faults.testbed import FaultTestbed
from support.servers import find_programs

from .clients import CLIENTS
from .read_episode import ReadResult, run_episode
from .read_kinds import kinds_for


def pairs() -> list[tuple[str, str]]:
    """Each server program on this machine with each kind of client."""
    return [(program.label, client) for program in find_programs() for client in CLIENTS]


def is_ours(client: str) -> bool:
    return CLIENTS[client].ours


READING = Campaign("campaign-read", kinds_for, run_episode, ReadResult, is_ours)


def episode_apart(label: str, client: str, names: Sequence[str], seed: int) -> ReadResult:
    """Run one episode in a separate process: the helpers of its processes end with it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_episode, label, client, names, seed).result()


def _episode(label: str, client: str, names: Sequence[str], seed: int) -> ReadResult:
    with FaultTestbed(program_of(label)) as testbed:
        return run_episode(testbed, client, names, random.Random(seed))
