"""How quickly members that come and go have equal shares, what moves, and what an idle group costs the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace import Endpoint, ShardConsumer
from support.patience import PATIENCE
from support.servers import Program

from .check import Verdict, shares
from .member import GROUP, STREAM_KEY
from .servers import OneServer
from .watch import Watch

#: How many members there are, one step after the other.
STEPS = (1, 2, 3, 6, 12, 20, 12, 6, 3, 2, 1)
#: What members and their servers call at the top; other commands are those of scripts.
CALLS = ("eval", "evalsha", "xread", "xrange", "xinfo|stream", "xinfo|groups", "ping")


@dataclass
class Step:
    """A number of members after another."""

    shards: int
    before: int
    members: int
    seconds: float
    moves: int
    #: The fewest that must move.
    fewest: int
    #: Per second, once nothing happens: calls of clients, all commands, and the share of a processor.
    calls: float = 0.0
    commands: float = 0.0
    processor: float = 0.0


class _Idle:
    """A member in a thread, which waits for batches."""

    def __init__(self, endpoint: Endpoint, name: str, lease: float) -> None:
        self._consumer = ShardConsumer(endpoint, group=GROUP, member=name, lease=lease)
        self._thread = threading.Thread(target=self._consumer.poll, name=name)
        self._thread.start()

    def close(self) -> None:
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()


def measure(program: Program, shards: int, lease: float, seconds: float) -> Iterator[Step]:
    """Let members come and go. `seconds`: how long the idle group is looked at, at each step upwards."""
    with ExitStack() as stack:
        servers = OneServer(program)
        stack.callback(servers.stop)
        endpoint = Endpoint(**servers.endpoint, stream_key=STREAM_KEY, shards=shards)
        streams = [key.decode() for key in endpoint.stream_keys]
        members: dict[str, _Idle] = {}
        stack.callback(_close, members)
        before = 0
        for count in STEPS:
            watch = Watch(servers, streams, Verdict())
            try:
                watch.wait(lambda: True, PATIENCE)
                watch.checker.moves = 0
                began = time.monotonic()
                while len(members) < count:
                    name = f"pod-{len(members):02}"
                    members[name] = _Idle(endpoint, name, lease)
                while len(members) > count:
                    members.popitem()[1].close()
                took = watch.wait(partial(watch.is_settled, {*members}), PATIENCE)
                assert took is not None, f"{count} members of {shards} shards have no equal shares"
                step = Step(
                    shards, before, count, time.monotonic() - began, watch.checker.moves, fewest(shards, before, count)
                )
            finally:
                watch.stop()
            if count > before:
                step.calls, step.commands, step.processor = _idle(servers, seconds)
            before = count
            yield step


def _close(members: dict[str, _Idle]) -> None:
    for member in members.values():
        member.close()


def fewest(shards: int, before: int, after: int) -> int:
    """The fewest shards that must move for equal shares: what newcomers get, or what those had who left."""
    if not before:
        return shards
    few, many = sorted((before, after))
    if few == many:
        return 0
    # The members of the larger number that are not in the smaller have, at the least, the smallest shares.
    every = sorted(shares(shards, many).elements())
    return sum(every[: many - few])


def _idle(servers: OneServer, seconds: float) -> tuple[float, float, float]:
    with servers.client("") as client:
        began, first = time.monotonic(), _counts(client)
        time.sleep(seconds)
        took, last = time.monotonic() - began, _counts(client)
    calls, commands, processor = ((b - a) / took for a, b in zip(first, last, strict=True))
    return calls, commands, processor


def _counts(client: Any) -> tuple[float, float, float]:
    stats = client.info("commandstats")
    calls = sum(stats[f"cmdstat_{name}"]["calls"] for name in CALLS if f"cmdstat_{name}" in stats)
    cpu = client.info("cpu")
    processor = float(cpu["used_cpu_sys"]) + float(cpu["used_cpu_user"])
    return float(calls), float(client.info("stats")["total_commands_processed"]), processor
