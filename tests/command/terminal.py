"""Runs the command on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress

from command.conftest import HEADRACE
from headrace.testing import LocalServer

__all__ = ["on_terminal"]


def on_terminal(
    server: LocalServer,
    *arguments: str,
    columns: int = 80,
    rows: int = 24,
    typed: bytes = b"",
    is_enough: Callable[[bytes], bool] = lambda _: False,
) -> tuple[int, list[str]]:
    """The exit code and the lines of a command, whose input and output are a terminal.

    Args:
        server: The server of `HEADRACE_URL`.
        arguments: Those of the command.
        columns: The characters of a line of the terminal.
        rows: Its lines.
        typed: What is typed.
        is_enough: Whether what was shown is enough, so that the command is ended.
    """
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (rows, columns))
    os.write(main, typed)
    process = subprocess.Popen(
        [HEADRACE, *arguments],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "HEADRACE_URL": server.url, "NO_COLOR": "1"},
        start_new_session=True,
    )
    os.close(other)
    shown = b""
    try:
        with suppress(OSError):  # the terminal is gone with the process
            while not is_enough(shown) and (part := os.read(main, 65_536)):
                shown += part
        if process.poll() is None and is_enough(shown):
            process.kill()
        return process.wait(), shown.decode().splitlines()
    finally:
        process.kill()
        process.wait()
        os.close(main)
