"""Prepared bytes to all masters of a cluster at the same time: the cost of the masters and the sockets."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import redis
from benches.contenders.common import SILENCE, connect, now, packed, payloads, receive
from benches.contenders.floor import chunked
from benches.contenders.streams import keys_of_rows
from benches.turns import Run, Target


class Node:
    """A master: the chunks for it, and the commands that it has not answered."""

    def __init__(self, connection: socket.socket, chunks: list[tuple[int, bytes]], times: int) -> None:
        self.connection = connection
        self._waiting = chain.from_iterable(repeat(chunks, times))
        self.missing = times * sum(count for count, _ in chunks)
        self._unanswered = 0
        self._count, self._chunk = 0, memoryview(b"")
        self._next()

    def has_room(self, window: int) -> bool:
        return bool(self._chunk) and self._unanswered + self._count <= window

    def send(self) -> None:
        self._chunk = self._chunk[self.connection.send(self._chunk) :]
        if not self._chunk:
            self._unanswered += self._count
            self._next()

    def receive(self) -> int:
        # An error reply has no `$`: the turn then times out.
        seen = receive(self.connection).count(b"$")
        self._unanswered -= seen
        self.missing -= seen
        return seen

    def _next(self) -> None:
        self._count, chunk = next(self._waiting, (0, b""))
        self._chunk = memoryview(chunk)


def prepare(target: Target, window: int = 4_000) -> Run:
    """Send with at most `window` unanswered commands per master."""
    ts, head = now(), ("MAXLEN", "~", target.maxlen, "*", "payload")
    commands: dict[tuple[str, int], list[bytes]] = {}
    with redis.RedisCluster(target.host, target.port) as cluster:
        for key, payload in zip(keys_of_rows(target), payloads(target), strict=True):
            node: Any = cluster.get_node_from_key(key)
            commands.setdefault((node.host, node.port), []).append(packed("XADD", key, *head, payload, "ts", ts))
    chunks = {address: chunked(of_node) for address, of_node in commands.items()}

    def run() -> int:
        stored = 0
        with ExitStack() as resources:
            nodes: dict[int, Node] = {}
            poll = select.poll()
            for (host, port), of_node in chunks.items():
                connection = resources.enter_context(connect(replace(target, host=host, port=port)))
                connection.setblocking(False)
                nodes[connection.fileno()] = Node(connection, of_node, target.rows // target.batch)
            while stored < target.rows:
                for number, node in nodes.items():
                    poll.register(number, select.POLLIN | (select.POLLOUT if node.has_room(window) else 0))
                if not (ready := poll.poll(SILENCE * 1000)):
                    raise TimeoutError(f"{target.rows - stored:,} replies did not come")
                for number, events in ready:
                    if events & ~select.POLLOUT:
                        stored += nodes[number].receive()
                    if events & select.POLLOUT:
                        nodes[number].send()
        return stored

    return run
