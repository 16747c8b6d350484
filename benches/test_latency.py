"""One message at a time: `Dispatcher.dispatch` and redis-py's `xadd`, over TCP, a Unix socket and TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, programs
from benches.tables import Bench, Column
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program, make_certs

#: Calls; the first 1,000 are not measured.
CALLS = 21_000
DISPATCH = Contender("headrace dispatch", "benches.single_calls:dispatch", max_rows=CALLS)
XADD = Contender("redis-py xadd, with hiredis", "benches.single_calls:xadd", max_rows=CALLS)
TRANSPORTS = ("TCP", "Unix socket", "TLS")

P50 = Column.figure("p50, µs", "p50", 1e6, ",.1f")
P99 = Column.figure("p99, µs", "p99", 1e6, ",.1f")
CLIENT_CPU = Column.per_row("client CPU, µs a call", "client_cpu", 1e6, ",.1f")
BENCH = Bench(
    "latency",
    "one message at a time: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, on an open connection",
    columns=(P50, P99, CLIENT_CPU),
    ratios=((DISPATCH.name, XADD.name),),
    compared=(P50, P99, CLIENT_CPU),
)

TargetOf = Callable[[str, int], tuple[LocalServer, Target]]


def program_for(transport: str) -> Program | None:
    """Return the newest Redis; for TLS, the first of `programs` that supports it."""
    able = [program for program in programs() if transport != "TLS" or program.can("tls")]
    return able[0] if able else None


@pytest.fixture(scope="module")
def target_of(
    server_of: Callable[[Program], LocalServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetOf]:
    """Return the server of a transport, and a target with a number of rows."""
    with ExitStack() as stack:
        tls: list[tuple[LocalServer, str]] = []

        def target_of(transport: str, rows: int) -> tuple[LocalServer, Target]:
            if (program := program_for(transport)) is None:
                pytest.skip("no server here was built with TLS")
            if transport == "TLS":
                if not tls:
                    certs = make_certs(tmp_path_factory.mktemp("certs"))
                    pair = certs.server
                    server = LocalServer(program.path, transport="tls", tls_cert=pair.cert, tls_key=pair.key)
                    tls.append((stack.enter_context(server), str(certs.ca)))
                server, ca = tls[0]
                return server, Target(rows, "127.0.0.1", server.port or 0, tls_ca_cert=ca, batch=1_000)
            server = server_of(program)
            if transport == "TCP":
                return server, Target(rows, "127.0.0.1", server.port or 0, batch=1_000)
            return server, Target(rows, unix_socket=server.unix_socket, batch=1_000)

        yield target_of


@pytest.mark.parametrize(("number", "transport", "contender"), interleaved(TRANSPORTS, [DISPATCH, XADD]))
def test_latency(number: int, transport: str, contender: Contender, target_of: TargetOf, take_turn: TakeTurn) -> None:
    server, target = target_of(transport, contender.rows())
    group = f"{server.name.capitalize()} {server.version}, {transport}"
    with ServerWatch(server) as watch:
        take_turn(BENCH, contender, target, group=group, number=number, watch=watch)
