"""The laboratory of `headrace send`."""

from __future__ import annotations

import redis

from headrace.testing import LocalServer
from laboratory import ONE_SERVER, SEED, Option, Run, laboratory
from support.servers import program_named

from . import killed, piped


@laboratory(
    Option("kills", 10, "kills"),
    *(SEED, ONE_SERVER),
    Option("megabytes", 2_000, "of the file that is sent, untrimmed"),
    Option("piped", 10_000, "megabytes of the pipe; 0: no pipe"),
)
def send_kills(this: Run) -> str:
    """Kill `headrace send --exactly-once` at work, look for each row, and send more input than memory."""
    options = this.options
    for program in map(program_named, options.servers):
        with (
            LocalServer(program.path) as server,
            redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
        ):
            size, again = options.megabytes * 10**6, {"seed": options.seed, "servers": [program.label]}
            sent = killed.run(server, client, this.folder, size, options.kills, options.seed)
            this.judge(f"{program.label}: {sent}", sent.is_exact, **again)
            client.flushall()
            if options.piped:
                read = piped.run(server, client, options.piped * 10**6)
                this.judge(f"{program.label}: {read}", read.is_exact, **again)
    return f"{options.kills} kills"
