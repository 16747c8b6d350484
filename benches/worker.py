"""A separate process for each turn, which imports only what its contender needs.

The driver starts it with a job on its standard input; the worker prepares, sends some rows to warm up, and reports that
it is ready. On "go" it runs, and reports its result and its resources. Messages are lines of JSON over two pipes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, cast

from benches.turns import Contender, Done, Figures, Prepare, Run, Target

WARM_UP = "warm-up"


class WorkerError(Exception):
    """A contender failed; the message is its traceback."""


class Worker:
    """The driver's end: `with Worker(contender, target) as worker:` makes it ready; `worker.go()` is what is timed.

    The warm-up rows go to the stream `warm-up`. `warm_up=False` omits them.
    """

    def __init__(self, contender: Contender, target: Target, *, warm_up: bool = True) -> None:
        # -u: output is not buffered.
        command = [sys.executable, "-u", "-m", "benches.worker"]
        # It inherits the driver's standard error, so that warnings of a client are visible.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._say(
                {"call": contender.call, "options": contender.options, "target": asdict(target), "warm_up": warm_up}
            )
            self._hear("ready")
        except BaseException:
            self.close()
            raise

    def go(self) -> Done:
        """Run it. Figures: `client_cpu` (seconds, user and system), `rss` and `peak_rss` (bytes), and its own."""
        self._say("go")
        answer = self._hear("done")
        return Done(answer["rows"], answer["figures"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _say(self, message: object) -> None:
        stdin = cast(TextIO, self._process.stdin)
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()

    def _hear(self, expected: str) -> dict[str, Any]:
        line = cast(TextIO, self._process.stdout).readline()
        if not line:
            raise WorkerError(f"the worker ended without an answer, with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if expected not in answer:
            raise WorkerError(f"in the worker:\n{answer['error']}")
        return answer


def main() -> None:
    # The output of a contender must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        job = json.loads(sys.stdin.readline())
        module, _, function = job["call"].partition(":")
        prepare: Prepare = getattr(importlib.import_module(module), function)
        target = Target(**job["target"])
        run = prepare(target, **job["options"])
        memory = PeakMemory()
        if job["warm_up"]:
            prepare(replace(target, stream_key=WARM_UP, rows=target.batch), **job["options"])()
            gc.collect()
        say(ready=True)
        if sys.stdin.readline():
            done = measured(run, memory)
            say(done=True, rows=done.rows, figures=done.figures)
    except Exception:
        say(error=traceback.format_exc())
    sys.stdin.readline()  # until the driver has the answer and ends this process


def measured(run: Run, memory: PeakMemory) -> Done:
    before = resource.getrusage(resource.RUSAGE_SELF)
    outcome = run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    done = outcome if isinstance(outcome, Done) else Done(outcome)
    # Including time in the kernel: sending and receiving are most of a lean client's work.
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures: Figures = {"client_cpu": cpu, **memory.figures(), **done.figures}
    return Done(done.rows, figures)


class PeakMemory:
    """The peak memory of this process since this object was made, and its memory then. Linux; elsewhere empty."""

    def __init__(self) -> None:
        self._before: float | None = None
        try:
            Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets VmHWM
        except OSError:
            return
        self._before = self._bytes("VmRSS")

    def figures(self) -> Figures:
        return {} if self._before is None else {"rss": self._before, "peak_rss": self._bytes("VmHWM")}

    @staticmethod
    def _bytes(name: str) -> float:
        found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found
        return float(found[1]) * 1024


if __name__ == "__main__":
    main()
