"""One run: an example is repeatedly started and killed, then left to finish, and the stored entries are compared."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import redis

from headrace.testing import LocalServer

from .handoffs import SOURCE, Handoff, payloads

#: The number of entries that a process finds when it starts: more than it copies before it is killed.
BACKLOG = 20_000
#: Rows of a batch, chosen for each process: small batches make many steps, large ones need several script calls.
ROWS = (20, 1_000)
#: A field that makes large batches need several sends.
FILLER = "x" * 300
#: Maximum number of seconds from the first line that a process prints, when it starts to read, to the kill.
DELAY = 0.1
#: Seconds that a process may take if it is not killed.
TIMEOUT = 100


class UnexpectedEndError(Exception):
    """A process ended by itself; the message is what it printed."""


@dataclass(frozen=True)
class Outcome:
    """The result: `lost` and `doubled` entries, and how many kills hit each of the `moments`."""

    entries: int
    lost: int
    doubled: int
    is_ordered: bool
    moments: Counter[str]

    @property
    def kills(self) -> int:
        return self.moments.total()

    @property
    def is_exact(self) -> bool:
        return not self.lost and not self.doubled and self.is_ordered

    def __str__(self) -> str:
        moments = ", ".join(f"{number} {moment}" for moment, number in self.moments.most_common())
        order = "in order" if self.is_ordered else "NOT in order"
        return (
            f"{self.kills} kills, {self.entries:,} entries: {self.lost:,} lost, {self.doubled:,} doubled, {order}; "
            f"{moments}"
        )


def run(kind: type[Handoff], server: LocalServer, client: redis.Redis, kills: int, seed: int, folder: Path) -> Outcome:
    """Kill the example `kills` times while it copies. A kill counts if the process lived and had entries to copy."""
    random = Random(seed)
    handoff = kind(server, client, folder)
    moments: Counter[str] = Counter()
    added = 0
    while moments.total() < kills:
        # This does not disturb the example's own transactions, because it is not running now.
        added = add(client, added, handoff.count() + BACKLOG)
        options = ["--follow", "--rows", str(random.choice(ROWS))]
        killed([*handoff.command, *options], random.uniform(0, DELAY))
        moment = handoff.moment()
        if handoff.count() < added:
            moments[moment] += 1
    finish(handoff.command)
    truth, stored = payloads(client, SOURCE), handoff.stored()
    assert truth == [str(number) for number in range(added)]
    missing, surplus = Counter(truth) - Counter(stored), Counter(stored) - Counter(truth)
    return Outcome(added, missing.total(), surplus.total(), stored == sorted(stored, key=int), moments)


def add(client: redis.Redis, first: int, end: int) -> int:
    """Add entries up to a number, and return how many exist then."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, end):
        pipeline.xadd(SOURCE, {"payload": str(number), "filler": FILLER})
    pipeline.execute()
    return max(first, end)


def killed(command: list[str], delay: float) -> None:
    """Start the command, and kill it `delay` seconds after it has started to read."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            began = process.stdout.readline()
            time.sleep(delay)
        finally:  # also if this process is interrupted
            process.kill()
        printed, errors = process.communicate()
        if process.returncode != -9:
            raise UnexpectedEndError(f"{began}{printed}{errors}")


def finish(command: list[str]) -> None:
    """Let the command copy the remaining entries."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise UnexpectedEndError(done.stdout + done.stderr)
