"""Durability: what is in the append-only file of a server that is killed while it writes to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.testing import LocalServer
from support import Program
from support.delivery import bodies, script
from support.fixture_types import StartServer
from support.pipelines import batch_of, payloads_of
from support.processes import rewrite_aof
from support.servers import DURABLE

Connect = Callable[..., Any]

PAYLOADS = payloads_of(0, 10)


def write(server: LocalServer) -> int:
    """Write the batch; returns how many rows the server already had."""
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(PAYLOADS))
        report = dispatcher.flush().raise_for_failures()
        return report.deduplicated


def cut(file: Path, inside: bytes) -> None:
    """End a file in the middle of these bytes, as a server does that is killed while it writes them."""
    with file.open("r+b") as opened:
        opened.truncate(file.read_bytes().rindex(inside) + len(inside) // 2)


def test_a_cut_transaction_is_written_once_if_the_aof_is_rewritten(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Without the rewrite, the second restart of Redis adds the rows before the cut to those of the repeated batch."""
    server = start_server(program, config=DURABLE)
    folder = Path(connect(server).config_get("dir")["dir"])
    assert write(server) == 0
    server.kill()
    cut(max(folder.rglob("*.aof"), key=lambda file: file.stat().st_size), inside=PAYLOADS[7])
    server.restart()
    assert bodies(connect(server)) == [], "a transaction is never there in part"
    rewrite_aof(server)
    assert write(server) == 0
    server.kill()
    server.restart()
    assert bodies(connect(server)) == PAYLOADS
    assert write(server) == len(PAYLOADS)
