"""The process of a local server and its folder. Both are removed when this process ends, even by SIGKILL.

`local_server` configures the server; this module runs and ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from headrace.testing.progress import wait_for

# Linux allows 107 bytes for the path of a Unix socket, macOS 103.
_SOCKET_PATH_MAX = 100

# How many bytes of a log an error or a stopped server keeps.
_LOG_TAIL = 16_384

# A server that rejects a line of its configuration prints that line: `>>> 'requirepass …'`.
_SECRET_LINE = re.compile(r"(>>> '(?:user|requirepass|(?:master|primary)auth|tls-\S*key-file-pass)\b).*", re.IGNORECASE)

# The guardian: its input is a pipe that only this process holds open, so `read` returns when this process ends, even by
# SIGKILL. PR_SET_PDEATHSIG needs no second process, but works on Linux only, and also fires when only the thread that
# started the server ends.
_GUARDIAN = 'read -r _; kill -KILL "-$0"; rm -rf -- "$1"'


class ServerProcess:
    """The process of a server, its guardian and its folder. It may outlive its `LocalServer`."""

    def __init__(self) -> None:
        self.folder = _make_folder()
        self.socket_path = str(self.folder / "server.sock")
        self._popen: subprocess.Popen[bytes] | None = None
        self.ended = False
        self._guardian: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._last_log = ""
        _alive.add(self)

    @property
    def owned(self) -> bool:
        """Whether this is the process that started the server, not a forked child."""
        return self._owner == os.getpid()

    def spawn(self, command: list[str]) -> None:
        """Start the process in the folder, with its output in the log, and its guardian."""
        # A process group of its own: Ctrl-C in a terminal reaches every process of the foreground group, but the
        # server must outlive the clean-up of the interrupted program.
        with open(self.folder / "server.log", "wb") as log:
            self._popen = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, str(self._popen.pid), str(self.folder)],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def pid(self) -> int | None:
        """Return the process ID while the process runs, else None."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    def exit_status(self) -> int | None:
        """Return the exit status of a process that ended by itself, else None."""
        return None if self._popen is None else self._popen.poll()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._popen is not None:
            if self._popen.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)  # with its child, if one is saving
            self._popen.wait()
            self._popen = None
        self._dismiss_guardian()

    def shut_down(self, timeout: float = 10.0) -> None:
        """Shut the server down, which saves its data if configured to; kill it if its log stops growing."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(signal.SIGCONT)  # a stopped process handles no signal
            # A reply is a refusal, for example because of a missing password. A signal needs no password, but the
            # server checks for signals only every 100 ms.
            if ask(self.socket_path, "SHUTDOWN"):
                self._popen.terminate()
            wait_for(lambda: "" if self.pid() is None else f"{self.log_size()} bytes in its log", timeout)
        self.kill()

    def end(self) -> None:
        """Stop the server and remove its folder, once, and only in the process that started it."""
        if self.ended or not self.owned:
            return
        self.kill()
        self._last_log = self.log_text()
        self.ended = True
        shutil.rmtree(self.folder, ignore_errors=True)
        _alive.discard(self)

    def log_text(self) -> str:
        """Return the end of the log, without passwords from lines of the configuration."""
        if self.ended:
            return self._last_log
        try:
            with open(self.folder / "server.log", "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                return _SECRET_LINE.sub(r"\1 …'", log.read().decode(errors="replace"))
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        """Return the number of bytes in the log since the last start."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "server.log").stat().st_size
        return 0

    def disown(self) -> None:
        """In a forked child: release the parent's processes, above all the pipe to the guardian."""
        for popen in (self._popen, self._guardian):
            if popen is not None:
                if popen.stdin is not None:
                    popen.stdin.close()
                popen.returncode = 0  # otherwise Popen warns of a running process
        self._popen = self._guardian = None

    def _dismiss_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.communicate()
            self._guardian = None


# All running servers. The references are strong, so that those that still wait for the cycle collector at exit are
# ended too.
_alive: set[ServerProcess] = set()


@atexit.register
def _end_all() -> None:
    for process in list(_alive):
        process.end()


def _disown_all() -> None:
    for process in _alive:
        process.disown()
    _alive.clear()


os.register_at_fork(after_in_child=_disown_all)


def ask(socket_path: str, command: str) -> bytes:
    """Send one inline command and return the start of the reply, or nothing after a second."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            connection.connect(socket_path)
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(256)
    except OSError:
        return b""


def ask_all(socket_path: str, *commands: str | bytes, timeout: float = 1.0) -> bytes:
    """Send inline commands and return everything received, up to a silence of `timeout` seconds."""
    received = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(socket_path)
            lines = [command if isinstance(command, bytes) else command.encode() for command in commands]
            connection.sendall(b"".join(line + b"\r\n" for line in lines))
            # A server replies to what came before the end, and then closes the connection.
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(16_384):
                received += chunk
    except OSError:
        return b""
    return received


def order(socket_path: str, *commands: bytes, timeout: float) -> bytes:
    """Send inline commands and return the line that answers the last one, or nothing after the timeout (seconds).

    A server that must wait before it replies drops a connection whose other end is closed, as it is by `ask_all`.
    """
    received = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(socket_path)
            connection.sendall(b"".join(command + b"\r\n" for command in commands))
            while received.count(b"\r\n") < len(commands) and (chunk := connection.recv(16_384)):
                received += chunk
    except OSError:
        return b""
    return received.split(b"\r\n")[len(commands) - 1] if received.count(b"\r\n") >= len(commands) else b""


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="headrace-server-"))
    if len(os.fsencode(folder / "server.sock")) > _SOCKET_PATH_MAX:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="headrace-server-", dir="/tmp"))
    return folder
