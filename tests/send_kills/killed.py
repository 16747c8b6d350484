"""An import that is killed at random moments, and resumed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from headrace.testing import LocalServer

from .rows import row, write_rows

HEADRACE = str(Path(sys.executable).parent / "headrace")


class Killed(NamedTuple):
    """What is in the stream at the end.

    Attributes:
        rows: Rows of the file.
        kills: How often the process was killed.
        wrong: Entries that are not the next row.
        entries: Entries in the stream.
        resumed_at: How many entries there were at each kill.
    """

    rows: int
    kills: int
    wrong: int
    entries: int
    resumed_at: list[int]

    @property
    def is_exact(self) -> bool:
        return self.entries == self.rows and not self.wrong


def run(server: LocalServer, client: Any, folder: Path, size: int, kills: int, seed: int) -> Killed:
    chance = random.Random(seed)
    path = folder / "rows.jsonl"
    rows = write_rows(path, size)
    command = [HEADRACE, "send", "s", str(path), "--exactly-once", "kills", "--progress", "never"]
    environment = {**os.environ, "HEADRACE_URL": server.url}
    resumed_at: list[int] = []
    for kill in range(kills):
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                # Somewhere in what is left, and as the process begins too.
                wanted = client.xlen("s") + chance.randrange(2 * (rows - client.xlen("s")) // (kills - kill + 1) + 1)
                while process.poll() is None and client.xlen("s") < wanted:
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.3)
            finally:  # also if this process is interrupted
                process.kill()
        resumed_at.append(client.xlen("s"))
    subprocess.run(command, env=environment, check=True)
    return Killed(rows, kills, wrong_entries(client), client.xlen("s"), resumed_at)


def wrong_entries(client: Any) -> int:
    """Entries that are not the row of their number."""
    number = wrong = 0
    last = b"-"
    while entries := client.xrange("s", min=last, count=20_000):
        for _, fields in entries:
            wrong += fields[b"payload"] != row(number)
            number += 1
        last = b"(" + entries[-1][0]
    return wrong
