"""The reading process: started quickly, suspended, killed at a step of its loop or at any moment."""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from support.patience import PATIENCE
from support.processes import wait_until
from support.stacks import stacks_after

from .client_base import Config, Control
from .clients import run

#: Steps until the process kills itself (0: never), whether it must end once everything is read, and the last step.
_STATE = struct.Struct("<qq32s")


class _State:
    """The state that both processes share."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _STATE.size)

    @property
    def steps(self) -> int:
        return int(_STATE.unpack_from(self._map)[0])

    @property
    def is_last(self) -> bool:
        return bool(_STATE.unpack_from(self._map)[1])

    @property
    def step(self) -> str:
        return bytes(_STATE.unpack_from(self._map)[2]).rstrip(b"\0").decode()

    def set(self, steps: int | None = None, is_last: bool | None = None, step: str | None = None) -> None:
        now = (
            self.steps if steps is None else steps,
            self.is_last if is_last is None else is_last,
            (self.step if step is None else step).encode(),
        )
        _STATE.pack_into(self._map, 0, *now)

    def close(self) -> None:
        self._map.close()


def _end_with_parent() -> None:
    """End this process with the one that started it, even if that was killed. The process that forked it lives on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _body(config: Config, state_path: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("headrace").setLevel(logging.ERROR)  # each fault causes retries, with two warnings each
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        state = _State(state_path)
    except FileNotFoundError:  # the tests were stopped meanwhile
        return

    def step(name: str) -> None:
        if left := state.steps:
            state.set(steps=left - 1, step=name)
            if left == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    with stacks_after(PATIENCE):  # no process lives as long, unless a call hangs
        run(config, Control(step, lambda: state.is_last))


class ReadingProcess:
    """A running client."""

    def __init__(self, config: Config) -> None:
        self.config = config
        path = f"{config.journal}.state"
        Path(path).write_bytes(_STATE.pack(0, 0, b""))
        self._state = _State(path)
        # Forked in a few milliseconds from a process without threads that has already imported everything.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["read_faults.clients"])
        self._process = context.Process(target=_body, args=(config, path), daemon=True)
        self._process.start()
        self._closed = False

    @property
    def step(self) -> str:
        """The step at which it killed itself."""
        return self._state.step

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while it runs; negative if a signal ended it."""
        return self._process.exitcode

    def kill(self) -> None:
        """Send SIGKILL, from any thread."""
        self._signal(signal.SIGKILL)

    def kill_in(self, steps: int) -> None:
        """Let it kill itself after this number of steps of its loop."""
        self._state.set(steps=steps)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend it by SIGSTOP inside the block."""
        self.stop()
        try:
            stat = Path(f"/proc/{self._process.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
            yield
        finally:
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Send SIGSTOP, from any thread; the end of `suspended` resumes it."""
        self._signal(signal.SIGSTOP)

    def finish(self) -> None:
        """Let it read what remains, then end."""
        self._state.set(steps=0, is_last=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def close(self) -> None:
        """End it unconditionally. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._process.exitcode is None:
            self.kill()
        self._process.join(30.0)
        self._process.close()
        self._state.close()
