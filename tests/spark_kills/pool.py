"""Driver processes: started in advance, killed with their children, and never left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.paths import TESTS

from .driver import Query


class Driver:
    """One driver: a Python process, its JVM, and the Python workers, in a separate session (setsid).

    Spark's Python daemons create their own process groups but stay in the session, by which they are found even when
    the driver is gone.
    """

    def __init__(self, folder: Path, number: int, cores: int) -> None:
        self.log = folder / f"driver-{number}.log"
        self._log = open(self.log, "wb")  # noqa: SIM115 (the process writes to it: it is closed with it)
        reader, writer = os.pipe()
        path = os.pathsep.join([str(TESTS), *map(os.path.abspath, filter(None, _python_path()))])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_kills.driver", str(writer), str(cores)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        self._events = reader
        self._unread = b""
        self._logged = 0  # bytes of the log before the latest query

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, query: Query) -> None:
        """Send a query to the driver, which may still be starting."""
        assert self._process.stdin
        self._logged = self.log.stat().st_size
        self._process.stdin.write(json.dumps(dataclasses.asdict(query)).encode() + b"\n")
        self._process.stdin.flush()

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """The driver's next event; None on a timeout, or if it has ended."""
        while b"\n" not in self._unread:
            if not select.select([self._events], [], [], timeout)[0]:
                return None
            read = os.read(self._events, 65_536)
            if not read:
                return None
            self._unread += read
        first, _, self._unread = self._unread.partition(b"\n")
        event: dict[str, Any] = json.loads(first)
        return event

    def logged(self, text: bytes) -> int:
        """How often this text occurs in the log of the latest query."""
        with open(self.log, "rb") as log:
            log.seek(self._logged)
            return log.read().count(text)

    def workers(self) -> list[int]:
        """The process IDs of the Python workers: the children of Spark's daemons."""
        daemons = {pid: parent for pid, parent, command in self._members() if b"pyspark.daemon" in command}
        return [pid for pid, parent in daemons.items() if parent in daemons]

    def kill(self, workers_too: bool = True) -> None:
        """Kill the Python process and the JVM with all their children, or with all except the Python workers."""
        # Stopped first, so that none of them sees another one die and reacts to it.
        members = [pid for pid, _, command in self._members() if workers_too or b"pyspark.daemon" not in command]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()

    def close(self) -> None:
        """End all processes of the driver."""
        while list(self._members()):
            self.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.close(self._events)
        self._log.close()

    def _members(self) -> Iterator[tuple[int, int, bytes]]:
        """The process ID, the parent's ID and the command of each process of the session that is still running."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end meanwhile
                # After the name of the program, in parentheses: state, parent, process group, session (proc(5)).
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._process.pid and state not in "ZX":
                    yield int(folder.name), int(parent), (folder / "cmdline").read_bytes()


def _python_path() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


class Pool:
    """Drivers for consecutive runs. One is always started in advance, so a killed driver is quickly replaced.

    Args:
        folder: The folder for their files.
        cores: The numbers of cores of the drivers, used in turn.
    """

    def __init__(self, folder: Path, cores: Sequence[int] = (2,)) -> None:
        self._folder = folder
        self._cores = cores
        self._all: list[Driver] = []
        self._idle: list[Driver] = []

    def take(self, spare: bool = True) -> Driver:
        """A driver that runs nothing; with `spare` its successor is started too."""
        while len(self._idle) < 1 + spare:
            driver = Driver(self._folder, len(self._all), self._cores[len(self._all) % len(self._cores)])
            self._all.append(driver)
            self._idle.append(driver)
        return self._idle.pop(0)

    def give_back(self, driver: Driver) -> None:
        """Return a driver that is idle again; later runs use it, after those that were started before."""
        self._idle.append(driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for driver in self._all:
            driver.close()
