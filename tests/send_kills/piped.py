"""Rows of a pipe, of which the stream keeps the last ones: memory must stay flat."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from headrace.testing import LocalServer

from .killed import HEADRACE
from .rows import chunks

MAXLEN = 1_000_000


class Piped(NamedTuple):
    """What became of the rows.

    Attributes:
        rows: Rows of the pipe.
        added: Entries that were ever added to the stream.
        seconds: How long it took.
        resident: Resident bytes of the process, after each tenth of the input.
        code: Its exit code.
    """

    rows: int
    added: int
    seconds: float
    resident: list[int]
    code: int

    @property
    def is_exact(self) -> bool:
        return self.rows == self.added and not self.code


def run(server: LocalServer, client: Any, size: int) -> Piped:
    environment = {**os.environ, "HEADRACE_URL": server.url}
    command = [HEADRACE, "send", "s", "--format", "jsonl", "--maxlen", str(MAXLEN), "--trim-every", "100"]
    resident: list[int] = []
    began, rows, written = time.monotonic(), 0, 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process, ExitStack() as stack:
        stack.callback(process.kill)  # if this process is interrupted
        assert process.stdin is not None
        for rows, chunk in chunks(size):  # noqa: B007, the last one counts
            process.stdin.write(chunk)
            written += len(chunk)
            if written * 10 >= size * (len(resident) + 1):
                resident.append(_resident(process.pid))
        process.stdin.close()
        code = process.wait()
    added = client.xinfo_stream("s")["entries-added"]
    return Piped(rows, added, time.monotonic() - began, resident, code)


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
