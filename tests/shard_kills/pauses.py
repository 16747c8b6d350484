"""How long shards stand still while the members of a group are restarted in turn under load."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace import Endpoint
from support.patience import PATIENCE
from support.processes import wait_until
from support.servers import Program

from .check import Verdict
from .group import Group
from .member import STREAM_KEY, Setting
from .producer import Producer
from .servers import OneServer, end
from .sink import EntryId, Row, Sink
from .watch import Watch

#: The members that are restarted in turn.
MEMBERS = 6
#: So that each shard has some.
KEYS = 400
#: Ways of a restart: what ends a member, and whether the next one has its name.
WAYS = [(how, name) for how in ("SIGTERM", "SIGKILL") for name in ("same name", "new name")]


@dataclass
class Pauses:
    """What a rolling restart did."""

    how: str
    names: str
    #: The longest pause of each shard of the member that was restarted, and of each other one, in seconds.
    its: list[float]
    others: list[float]
    rows: int
    repeated: int
    moves: int


def measure(
    program: Program, folder: Path, how: str, names: str, *, shards: int, lease: float, rate: int, rounds: int
) -> Pauses:
    """Restart all members in turn, some times, each once the one before has its share."""
    folder.mkdir()
    servers = OneServer(program)
    endpoint = Endpoint(**servers.endpoint, stream_key=STREAM_KEY, shards=shards)
    streams = [key.decode() for key in endpoint.stream_keys]
    Sink.create(folder, streams)
    sink = Sink(folder)
    group = Group(Setting(folder, "headrace", servers.endpoint, shards, lease, ("log",), 0.0), 1, None)
    producer = Producer(endpoint, rate, 1, KEYS)
    watch = Watch(servers, streams, Verdict())
    strikes: list[tuple[float, float, set[str]]] = []

    def settle() -> None:
        assert watch.wait(lambda: watch.is_settled(group.alive), PATIENCE) is not None, "shares did not become even"

    try:
        for _ in range(MEMBERS):
            group.start()
        settle()
        producer.start()
        wait_until(lambda: {row.shard for row in sink.log()} == {*streams})
        watch.checker.moves = 0
        for _ in range(rounds):
            for name in sorted(group.alive):
                time.sleep(0.3)
                began, its = time.time(), set(watch.owned_by(name))
                if how == "SIGTERM":
                    group.terminate(name)
                else:
                    group.kill(name)
                group.start(name if names == "same name" else None)
                assert watch.wait(lambda: watch.is_served(group.alive, {}), PATIENCE) is not None
                settle()
                time.sleep(0.3)
                strikes.append((began, time.time(), its))
        producer.stop()
        wait_until(lambda: is_at_end(sink, {stream: end(servers, stream) for stream in streams}))
        rows = list(sink.log())
        moves = watch.checker.moves
        group.terminate(*sorted(group.alive))
    finally:
        producer.stop()
        watch.stop()
        group.close()
        sink.close()
        servers.stop()
    its_pauses, others = longest_pauses(rows, strikes)
    repeated = len(rows) - len({(row.shard, row.entry_id) for row in rows})
    return Pauses(how, names, its_pauses, others, len(rows), repeated, moves)


def is_at_end(sink: Sink, ends: Mapping[str, EntryId]) -> bool:
    """Whether the log has the last entry of each shard."""
    return {*ends.items()} <= {(row.shard, row.entry_id) for row in sink.log()}


def longest_pauses(
    rows: Sequence[Row], strikes: Sequence[tuple[float, float, set[str]]]
) -> tuple[list[float], list[float]]:
    """The longest pause of each shard within the time of each strike: of the shards that are named, and of others."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        times[row.shard].append(row.at)
    named: list[float] = []
    others: list[float] = []
    for began, ended, shards in strikes:
        for shard, each in times.items():
            within = [began, *(at for at in sorted(each) if began < at < ended), ended]
            pause = max(later - earlier for earlier, later in pairwise(within))
            (named if shard in shards else others).append(pause)
    return named, others
