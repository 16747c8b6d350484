"""The modes of a dispatcher in fault tests: plain, and exactly once by script or by IDMP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace import Dispatcher, Endpoint, RetryPolicy
from support.servers import Program, find_programs

MODES = ("off", "script", "idmp")

#: Few retries, so that temporary errors are reported soon. One is needed: a restarted server has lost its scripts. The
#: deadline is shorter than the 100 s for which a server remembers IDMP messages by default.
TWO_TRIES = RetryPolicy(max_attempts=2, initial_backoff=0, max_backoff=0, deadline=60)
#: Almost immediate retries: these tests wait for events, not for a clock.
SOON = RetryPolicy(initial_backoff=0.005, max_backoff=0.02)


@dataclass(frozen=True)
class Pair:
    """A server program and a mode that it supports."""

    program: Program
    mode: str

    def __str__(self) -> str:
        return f"{self.program.label}-{self.mode}"


def can(program: Program, mode: str) -> bool:
    """Whether a server program supports a mode."""
    return mode != "idmp" or program.can("idmp")


def pairs() -> list[Pair]:
    """Each server program on this machine with each mode that it supports: nine pairs in CI."""
    return [Pair(program, mode) for program in find_programs() for mode in MODES if can(program, mode)]


def dispatcher(endpoint: Endpoint, mode: str, **options: Any) -> Dispatcher:
    """Make a dispatcher for this mode; exactly once with two attempts, unless `retry` says otherwise."""
    if mode == "off":
        return Dispatcher(endpoint, **options)
    return Dispatcher(endpoint, **{"exactly_once": mode, "retry": TWO_TRIES, **options})
