"""The laboratory of cancelled reads and polls."""

from __future__ import annotations

import asyncio

import redis
import uvloop

from headrace.testing import LocalServer
from laboratory import SEED, SERVERS, Option, Run, laboratory
from support.servers import program_named

from .cancelling import Consuming, Reading


@laboratory(Option("cancellations", 100_000, "calls that are cancelled, over all servers and loops"), SEED, SERVERS)
def async_cancellations(this: Run) -> str:
    """Cancel calls of `AsyncReader` and `AsyncConsumer` at any await, and look for each entry, socket and task."""
    options = this.options
    done = 0
    each = -(-options.cancellations // (4 * len(options.servers)))
    with this.progress(options.cancellations, "cancellations") as add:
        for program in map(program_named, options.servers):
            for loop, factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
                for kind in (Reading, Consuming):
                    with (
                        LocalServer(program.path) as server,
                        redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client,
                        asyncio.Runner(loop_factory=factory) as runner,
                    ):
                        work = kind(server, client, options.seed)
                        fault = ""
                        try:
                            runner.run(work.until(each))
                        except AssertionError as error:
                            fault = f": {error}"
                        cancelled, entries = work.cancelling.cancelled, len(work.entries)
                        name = f"{program.label}, {loop}, {kind.__name__}"
                        text = f"{name}: {cancelled:,} cancelled, {entries:,} entries{fault}"
                        this.judge(text, not fault, servers=[program.label])
                    done += cancelled
                    add(cancelled)
    return f"{done:,} cancellations"
