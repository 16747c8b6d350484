"""Waiting for what other processes do: as long as they make progress, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds between two looks.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


class Progress:
    """What was missing at each look. It reads no clock: instants are arguments.

    Only what was never missing before is progress: two states that alternate are none.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._since = 0.0

    def still_for(self, missing: str, now: float) -> float:
        """Note what is missing now, and return how long ago the last progress was."""
        if missing not in self._seen:
            self._seen.add(missing)
            self._since = now
        return now - self._since


def wait_for(missing: Callable[[], str], patience: float) -> str:
    """Look until nothing is missing, or until there was no progress for `patience` seconds.

    Args:
        missing: Returns what is missing, `""` if nothing is. It may give orders that bring it about.
        patience: Seconds without progress.

    Returns:
        What was missing in the end.
    """
    progress = Progress()
    while text := missing():
        if (still := progress.still_for(text, time.monotonic())) > patience:
            break
        # Soon after a change the next one is near.
        time.sleep(min(max(still / 4, _SHORTEST_PAUSE), _LONGEST_PAUSE))
    return text
