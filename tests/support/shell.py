"""A folder in which the command lines of the documentation are run."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from headrace.testing import LocalServer


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """The command lines of a block, each with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:].partition("  #")[0].strip(), []))
        else:
            found[-1][1].append(line)
    return found


class Shell:
    """A folder in which command lines are run, with `headrace` on `PATH`."""

    def __init__(self, folder: Path, server: LocalServer) -> None:
        self.folder = folder
        #: Names in the page, and what replaces them here.
        self.names: dict[str, str] = {}
        programs = folder / "bin"
        programs.mkdir()
        (programs / "headrace").symlink_to(Path(sys.executable).parent / "headrace")
        self.program("journalctl", """echo '{"MESSAGE": "a"}'; echo '{"MESSAGE": "b"}'""")
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HEADRACE_URL": server.url,
            "LC_ALL": "C.UTF-8",
        }

    def program(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def named(self, text: str) -> str:
        """A text of the page, with its names replaced."""
        for name, here in self.names.items():
            text = text.replace(name, here)
        return text

    def type(self, line: str) -> tuple[int, list[str]]:
        """Run a line. If it asks, it is answered; if it never ends, it is interrupted once it has printed something."""
        line = self.named(line)
        if re.search(r" (replay|drop) ", line) and "--dry-run" not in line:
            return self._answer(line)
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"exec {line}" if "|" not in line else line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,  # what readline leaves is for communicate
        )
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            if re.search(r"--(follow|watch)\b", line):
                process.send_signal(signal.SIGINT)
            rest, _ = process.communicate()
        finally:
            process.kill()
            process.wait()
        return process.returncode, (first + rest).decode().splitlines()

    def _answer(self, line: str) -> tuple[int, list[str]]:
        """Run a line on a terminal, and answer with yes."""
        main, other = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environment,
            stdin=other,
            stdout=other,
            stderr=other,
        )
        os.close(other)
        os.write(main, b"y\n")
        printed = b""
        with suppress(OSError):  # the last writer closed it
            while part := os.read(main, 65_536):
                printed += part
        os.close(main)
        return process.wait(), printed.decode().splitlines()


def shape(line: str) -> str:
    """A line without its numbers, units and widths."""
    line = re.sub(r"\d[\d,.:TZ-]*", "#", line)
    line = re.sub(r"# (ms|s|min|h|d)\b", "# time", line)
    line = re.sub(r"# (B|[KMG]iB)\b", "# bytes", line)
    return re.sub(r"\s+", " ", line).strip()


def assert_shown(shown: list[str], printed: list[str]) -> None:
    """Compare the shapes. In the page a line `…` stands for any lines, and `…` at the end of a line for its rest."""
    rest = [shape(line) for line in printed]
    skips = False
    for line in shown:
        if line.strip() == "…":
            skips = True
            continue
        wanted = shape(line)
        start = wanted[:-1] if wanted.endswith("…") else None
        matches = (
            at for at, other in enumerate(rest) if other == wanted or (start is not None and other.startswith(start))
        )
        at = next(matches, None)
        assert at is not None, f"{wanted!r} is not in {printed}"
        assert skips or at == 0, f"the page does not show {rest[:at]}"
        rest, skips = rest[at + 1 :], False
    assert skips or rest == [], f"the page does not show {rest}"
