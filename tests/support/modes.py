"""The ways in which a dispatcher sends, as tests of faults run them: plain, and exactly once by script or by names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace import Dispatcher, Endpoint, RetryPolicy
from support.servers import Program, find_programs

MODES = ("off", "script", "idmp")

#: What may pass is told like the rest, and soon. A second try, for a server that was restarted has lost its scripts.
TWO_TRIES = RetryPolicy(max_attempts=2, initial_backoff=0, max_backoff=0, deadline=30)
#: Tries again at once: these tests wait for what happens, not for a clock.
SOON = RetryPolicy(initial_backoff=0.005, max_backoff=0.02)


@dataclass(frozen=True)
class Pair:
    """A server and a mode that it can."""

    program: Program
    mode: str

    def __str__(self) -> str:
        return f"{self.program.label}-{self.mode}"


def pairs_with(*capabilities: str) -> list[Pair]:
    """Those of `pairs` whose servers have one of these."""
    return [pair for pair in pairs() if any(pair.program.can(capability) for capability in capabilities)]


def can(program: Program, mode: str) -> bool:
    """Whether a server can do a mode."""
    return mode != "idmp" or program.can("idmp")


def pairs() -> list[Pair]:
    """Every server of this machine in every mode that it can: nine, with the servers that CI must have."""
    return [Pair(program, mode) for program in find_programs() for mode in MODES if can(program, mode)]


def dispatcher(endpoint: Endpoint, mode: str, **options: Any) -> Dispatcher:
    """Make one that sends in this mode; exactly once with two tries, unless `retry` says otherwise."""
    if mode == "off":
        return Dispatcher(endpoint, **options)
    return Dispatcher(endpoint, **{"exactly_once": mode, "retry": TWO_TRIES, **options})
