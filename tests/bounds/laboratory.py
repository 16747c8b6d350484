"""The laboratory of waits, reconnects and recovery: figures and their bounds, part by part."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, get_args

from headrace.testing import LocalCluster, LocalServer
from laboratory import Option, Run, laboratory
from support import make_certs, programs_with
from support.servers import DURABLE
from support.stalls import STALLS, Surroundings

from . import dns, readings, reconnects, recovery, waits
from .figures import HEADER, Figure

#: Seconds that a call may exceed its timeout; one that reads or closes looks at its watch only now and then.
OVER, OVER_READING = 0.1, 0.2
MODES = ("off", "script", "idmp")


def _connects(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    for name in waits.named("connect_timeout"):
        seconds = [waits.connect(around, name, 1)[0] for _ in range(options.rounds)]
        yield Figure("connect, connect_timeout=1", name, "s", 1 + OVER, seconds)


def _silences(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    for name in waits.named("command_timeout"):
        seconds = [waits.silence(around, name, 1)[0] for _ in range(options.rounds)]
        yield Figure("flush, command_timeout=1", name, "s", 1 + OVER, seconds)
    for progress in get_args(waits.Progress):
        seconds = [waits.after_progress(progress, 1)[0] for _ in range(options.rounds)]
        yield Figure("flush, command_timeout=1", f"after {progress}", "s", 1 + OVER, seconds)


def _flushes(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    for name, stall in STALLS.items():
        for timeout in (0, 0.05, 0.3, 1):
            seconds = [waits.flush(around, stall, timeout)[0] for _ in range(options.rounds)]
            yield Figure(f"flush(timeout={timeout:g})", name, "s", timeout + OVER, seconds)


def _interrupts(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    for name, stall in STALLS.items():
        yield Figure("KeyboardInterrupt", name, "s", OVER, [waits.ctrl_c(around, stall) for _ in range(options.rounds)])


def _names(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    measured = dns.measure(options.rounds)
    if measured is None:
        print("a resolver that never answers: not measured, because this system allows no namespaces")
        return
    for name, at_most in (("connect_timeout 1", 1 + OVER), ("flush(timeout=0.3)", 0.3 + OVER), ("Ctrl-C", OVER)):
        yield Figure(name, "a resolver that never answers", "s", at_most, measured[name])


def _recoveries(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    random.seed(1)
    for name, outage in recovery.OUTAGES.items():
        for mode in MODES:
            seconds = []
            for _ in range(options.rounds):
                server = around.start_server(needs=("idmp",), transport="tcp", config=DURABLE)
                # Longer than the longest backoff.
                seconds.append(recovery.with_retry(server, outage, random.uniform(1.5, 2.5), exactly_once=mode))
            yield Figure("recovery, retry's defaults", f"{name}, exactly_once {mode}", "s", 1, seconds)
        seconds = [recovery.without_retry(around.start_server(transport="tcp"), outage) for _ in range(options.rounds)]
        yield Figure("recovery, no retry: the next batch", name, "s", 1, seconds)


def _reconnects(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    pair = around.certs.server
    for transport in ("unix", "tcp", "tls"):
        tls = {"ca": around.certs.ca, "cert": pair.cert, "key": pair.key} if transport == "tls" else {}
        files: dict[str, Any] = {"tls_cert": pair.cert, "tls_key": pair.key} if tls else {}
        server = around.start_server(needs=("tls",) if tls else (), transport=transport, **files)
        measured = reconnects.measure(server, tls, options.reconnects)
        what = f"{transport}: {options.reconnects:,} kills, resets and refusals"
        yield Figure("memory more", what, "MiB", 1, [measured["memory"] / 2**20])
        yield Figure("descriptors more", what, "files", 0, [measured["files"]])
        yield Figure("threads more", what, "threads", 0, [measured["threads"]])


def _readings(around: Surroundings, options: Namespace) -> Iterator[Figure]:
    for behaviour_name, behaviour in readings.BEHAVIOURS.items():
        calls = [(name, call, 0.5) for name, call in readings.CALLS.items()]
        calls.append(("the end of `with Consumer()`", readings.LEAVE, readings.LEAVE_TIMEOUT))
        for name, call, timeout in calls:
            bound = call.timeouts * timeout
            rounds = options.rounds if timeout < 1 else 1
            server = readings.start(around, behaviour)
            seconds = [readings.measure(server, around.certs, behaviour, call, timeout)[0] for _ in range(rounds)]
            yield Figure(f"{name}, {bound:.2f} s", behaviour_name, "s", bound + OVER_READING, seconds)
    with LocalCluster(max(programs_with(())).path, replicas=0) as cluster:
        for read in readings.READS:
            for connections in (None, 1):
                seconds = [readings.nodes_stopped(cluster, read, connections, 0.3)]
                case = f"all 3 nodes of a cluster are stopped, connections={connections}"
                yield Figure(f"{read}(0.3), connect_timeout=1", case, "s", 1.3 + OVER_READING, seconds)


PARTS: dict[str, Callable[[Surroundings, Namespace], Iterator[Figure]]] = {
    "connects": _connects,
    "silences": _silences,
    "flushes": _flushes,
    "interrupts": _interrupts,
    "names": _names,
    "readings": _readings,
    "recoveries": _recoveries,
    "reconnects": _reconnects,
}


@laboratory(
    Option("rounds", 3, "how often each wait is measured; the worst counts"),
    Option("reconnects", 1_000, "kills, resets and refusals"),
    Option("parts", list(PARTS), "what is measured"),
)
def bounds(this: Run) -> str:
    """Measure waits, reconnects and recovery against their bounds: ten minutes.

    The machine must be quiet: a bound is the time that a call may exceed its timeout, without that of a busy machine.
    """
    figures = 0
    with ExitStack() as servers:

        def start_server(*, needs: Iterable[str] = (), **options: Any) -> LocalServer:
            program = max(programs_with(needs), default=None)
            if program is None:
                raise SystemExit(f"no server here that is or has: {', '.join(needs)}")
            return servers.enter_context(LocalServer(program.path, **options))

        around = Surroundings(this.folder, make_certs(this.folder), start_server)
        this.say(HEADER)
        for part in this.options.parts:
            for figure in PARTS[part](around, this.options):
                figures += 1
                this.judge(figure, figure.holds, parts=[part])
                servers.pop_all().close()
    return f"{figures} figures"
