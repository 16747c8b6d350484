"""The nodes of a cluster as a server sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A node in the view of a server.

    Its line: <id> <ip:port@cport,hostname,…> <flags> <master> <ping> <pong> <epoch> <link state> <slots> …
    Source: https://redis.io/docs/latest/commands/cluster-nodes/
    """

    id: str
    flags: tuple[str, ...]
    master: str
    epoch: int
    connected: bool
    slots: tuple[range, ...]

    @property
    def is_master(self) -> bool:
        """Whether the node is a master that is not known to have failed."""
        return "master" in self.flags and "fail" not in self.flags

    @property
    def is_suspected(self) -> bool:
        """Whether the server that shows the node takes it for failed, alone or in agreement with others."""
        return bool({"fail", "fail?"} & {*self.flags})

    def has(self, slot: int) -> bool:
        """Return whether the node has a slot."""
        return any(slot in share for share in self.slots)


def nodes_of(text: str) -> Iterator[Node]:
    """The nodes in a reply to CLUSTER NODES."""
    for line in text.splitlines():
        fields = line.split(" ")
        if re.fullmatch("[0-9a-f]{40}", fields[0]):
            # A slot that is being moved is in brackets.
            found = (re.fullmatch(r"(\d+)(?:-(\d+))?", part) for part in fields[8:])
            slots = tuple(range(int(share[1]), int(share[2] or share[1]) + 1) for share in found if share)
            flags = tuple(fields[2].split(","))
            yield Node(fields[0], flags, fields[3], int(fields[6]), fields[7] == "connected", slots)
