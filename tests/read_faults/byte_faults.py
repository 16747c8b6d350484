"""The faults of a group's connections at chosen bytes: cuts within requests and replies, and late requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import read_kinds as kinds

if TYPE_CHECKING:
    from faults.proxy import Pair

    from .read_episode import Episode

#: Seconds within which the bytes must have passed, and a client must have left a silent connection.
_BYTE = 3.0
#: The commands that the server counts as executed for each kind.
_COMMANDS = {kinds.LATE_READ: ("xreadgroup",), kinds.LATE_ACK: ("eval", "evalsha", "xack")}


class ByteFaults:
    """Strikes at bytes that are visible only on an unencrypted connection: with TLS nothing is struck."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._rng = episode.rng
        self._proxy = episode.testbed.proxy
        self._pairs: list[Pair] = []

    def strike(self, name: str) -> None:
        """Cause a fault of this kind. It counts if it struck."""
        if self._episode.testbed.tls_ca_cert is not None:
            return
        try:
            struck = self._come_late(name) if name in kinds.LATE else self._cut(name)
        finally:
            self._proxy.disarm()
        if struck:
            self._episode.struck.append(name)

    def _cut(self, name: str) -> bool:
        by_reset = self._rng.random() < 0.5

        def end(pair: Pair) -> None:
            self._pairs.append(pair)
            (pair.reset if by_reset else pair.finish)()

        if name == kinds.ACK_REPLY:
            count = self._rng.randint(0, 4)
            # When an acknowledgement is sent, no other command is waiting for a reply.
            self._proxy.within("requests", kinds.ACK, 0.0, lambda pair: self._proxy.at("replies", count, end, pair))
        else:
            direction, pattern = kinds.CUTS[name]
            self._proxy.within(direction, pattern, self._rng.random(), end)
        return self._happens()

    def _happens(self) -> bool:
        """Give the client something to do, and wait until the fault has struck a connection."""
        self._episode.add_entries(self._rng.choice([10, 100, 300]))
        deadline = time.monotonic() + _BYTE
        while not self._pairs and time.monotonic() < deadline:
            time.sleep(0.002)
        return bool(self._pairs)

    def _come_late(self, name: str) -> bool:
        """Deliver a request to the server only after its client has left the connection and opened another one."""
        testbed = self._episode.testbed
        # A client with the right to end its old connection does so.
        testbed.allow("-client")

        def hold(pair: Pair) -> None:
            pair.hold("requests", float("inf"))
            self._pairs.append(pair)

        try:
            self._proxy.within("requests", kinds.READ if name == kinds.LATE_READ else kinds.ACK, 0.0, hold)
            return self._happens() and self._run_late(name, self._pairs[0])
        finally:
            for pair in self._pairs:
                self._proxy.after(0.0, lambda pair=pair: pair.resume("requests"))  # type: ignore[misc]
            testbed.allow_all()

    def _run_late(self, name: str, pair: Pair) -> bool:
        deadline = time.monotonic() + _BYTE
        while not pair.flows["requests"].ended:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        # Long enough, or not, for a new connection to look for entries that the old one got.
        time.sleep(self._rng.choice([0.0, 0.1, 1.2 * self._episode.rules.min_idle]))
        with self._episode.suspended():
            # More than a waiting client takes, so the late request finds some.
            self._episode.add_entries(self._rng.choice([1, 300]))
            before = self._executed(name)
            self._proxy.after(0.0, lambda: pair.resume("requests"))
            while not pair.over and time.monotonic() < deadline:
                time.sleep(0.002)
            return self._executed(name) > before

    def _executed(self, name: str) -> int:
        stats: Any = self._episode.testbed.control.info("commandstats")
        return sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in _COMMANDS[name])
