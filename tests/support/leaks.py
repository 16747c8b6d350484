"""Servers that a test run leaves behind: found by their working directory, which is a folder of this run."""

from __future__ import annotations

import contextlib
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
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile, or belong to another user
            # The kernel adds " (deleted)" to the name of a folder that is gone.
            cwd = Path(str((process / "cwd").readlink()).removesuffix(" (deleted)"))
            if cwd != folder and cwd.is_relative_to(folder):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                leaks.append(Leak(int(process.name), command, cwd))
    return leaks
