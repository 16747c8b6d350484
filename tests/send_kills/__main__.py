"""Kills `headrace send` at work, and gives it more input than memory. Exits with 1 if an entry is lost or doubled."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import redis

from headrace.testing import LocalServer
from support.servers import program_named

from . import killed, piped


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m send_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=2_000, help="of the file that is sent, untrimmed")
    parser.add_argument("--piped", type=int, default=10_000, help="megabytes of the pipe; 0: no pipe")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="8.6")
    arguments = parser.parse_args()
    program = program_named(arguments.server)
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="hr-send-") as folder,
        LocalServer(program.path) as server,
        redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
    ):
        size = arguments.megabytes * 10**6
        of_kills = killed.run(server, client, Path(folder), size, arguments.kills, arguments.seed)
        print(f"{program.label}: {of_kills}", flush=True)
        wrong += not of_kills.is_exact
        client.flushall()
        if arguments.piped:
            of_pipe = piped.run(server, client, arguments.piped * 10**6)
            print(f"{program.label}: {of_pipe}", flush=True)
            wrong += not of_pipe.is_exact
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
