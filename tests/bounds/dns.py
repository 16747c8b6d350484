"""A resolver that never answers, in new namespaces (Linux, util-linux) whose /etc/resolv.conf names it.

Run as a program, it measures inside the namespaces and prints JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace import Dispatcher, Endpoint
from support.interrupts import interrupted

#: A user namespace needs no root; some systems allow it only to root, others not to root in a container.
UNSHARE = (["--user", "--map-root-user", "--mount", "--net"], ["--mount", "--net"])
#: <linux/sockios.h>, <linux/if.h>: to switch an interface on.
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def measure(rounds: int) -> dict[str, list[float]] | None:
    """The seconds of each measurement; None where namespaces are not available."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for options in UNSHARE:
        if subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0:
            command = ["unshare", *options, sys.executable, "-m", "bounds.dns", str(rounds)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
            assert done.returncode == 0, done.stderr
            result: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
            return result
    return None


def _isolate(silent: socket.socket) -> None:
    """Send every DNS query to this socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    silent.bind(("127.0.0.53", 53))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("resolv.conf", "nameserver 127.0.0.53\n"), ("nsswitch.conf", "hosts: files dns\n")):
            file = Path(folder, name)
            file.write_text(text)
            subprocess.run(["mount", "--bind", file, Path("/etc", name)], check=True)


def main() -> None:
    rounds = int(sys.argv[1])
    measured: dict[str, list[float]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        _isolate(silent)

        def dispatcher(connect_timeout: float) -> Dispatcher:
            endpoint = Endpoint(host="db.example", stream_key="s", connect_timeout=connect_timeout)
            made = Dispatcher(endpoint)
            made.produce(b"x")
            return made

        def keep(name: str, seconds: float) -> None:
            measured.setdefault(name, []).append(seconds)

        for _ in range(rounds):
            with dispatcher(1) as waiting:
                started = time.monotonic()
                (failure,) = waiting.flush().failed
                keep("connect_timeout 1", time.monotonic() - started)
                assert failure.code == "TIMEOUT", failure
                assert "resolving the host name" in failure.message, failure
            with dispatcher(600) as waiting:
                with interrupted() as interrupt:
                    waiting.flush()
                keep("Ctrl-C", interrupt.seconds)
                started = time.monotonic()
                (failure,) = waiting.flush(0.3).failed
                keep("flush(timeout=0.3)", time.monotonic() - started)
                assert failure.code == "TIMEOUT", failure
        silent.setblocking(False)
        assert silent.recv(512), "no query arrived"
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
