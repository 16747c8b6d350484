"""A process that loses its connection a thousand times in each of three ways, and the resources it leaks.

One server kills the idle connection (CLIENT KILL), one resets it while a message is in flight, and one refuses it.
Run as a program, it is that process, and prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.fake_server import FakeServer, Peer, entry_id

#: Rounds before the first measurement, so that one-time allocations and allocator caches are done.
WARM = 100


def measure(server: LocalServer, tls: dict[str, Path], turns: int) -> dict[str, Any]:
    """Run it against this server. `tls`: `ca`, `cert` and `key`, if it speaks TLS."""

    def answer_and_reset(peer: Peer) -> None:
        if peer.commands(1):
            peer.send(entry_id())
            peer.commands(1)
            peer.reset()

    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["cert"], tls["key"])
    with ExitStack() as stack:
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))  # bound but not listening: it refuses connections
        fake = stack.enter_context(FakeServer(*[answer_and_reset] * (WARM + turns + 1), tls=context))
        plan = {
            "turns": turns,
            "admin": server.unix_socket,
            "port": server.port,
            "fake": fake.port,
            "closed": closed.getsockname()[1],
            "ca": str(tls["ca"]) if tls else None,
        }
        command = [sys.executable, "-W", "error", "-m", "bounds.reconnects", json.dumps(plan)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Losses:
    """Three dispatchers, each of which loses its connection in another way."""

    def __init__(self, plan: dict[str, Any]) -> None:
        tls: dict[str, Any] = {"tls": True, "tls_ca_cert": plan["ca"]} if plan["ca"] else {}
        common: dict[str, Any] = {"stream_key": "events", "maxlen": 10, "connect_timeout": 60, "command_timeout": 60}
        if plan["port"] is None:
            killed = Endpoint(unix_socket=plan["admin"], **common)
        else:
            # By name: each connect starts a thread that calls the resolver.
            killed = Endpoint(host="localhost", port=plan["port"], **common, **tls)
        self.killed = Dispatcher(killed)
        self.reset = Dispatcher(Endpoint(host="127.0.0.1", port=plan["fake"], **common, **tls))
        self.refused = Dispatcher(Endpoint(host="127.0.0.1", port=plan["closed"], **common, **tls))
        self.admin = socket.socket(socket.AF_UNIX)
        self.admin.connect(plan["admin"])

    def turn(self) -> None:
        self.killed.produce(b"x")
        self.killed.flush().raise_for_failures()
        self.admin.sendall(b"CLIENT KILL TYPE normal SKIPME yes\r\n")
        assert self.admin.recv(100) == b":1\r\n"
        self.reset.produce(b"answered")
        self.reset.flush().raise_for_failures()
        self.reset.produce(b"in flight")
        assert [failure.code for failure in self.reset.flush().failed] in (["RESET"], ["EOF"])
        self.refused.produce(b"x")
        assert [failure.code for failure in self.refused.flush().failed] == ["CONNECT"]

    def close(self) -> None:
        for each in (self.killed, self.reset, self.refused, self.admin):
            each.close()


def held() -> tuple[int, int, int]:
    """Bytes of memory, file descriptors, threads. A resolver's thread may take a moment to end."""
    gc.collect()
    deadline = time.monotonic() + 5
    while (threads := _status("Threads")) > threading.active_count() and time.monotonic() < deadline:
        time.sleep(0.01)
    return _status("VmRSS") * 1024, len(list(Path("/proc/self/fd").iterdir())), threads


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    plan = json.loads(sys.argv[1])
    losses = Losses(plan)
    for _ in range(WARM):
        losses.turn()
    held()  # its own first time
    before = held()
    started = time.monotonic()
    for _ in range(plan["turns"]):
        losses.turn()
    seconds = time.monotonic() - started
    memory, files, threads = (after - start for after, start in zip(held(), before, strict=True))
    stats = [dispatcher.stats() for dispatcher in (losses.killed, losses.reset)]
    print(
        json.dumps(
            {
                "memory": memory,
                "files": files,
                "threads": threads,
                "reconnects": sum(each.reconnects for each in stats),
                "refused": losses.refused.stats().failed,
                "seconds": seconds,
            }
        )
    )
    losses.close()


if __name__ == "__main__":
    main()
