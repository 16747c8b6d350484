"""Runs the command in processes that are forked from one which has imported its modules: this halves the time."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from typing import NoReturn

import headrace
import headrace_command

__all__ = ["Forker", "can_be_forked"]

#: The beginnings of the variables that Python or the C library reads when a process starts.
_READ_AT_START = ("LANG", "LC_", "PYTHON", "TZ")

#: Those of pyarrow that read and write the command's files.
_ALSO_IMPORTED = ("pyarrow.parquet",)

#: The bytes of the longest command line with its environment.
_LONGEST = 1 << 17


class Forker:
    """The process that forks. It ends with `close`, and with this process."""

    def __init__(self) -> None:
        self._connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-m", __name__, str(its.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], process_group=0)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()

    def run(
        self, arguments: Sequence[str | bytes], stdin: bytes, environment: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        """Run the command; returns its exit code, its output and what it wrote to stderr.

        Args:
            arguments: Its name, and its arguments.
            stdin: Its input.
            environment: All its environment variables.
        """
        text = json.dumps([[os.fsdecode(argument) for argument in arguments], {**environment}])
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            reader, writer = os.pipe()
            socket.send_fds(self._connection, [text.encode()], [reader, out.fileno(), err.fileno()])
            os.close(reader)
            with suppress(BrokenPipeError), open(writer, "wb") as pipe:
                pipe.write(stdin)
            code = int(self._connection.recv(_LONGEST))
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Whether these variables, which differ from those of this process, are read by the command itself."""
    return not any(name.startswith(_READ_AT_START) for name in environment)


def _serve(connection: socket.socket) -> None:
    """Fork a process for each command line that arrives, with the descriptors 0, 1 and 2 of the command."""
    _import_all()
    gc.freeze()  # a collection would copy their memory
    while True:
        text, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not text:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            arguments, environment = json.loads(text)
            _become(arguments, environment, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_all() -> None:
    """Import what the command imports when it runs, so that no fork does."""
    for module in walk_packages(headrace_command.__path__, "headrace_command."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)
    for name in headrace.__all__:
        getattr(headrace, name)
    for name in _ALSO_IMPORTED:
        import_module(name)


def _become(arguments: list[str], environment: dict[str, str], descriptors: Sequence[int]) -> NoReturn:
    """Be the command: does not return."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.argv = arguments
    os.environ.clear()
    os.environ.update(environment)

    from headrace_command.main import main

    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(code)  # an end that frees each object copies most of the memory


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
