"""Kills the examples that pass entries on. Exits with 1 if an entry was lost, duplicated or out of order."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import redis

from headrace.testing import LocalServer
from support.servers import program_named

from .handoffs import HANDOFFS
from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m read_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each example, on all servers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", default="7.0,8.6,valkey")
    parser.add_argument("--handoffs", default=",".join(HANDOFFS))
    arguments = parser.parse_args()
    programs = [program_named(name) for name in arguments.servers.split(",")]
    wrong = 0
    for name in arguments.handoffs.split(","):
        for number, program in enumerate(programs):
            kills = (arguments.kills + number) // len(programs)
            if not kills:
                continue
            with (
                tempfile.TemporaryDirectory(prefix="hr-kills-") as folder,
                LocalServer(program.path) as server,
                redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
            ):
                outcome = run(HANDOFFS[name], server, client, kills, arguments.seed + number, Path(folder))
            print(f"{name}, {program.label}: {outcome}", flush=True)
            wrong += not outcome.is_exact
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
