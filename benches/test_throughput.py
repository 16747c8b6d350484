"""The same rows through every contender into every server, round by round.

The contenders take turns, so that a machine that slows down for a while slows down all of them. Each turn is a test of
its own, measured once; `benches/tables.py` makes the medians.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from benches.contenders import BATCH, CONTENDERS, Contender, Target
from benches.tables import Round
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.server import LocalServer
from support import Program, find_programs

ROWS = int(os.environ.get("HEADRACE_BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("HEADRACE_BENCH_ROUNDS", "5"))


def programs() -> list[Program]:
    """The newest Redis, Redis 7.0 and the newest Valkey, of those that are here."""
    found = find_programs()
    of_redis = [program for program in found if program.is_redis]
    of_valkey = [program for program in found if not program.is_redis]
    widespread = [program for program in of_redis if program.label == "redis-7.0"]
    if not found:
        raise pytest.UsageError("no server was found: tests/get_servers.sh .servers fetches some")
    return list(dict.fromkeys([*of_redis[-1:], *widespread, *of_valkey[-1:]]))


def turns() -> Iterator[Any]:
    if ROWS < BATCH or ROWS % BATCH:
        raise pytest.UsageError(f"HEADRACE_BENCH_ROWS must be a multiple of {BATCH:,}: {ROWS}")
    for number in range(ROUNDS):
        # Another contender begins each round: none of them always finds the server as the same other one left it.
        first = number % len(CONTENDERS)
        for program in programs():
            for contender in (*CONTENDERS[first:], *CONTENDERS[:first]):
                name = "_".join(contender.name.replace(":", "").split())
                yield pytest.param(program, contender, number + 1, id=f"{program.label}-{name}-{number + 1}")


@pytest.mark.parametrize(("program", "contender", "number"), [*turns()])
def test_throughput(
    program: Program,
    contender: Contender,
    number: int,
    server_of: Callable[[Program], LocalServer],
    rounds: list[Round],
    benchmark: BenchmarkFixture,
) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    server = server_of(program)
    assert server.host is not None
    assert server.port is not None
    rows = min(ROWS, contender.max_rows or ROWS)
    target = Target(server.host, server.port, "bench", rows)
    run = contender.prepare(target)
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        # A fresh stream; and nothing of the old one is left to be freed while the next one is measured.
        client.flushall(asynchronous=False)
        client.config_resetstat()
        before: list[float] = []
        after: list[float] = []
        confirmed = benchmark.pedantic(  # type: ignore[no-untyped-call]
            run,
            setup=lambda: before.extend((cpu_of_server(client), cpu_of_client())),
            teardown=lambda: after.extend((cpu_of_client(), cpu_of_server(client))),
        )
        stored = entries_added(client, target.stream_key)
    assert confirmed == rows
    assert stored == rows

    assert benchmark.stats is not None
    seconds = benchmark.stats.stats.total
    client_cpu, server_cpu = after[0] - before[1], after[1] - before[0]
    name = f"{program.name.capitalize()} {program.version}"
    rounds.append(Round(name, contender.name, number, rows, seconds, client_cpu, server_cpu))
    benchmark.group = name
    benchmark.extra_info |= {
        "contender": contender.name,
        "round": number,
        "rows": rows,
        "client_cpu_seconds": client_cpu,
        "server_cpu_seconds": server_cpu,
    }


def cpu_of_client() -> float:
    """CPU seconds of this process, those in the kernel too: sending and receiving are most of a lean client's work."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_of_server(client: redis.Redis) -> float:
    cpu: dict[str, Any] = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def entries_added(client: redis.Redis, stream_key: str) -> int:
    """How many entries the stream was given, by the server's own count."""
    stream: dict[str, Any] = client.xinfo_stream(stream_key)
    if "entries-added" in stream:  # since Redis 7.0
        return int(stream["entries-added"])
    xadd: dict[str, Any] = client.info("commandstats")["cmdstat_xadd"]
    return int(xadd["calls"] - xadd["rejected_calls"] - xadd["failed_calls"])
