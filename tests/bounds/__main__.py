"""Measure waits, leaks and recovery against their bounds. Exits with 1 if a bound is exceeded.

The machine must be quiet: a bound is the time that a call may exceed its timeout, without that of a busy machine.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from headrace.testing import LocalServer
from support import make_certs, programs_with
from support.servers import DURABLE
from support.stalls import STALLS, Surroundings

from . import dns, reconnects, recovery, waits
from .figures import HEADER, Figure

#: Seconds that a call may exceed its timeout.
OVER = 0.1
MODES = ("off", "script", "idmp")


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that servers are stopped
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="hr-bounds-") as name:
        folder = Path(name)
        tempfile.tempdir = name
        certs = make_certs(folder)
        with ExitStack() as servers:

            def start_server(*, needs: Iterable[str] = (), **options: Any) -> LocalServer:
                program = max(programs_with(needs), default=None)
                if program is None:
                    raise SystemExit(f"no server here that is or has: {', '.join(needs)}")
                return servers.enter_context(LocalServer(program.path, **options))

            around = Surroundings(folder, certs, start_server)
            print(HEADER)
            for part, measure in PARTS.items():
                if part not in arguments.parts:
                    continue
                for figure in measure(around, arguments):
                    print(figure, flush=True)
                    figures.append(figure)
                    servers.pop_all().close()
    exceeded = sum(not figure.holds for figure in figures)
    print(f"{len(figures)} figures, {exceeded} above their bound")
    return 1 if exceeded or not figures else 0


def _connects(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    for name in waits.named("connect_timeout"):
        seconds = [waits.connect(around, name, 1)[0] for _ in range(arguments.rounds)]
        yield Figure("connect, connect_timeout=1", name, "s", 1 + OVER, seconds)


def _silences(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    for name in waits.named("command_timeout"):
        seconds = [waits.silence(around, name, 1)[0] for _ in range(arguments.rounds)]
        yield Figure("flush, command_timeout=1", name, "s", 1.1, seconds)
    for progress in get_args(waits.Progress):
        seconds = [waits.after_progress(progress, 1)[0] for _ in range(arguments.rounds)]
        yield Figure("flush, command_timeout=1", f"after {progress}", "s", 1.1, seconds)


def _flushes(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    for name, stall in STALLS.items():
        for timeout in (0, 0.05, 0.3, 1):
            seconds = [waits.flush(around, stall, timeout)[0] for _ in range(arguments.rounds)]
            yield Figure(f"flush(timeout={timeout:g})", name, "s", timeout + OVER, seconds)


def _interrupts(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    for name, stall in STALLS.items():
        seconds = [waits.ctrl_c(around, stall) for _ in range(arguments.rounds)]
        yield Figure("KeyboardInterrupt", name, "s", 0.1, seconds)


def _names(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    measured = dns.measure(arguments.rounds)
    if measured is None:
        print("a resolver that never answers: not measured, because this system allows no namespaces")
        return
    for name, at_most in (("connect_timeout 1", 1 + OVER), ("flush(timeout=0.3)", 0.3 + OVER), ("Ctrl-C", 0.1)):
        yield Figure(name, "a resolver that never answers", "s", at_most, measured[name])


def _recoveries(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    random.seed(1)
    for name, outage in recovery.OUTAGES.items():
        for mode in MODES:
            seconds = []
            for _ in range(arguments.rounds):
                server = around.start_server(needs=("idmp",), transport="tcp", config=DURABLE)
                # Longer than the longest backoff.
                seconds.append(recovery.with_retry(server, outage, random.uniform(1.5, 2.5), exactly_once=mode))
            yield Figure("recovery, retry's defaults", f"{name}, exactly_once {mode}", "s", 1, seconds)
        seconds = [
            recovery.without_retry(around.start_server(transport="tcp"), outage) for _ in range(arguments.rounds)
        ]
        yield Figure("recovery, no retry: the next batch", name, "s", 1, seconds)


def _reconnects(around: Surroundings, arguments: argparse.Namespace) -> Iterator[Figure]:
    pair = around.certs.server
    for transport in ("unix", "tcp", "tls"):
        tls = {"ca": around.certs.ca, "cert": pair.cert, "key": pair.key} if transport == "tls" else {}
        options: dict[str, Any] = {"tls_cert": pair.cert, "tls_key": pair.key} if tls else {}
        server = around.start_server(needs=("tls",) if tls else (), transport=transport, **options)
        measured = reconnects.measure(server, tls, arguments.reconnects)
        what = f"{transport}: {arguments.reconnects:,} kills, resets and refusals"
        yield Figure("memory more", what, "MiB", 1, [measured["memory"] / 2**20])
        yield Figure("descriptors more", what, "files", 0, [measured["files"]])
        yield Figure("threads more", what, "threads", 0, [measured["threads"]])


PARTS: dict[str, Callable[[Surroundings, argparse.Namespace], Iterator[Figure]]] = {
    "connects": _connects,
    "silences": _silences,
    "flushes": _flushes,
    "interrupts": _interrupts,
    "names": _names,
    "recoveries": _recoveries,
    "reconnects": _reconnects,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each wait is measured; the worst counts")
    parser.add_argument("--reconnects", type=int, default=1_000)
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), default=list(PARTS), help=f"default {','.join(PARTS)}"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
