"""Limits on time that hold on a busy machine: each is a hundred times what a quiet one takes, or more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

#: The seconds after which what has not happened never will. The limit of pytest is longer: the test says what it was.
PATIENCE = 300.0

#: The seconds of a timeout that is not to end anything: the most that options take, and longer than a test may take.
NEVER = 3600.0

#: The seconds by which a call may exceed its timeout, or Ctrl-C. The laboratory `bounds` measures these on a quiet
#: machine, where they are less than 0.1. Here the call must end before it would for another reason: its other timeouts
#: are `NEVER`.
LATE = 30.0


@contextlib.contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """Check that a timeout of this many seconds ends the block: it takes as long, and waits for nothing else."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert seconds <= took < seconds + LATE, f"it ended after {took:.3f} s, its timeout is {seconds:g} s"
