"""Processes that a test run leaves behind: found by a folder of this run, where they work or keep temporary files."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Leak:
    """A process that should be gone."""

    pid: int
    command: str
    folder: Path


def find_leaks(folder: Path) -> list[Leak]:
    """The processes whose working directory is below this folder. Linux only; elsewhere none are found."""
    leaks = []
    for process in _processes():
        with contextlib.suppress(OSError):  # it may end meanwhile, or belong to another user
            cwd = _working_directory(process)
            if cwd != folder and cwd.is_relative_to(folder):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                leaks.append(Leak(int(process.name), command, cwd))
    return leaks


def kill_all(folder: Path) -> None:
    """Kill all processes that work in this folder or below, or have their temporary files there. Linux only.

    For the end of a run that was interrupted: what its tests started has inherited the folder.
    """
    while left := [process for process in _processes() if process.name != str(os.getpid()) and _uses(process, folder)]:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def _processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


def _uses(process: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        if (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False  # it has ended
        variables = (process / "environ").read_bytes().split(b"\0")
        temporary = [Path(os.fsdecode(each[7:])) for each in variables if each.startswith(b"TMPDIR=")]
        return any(path.is_relative_to(folder) for path in (_working_directory(process), *temporary))
    return False


def _working_directory(process: Path) -> Path:
    # The kernel adds " (deleted)" to the name of a folder that is gone.
    return Path(str((process / "cwd").readlink()).removesuffix(" (deleted)"))
