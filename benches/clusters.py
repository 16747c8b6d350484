"""A cluster of masters on this machine: its totals, and what happens to its nodes and slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, cast

import redis
from benches.contenders.streams import stream_keys
from benches.turns import Figures, Target

from headrace.testing import LocalCluster, LocalServer


def target_at(cluster: LocalCluster, rows: int, *, batch: int = 10_000) -> Target:
    """Return its first node as a target; the others are found through it."""
    host, _, port = cluster.nodes[0].partition(":")
    return Target(rows, host, int(port), batch=batch)


class ClusterWatch:
    """`Watch` for all or some masters of a cluster: the sums over them."""

    def __init__(self, servers: tuple[LocalServer, ...]) -> None:
        self._clients = [redis.Redis(unix_socket_path=server.unix_socket, protocol=2) for server in servers]

    def fresh(self) -> None:
        for client in self._clients:
            client.flushall(asynchronous=False)
            client.config_resetstat()

    def totals(self) -> Figures:
        found: list[dict[str, Any]] = [cast("Any", client.info("cpu")) for client in self._clients]
        return {"server_cpu": sum(float(cpu["used_cpu_user"] + cpu["used_cpu_sys"]) for cpu in found)}

    def entries_added(self, stream_key: str = "") -> int:  # noqa: ARG002 (of all streams)
        return sum(self.added_by_each())

    def added_by_each(self) -> list[int]:
        return [_added(client) for client in self._clients]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()


def _added(client: redis.Redis) -> int:
    stats: dict[str, Any] = cast("Any", client.info("commandstats"))
    xadd = stats.get("cmdstat_xadd", {"calls": 0, "rejected_calls": 0, "failed_calls": 0})
    return int(xadd["calls"] - xadd["rejected_calls"] - xadd["failed_calls"])


class Probe:
    """The longest time that a server made an XADD wait within the block: the server's own pause.

    A server that hands over a slot on its own briefly delays all writes, but no other commands.
    """

    def __init__(self, cluster: LocalCluster, server: LocalServer) -> None:
        self._key = next(key for key in (f"probe:{number}" for number in range(1_000)) if cluster.owner(key) is server)
        self._client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
        self._thread = threading.Thread(target=self._ask)
        self._ended = threading.Event()
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _ask(self) -> None:
        while not self._ended.wait(0.001):
            began = time.perf_counter()
            self._client.xadd(self._key, {"payload": b"x"}, maxlen=1)
            self.longest = max(self.longest, time.perf_counter() - began)


def longest_pause(target: Target, without: str, began: float, ended: float) -> float:
    """The longest time without a new entry in a stream other than `without`, in seconds, by the times in entry IDs."""
    first, last = round(began * 1000), round(ended * 1000)
    return max(_pauses(target, without, first, last)) / 1000


def _pauses(target: Target, without: str, first: int, last: int) -> Iterator[int]:
    with redis.RedisCluster(target.host, target.port) as client:
        for key in stream_keys(target):
            if key != without:
                entries: list[Any] = cast("Any", client.xrange(key, min=first, max=last))
                times = [first, *(int(entry.partition(b"-")[0]) for entry, _ in entries), last]
                yield max(later - earlier for earlier, later in pairwise(times))
