"""The processes of the members."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.proxy import Proxy
from support.patience import PATIENCE
from support.processes import wait_until

from .member import Setting, work

#: Members are forked from a process that has imported what they need: they are at work at once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["shard_kills.member", "shard_kills.contenders"])


class MemberError(Exception):
    """A member ended by itself."""


@dataclass
class _Place:
    process: Any
    is_stopped: bool = False


class Group:
    """Members come, go and are killed.

    Args:
        setting: That of all members.
        seed: What is random in a member follows from it, and from the member's name.
        proxied: The port of the server, if each member is to reach it through a proxy of its own.
    """

    def __init__(self, setting: Setting, seed: int, proxied: int | None) -> None:
        self._setting = setting
        self._seed = seed
        self._port = proxied
        self._places: dict[str, _Place] = {}
        self._proxies: dict[str, Proxy] = {}
        self._started = 0

    @property
    def alive(self) -> set[str]:
        """The names of members that are at work."""
        return {name for name, place in self._places.items() if not place.is_stopped}

    def proxy(self, name: str) -> Proxy:
        """The proxy of a member."""
        return self._proxies[name]

    def start(self, name: str | None = None) -> str:
        """Start a member, under a new name or under that of one before. Its name."""
        self._started += 1
        name = name or f"pod-{self._started}"
        servers = self._setting.servers
        if self._port is not None:
            if name not in self._proxies:
                self._proxies[name] = Proxy(self._port)
            servers = {"host": "127.0.0.1", "port": self._proxies[name].port}
        setting = replace(self._setting, servers=servers)
        process = PROCESSES.Process(target=work, args=(setting, name, f"{self._seed} {self._started}"), daemon=True)
        process.start()
        self._places[name] = _Place(process)
        return name

    def kill(self, name: str) -> None:
        process = self._places.pop(name).process
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            self._check(name, process)

    def terminate(self, *names: str, patience: float = PATIENCE) -> None:
        """Let members close. Returns once they have."""
        for name in names:
            os.kill(self._places[name].process.pid, signal.SIGTERM)
        for name in names:
            process = self._places.pop(name).process
            process.join(patience)
            # One that had only just started does not handle the signal yet, and has no shard.
            if process.exitcode != -signal.SIGTERM:
                self._check(name, process)

    def stop(self, name: str) -> None:
        """Suspend a member. Returns once it is."""
        place = self._places[name]
        place.is_stopped = True
        os.kill(place.process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{place.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def resume(self, name: str) -> None:
        place = self._places[name]
        os.kill(place.process.pid, signal.SIGCONT)
        place.is_stopped = False

    def mark(self, name: str, *, is_away: bool) -> None:
        """Note that a member cannot do its work, or can again."""
        self._places[name].is_stopped = is_away

    def each(self, act: Callable[[str], object]) -> None:
        for name in sorted(self._places):
            act(name)

    def check(self) -> None:
        """Raise if a member ended by itself."""
        for name, place in self._places.items():
            if place.process.exitcode is not None:
                self._check(name, place.process, ended=True)

    def close(self) -> None:
        """Kill who is left."""
        for place in self._places.values():
            place.process.kill()
            place.process.join()
        for proxy in self._proxies.values():
            proxy.close()

    def _check(self, name: str, process: Any, *, ended: bool = False) -> None:
        if process.exitcode != 0 or ended:
            said = (self._setting.folder / f"stderr-{name}").read_text()
            if process.exitcode is None:
                process.kill()
                process.join()
                raise MemberError(f"{name} did not close: it was killed\n{said}")
            raise MemberError(f"{name} ended with {process.exitcode}\n{said}")
