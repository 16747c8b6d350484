"""What the servers of a new cluster read at their start, so that they know each other and their slots."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

_SLOTS = 16_384


class ClusterPlan:
    """The `nodes.conf` of each server: first of the masters, then of their replicas, in turn.

    With these files no CLUSTER MEET is needed, whose handshake takes a second and may be lost on a busy machine.

    A server that starts as a master refuses commands for two seconds (CLUSTER_WRITABLE_DELAY in cluster.c of Redis). A
    replica that becomes one does not. So the masters start as replicas of predecessors, which do not exist, and take
    over from them (CLUSTER FAILOVER TAKEOVER). Replicas start after that.
    """

    def __init__(self, ports: Sequence[int], masters: int, *, shard_ids: bool) -> None:
        self.ports = ports
        self.ids = [_random_id() for _ in ports]
        self.predecessors = [_random_id() for _ in range(masters)]
        # Otherwise each server would draw IDs of its own. Redis 7.0 and older do not know them.
        self._shard_ids = [f",,shard-id={_random_id()}" if shard_ids else "" for _ in range(masters)]

    def share(self, number: int) -> range:
        """Return the slots of a master."""
        masters = len(self.predecessors)
        return range(number * _SLOTS // masters, (number + 1) * _SLOTS // masters)

    def file(self, own: int) -> str:
        """Return the file of a server."""
        masters = len(self.predecessors)
        begins = own < masters
        lines = []
        for number, predecessor in enumerate(self.predecessors):
            slots = f"{self.share(number).start}-{self.share(number).stop - 1}"
            address = self._address(number)
            if begins:  # the predecessor has no address to connect to
                lines.append(_line(predecessor, f":0@0{self._shard_ids[number]}", "master", "-", number, slots))
                flags = "myself,slave" if number == own else "slave"
                lines.append(_line(self.ids[number], address, flags, predecessor, number))
            else:
                lines.append(_line(self.ids[number], address, "master", "-", number, slots))
        for number in range(masters, len(self.ids)):
            flags = "myself,slave" if number == own else "slave"
            master = number % masters
            lines.append(_line(self.ids[number], self._address(number), flags, self.ids[master], master))
        return "".join(f"{line}\n" for line in [*lines, f"vars currentEpoch {masters} lastVoteEpoch 0"])

    def _address(self, number: int) -> str:
        port = self.ports[number]
        return f"127.0.0.1:{port}@{port + 10_000}{self._shard_ids[number % len(self.predecessors)]}"


def _line(node: str, address: str, flags: str, master: str, number: int, slots: str = "") -> str:
    # Epochs differ, or the servers would have to settle which of two masters is first.
    link = "connected" if "myself" in flags else "disconnected"
    return f"{node} {address} {flags} {master} 0 0 {number + 1} {link} {slots}".rstrip()


def _random_id() -> str:
    return secrets.token_hex(20)
