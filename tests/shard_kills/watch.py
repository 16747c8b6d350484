"""Looks at the leases all the time, in a thread."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from .check import Lease, LeaseChecker, Verdict, shares
from .servers import Cluster, OneServer, leases

#: Seconds between two looks.
EVERY = 0.02


class Watch:
    """The leases as the servers have them. The checker judges each change."""

    def __init__(self, servers: OneServer | Cluster, streams: Sequence[str], verdict: Verdict) -> None:
        self._servers = servers
        self._streams = streams
        self.checker = LeaseChecker(verdict)
        self._now: dict[str, tuple[Lease, int]] = {}
        self._looks = threading.Condition()
        self._stops = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def owned_by(self, name: str) -> dict[str, int]:
        """The shards of a member, and their epochs."""
        return {shard: lease.epoch for shard, (lease, _) in self._now.items() if lease.owner == name}

    def leases(self) -> dict[str, Lease]:
        return {shard: lease for shard, (lease, _) in self._now.items()}

    def is_served(self, alive: Collection[str], before: Mapping[str, int]) -> bool:
        """Whether each shard has an owner that is alive, and took it behind the epochs of `before`."""
        now = self._now

        def has_owner(shard: str) -> bool:
            if shard not in now:
                return False
            lease, clock = now[shard]
            return lease.owner in alive and lease.until > clock and lease.epoch > before.get(shard, -1)

        return not alive or all(map(has_owner, self._streams))

    def is_settled(self, alive: Collection[str]) -> bool:
        """Whether those that are alive have equal shares."""
        if not alive:
            return True
        if not self.is_served(alive, {}):
            return False
        counts = Counter(lease.owner for lease, _ in self._now.values())
        return Counter(counts[name] for name in alive) == shares(len(self._streams), len(alive))

    def wait(self, condition: Callable[[], bool], patience: float) -> float | None:
        """Wait until a condition holds, as seen by a look that began now or later. The seconds; None: it did not."""
        began = time.monotonic()
        with self._looks:
            self._looks.wait(patience)  # of a look under way
            while self._looks.wait(patience):
                if condition():
                    return time.monotonic() - began
                if time.monotonic() - began > patience:
                    return None
        raise RuntimeError(f"the watch has stopped: {self._failure}")

    def stop(self) -> None:
        self._stops = True
        self._thread.join()
        if self._failure:
            raise RuntimeError(self._failure)

    def _run(self) -> None:
        try:
            while not self._stops:
                found = leases(self._servers, self._streams)
                for shard, (lease, _) in found.items():
                    self.checker.see(shard, lease)
                self._now = found
                with self._looks:
                    self._looks.notify_all()
                time.sleep(EVERY)
        except BaseException:
            self._failure = traceback.format_exc()
