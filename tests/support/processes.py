"""Processes and signals: suspended servers, forked children, ticks during a waiting call."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import redis

from headrace.testing import LocalServer
from support.patience import PATIENCE

_T = TypeVar("_T")


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return as soon as the condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.005)


def rewrite_aof(server: LocalServer) -> None:
    """Rewrite the append-only file of a server that was restarted after a crash; returns when it is done.

    If the crash cut a transaction in the file, Redis keeps the commands before the cut, and takes what is written next
    as more of the same transaction when it restarts again (docs/durability.md).
    """
    with contextlib.closing(redis.Redis(unix_socket_path=server.unix_socket, protocol=2)) as client:

        def is_done() -> bool:
            info = client.info("persistence")
            return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]

        client.bgrewriteaof()
        wait_until(is_done)
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


@contextlib.contextmanager
def stopped(server: LocalServer) -> Iterator[None]:
    """Suspend a server inside the block by SIGSTOP; the kernel still accepts its connections and bytes."""
    pid = server.pid
    stop(server)
    try:
        yield
    finally:
        if server.running and server.pid == pid:
            os.kill(pid, signal.SIGCONT)


def stop(server: LocalServer) -> None:
    """Suspend a server by SIGSTOP; returns once it is stopped."""
    os.kill(server.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{server.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


def resume(server: LocalServer | int) -> None:
    """Resume a suspended server; a forked child knows only its process ID."""
    os.kill(server if isinstance(server, int) else server.pid, signal.SIGCONT)


def kill_and_restart(server: LocalServer) -> None:
    """End a server by SIGKILL, and start it again with its data."""
    server.kill()
    server.restart()


class StuckError(Exception):
    """Raised by a tick to leave a waiting call."""


@contextlib.contextmanager
def ticking(tick: Callable[[], object], every: float = 0.02) -> Iterator[None]:
    """Call `tick` repeatedly in the main thread, even inside a native call that waits and handles signals.

    Its exceptions are raised by the waiting call; True ends the ticking. (By SIGUSR1: pytest-timeout uses SIGALRM.)
    """
    main = threading.main_thread().ident
    assert main is not None
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every):
            signal.pthread_kill(main, signal.SIGUSR1)

    def handle(*_: object) -> None:
        if tick() is True:
            done.set()

    signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=beat, name="ticking")
    thread.start()
    try:
        yield
    finally:
        # Ignored, not restored: a last signal may still be pending, and the default would end the process.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        done.set()
        thread.join()


@contextlib.contextmanager
def after_ticks(count: int, act: Callable[[], object]) -> Iterator[None]:
    """Act once, inside a waiting call, after it has handled `count` ticks of 20 ms.

    By then the call has done everything that it can do without the server.
    """
    seen = 0

    def tick() -> bool:
        nonlocal seen
        seen += 1
        if seen == count:
            act()
        return seen >= count

    with ticking(tick):
        yield
    assert seen >= count, "the call did not wait"


def in_child(body: Callable[[], _T]) -> _T:
    """Run `body` in a forked child and return what it returned."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns about a fork with threads; other tests in this process may have left some.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(round(PATIENCE))
        try:
            try:
                answer = pickle.dumps((True, body()))
            except BaseException:
                answer = pickle.dumps((False, traceback.format_exc()))
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child was killed"
    worked, result = pickle.loads(answer)
    assert worked, result
    return result  # type: ignore[no-any-return]


def killed_in_child(body: Callable[[], object]) -> None:
    """Run `body` in a forked child; it ends with a SIGKILL to its own process."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


class PeakMemory:
    """The growth of this process's memory to its peak since the object was created. Linux only."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._start = _status("VmRSS")

    @property
    def growth(self) -> int:
        """The growth in bytes."""
        return _status("VmHWM") - self._start


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
