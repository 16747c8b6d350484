"""The servers of a run, and the streams that are on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal, Protocol, Self, cast, get_args

import redis

from headrace.testing import LocalCluster, LocalServer
from support.clusters import another_master, keys_on_all_masters, move_as_one, moves_as_one
from support.servers import Program

from .check import Entries, Fields
from .worker import GROUP, STREAM_KEY, dead_letter_key

Topology = Literal["single", "cluster"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
#: Entries of a pipeline that fills a stream.
_PIPELINE = 5_000


class Target(Protocol):
    """Servers with the streams of a run."""

    #: The keys of the streams.
    streams: tuple[str, ...]
    #: What the endpoints of the workers are made of.
    endpoint: dict[str, Any]

    def fill(self, entries: Entries) -> None:
        """Write the entries, and create the group."""

    def state(self) -> tuple[int, int] | None:
        """The numbers of pending entries, and of those that the group has not delivered yet. `None`: a node is away."""

    def dead(self) -> Iterator[Fields]:
        """The fields of each dead letter."""

    def disturb(self) -> str:
        """Change something among the servers, and return once they have settled. Returns what it was."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class OneServer:
    """One stream on one server."""

    def __init__(self, program: Program) -> None:
        self.streams: tuple[str, ...] = (STREAM_KEY,)
        self._server = LocalServer(program.path, transport="tcp")
        self.endpoint: dict[str, Any] = {"host": str(self._server.host), "port": int(self._server.port or 0)}
        self._client = redis.Redis(unix_socket_path=self._server.unix_socket, protocol=2)

    def fill(self, entries: Entries) -> None:
        _fill(self._client, entries, STREAM_KEY)

    def state(self) -> tuple[int, int] | None:
        return _state(self._client, STREAM_KEY)

    def dead(self) -> Iterator[Fields]:
        return _dead(self._client, STREAM_KEY)

    def disturb(self) -> str:
        raise NotImplementedError("one server has no slots to move")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._server.stop()


class Cluster:
    """Streams in slots of their own, on all masters of a cluster. Slots move, and replicas take over."""

    def __init__(self, program: Program, streams: int) -> None:
        with ExitStack() as stack:
            self._cluster = stack.enter_context(LocalCluster(program.path, node_timeout=5.0))
            self.streams = tuple(keys_on_all_masters(self._cluster, STREAM_KEY, streams))
            self.endpoint: dict[str, Any] = {"nodes": self._cluster.nodes}
            first = self._cluster.servers[0]
            # Follows redirects.
            self._client = redis.RedisCluster("127.0.0.1", int(first.port or 0), protocol=2)
            stack.callback(self._client.close)
            self._stack = stack.pop_all()
        moves: list[tuple[str, Callable[[str], object]]] = [
            ("move by keys", lambda key: self._cluster.move_slot(key, another_master(self._cluster, key))),
            ("failover", self._cluster.fail_over),
        ]
        if moves_as_one(self._cluster):
            moves.insert(
                1, ("move as one", lambda key: move_as_one(self._cluster, key, another_master(self._cluster, key)))
            )
        self._turns = zip(itertools.cycle(moves), itertools.cycle(self.streams), strict=False)

    def fill(self, entries: Entries) -> None:
        for key in self.streams:
            with redis.Redis(unix_socket_path=self._cluster.owner(key).unix_socket, protocol=2) as client:
                _fill(client, entries, key)

    def state(self) -> tuple[int, int] | None:
        try:
            states = [_state(self._client, key) for key in self.streams]
        except (redis.exceptions.RedisError, OSError):
            return None
        return sum(pending for pending, _ in states), sum(left for _, left in states)

    def dead(self) -> Iterator[Fields]:
        for key in self.streams:
            yield from _dead(self._client, key)

    def disturb(self) -> str:
        (name, move), key = next(self._turns)
        move(key)
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def start(topology: Topology, program: Program, streams: int) -> Target:
    """Start the servers. `streams`: how many there are in a cluster."""
    return Cluster(program, streams) if topology == "cluster" else OneServer(program)


def _fill(client: redis.Redis, entries: Entries, key: str) -> None:
    mine = [number for number in range(entries.count) if entries.stream(number) == key]
    for first in range(0, len(mine), _PIPELINE):
        pipeline = cast("Any", client.pipeline(transaction=False))
        for number in mine[first : first + _PIPELINE]:
            # redis-py takes a dict, which has no name twice.
            fields = [part for pair in entries.fields(number) for part in pair]
            pipeline.execute_command("XADD", key, entries.entry_id(number), *fields)
        pipeline.execute()
    client.xgroup_create(key, GROUP, id="0", mkstream=True)


def _state(client: Any, key: str) -> tuple[int, int]:
    (group,) = client.xinfo_groups(key)
    return group["pending"], group["lag"]


def _dead(client: Any, key: str) -> Iterator[Fields]:
    # As the server has them: redis-py makes a dict of the fields.
    for _, parts in client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, dead_letter_key(key)):
        yield tuple(zip(parts[::2], parts[1::2], strict=True))
