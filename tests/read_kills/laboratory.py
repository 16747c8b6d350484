"""The laboratory of the examples that pass entries on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from headrace.testing import LocalServer
from laboratory import SEED, SERVERS, Option, Run, laboratory
from support.servers import program_named

from .handoffs import HANDOFFS
from .run import run


@laboratory(
    Option("kills", 20, "kills of each example, on all servers together"),
    *(SEED, SERVERS),
    Option("handoffs", list(HANDOFFS), "the examples"),
)
def read_kills(this: Run) -> str:
    """Kill the examples that pass entries on, and look for each entry: it must be there once, and in order."""
    programs = [program_named(name) for name in this.options.servers]
    for name in this.options.handoffs:
        for number, program in enumerate(programs):
            kills, seed = (this.options.kills + number) // len(programs), this.options.seed + number
            if not kills:
                continue
            with (
                TemporaryDirectory() as folder,
                LocalServer(program.path) as server,
                redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
            ):
                outcome = run(HANDOFFS[name], server, client, kills, seed, Path(folder))
            again = {"kills": kills, "seed": seed, "servers": [program.label], "handoffs": [name]}
            this.judge(f"{name}, {program.label}: {outcome}", outcome.is_exact, **again)
    return f"{this.options.kills} kills of each example"
