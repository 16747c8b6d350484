"""Executions in a process that may die, with a server."""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.testing import LocalServer
from support.servers import find_programs

from .execution import draw
from .session import Finding

#: Seconds without a line, after which an execution hangs.
PATIENCE = 60.0


@dataclass
class Results:
    """What all executions brought."""

    executions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def run(
    seed: int,
    first: int,
    executions: int,
    keep_going: bool = False,
    tell: Callable[[Results], object] = lambda _: None,
) -> Results:
    """Do these executions, up to the first finding, or all of them."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="hr-arrow-") as folder, LocalServer(max(find_programs()).path) as server:
        place = Path(folder) / "place"
        while results.executions < executions:
            place.write_bytes(struct.pack("<q", first + results.executions))
            done = results.executions
            words = ["--unix-socket", server.unix_socket, "--place", str(place), "--seed", str(seed)]
            words += ["--first", str(first + done), "--executions", str(executions - done)]
            code = _follow([sys.executable, "-m", "arrow_fuzz.worker", *words], results, done, keep_going, tell)
            if code == 0:
                break
            if code is None:  # stopped at a finding
                return results
            number = struct.unpack("<q", place.read_bytes())[0]
            what = f"the process ends with {code}" if code > 0 else f"the process ends by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                what += f", as it said nothing for {PATIENCE:.0f} s, or by another's hand"
            results.findings.append(Finding(number, what, str(draw(seed, number)), "or one since the last flush"))
            results.executions = number + 1 - first
            if not keep_going:
                break
    return results


def _follow(
    command: list[str], results: Results, done: int, keep_going: bool, tell: Callable[[Results], object]
) -> int | None:
    """Read a worker's output; returns its exit code, or None if it was stopped at a finding."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        alarm = _Alarm(worker)
        try:
            for line in worker.stdout:
                alarm.put_off()
                said: dict[str, Any] = json.loads(line)
                results.executions = done + said.get("progress", results.executions - done)
                results.counts.update(said.get("counts", {}))
                if "finding" in said:
                    results.findings.append(Finding(**said["finding"]))
                    if not keep_going:
                        return None
                tell(results)
            return worker.wait()
        finally:
            alarm.stop()
            with contextlib.suppress(ProcessLookupError):
                worker.kill()


class _Alarm:
    """Kills a process without output for too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._start()

    def put_off(self) -> None:
        self._timer.cancel()
        self._start()

    def _start(self) -> None:
        self._timer = threading.Timer(PATIENCE, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()
