"""What a server reports about itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ServerState"]


@dataclass(slots=True)
class ServerState:
    """What is known about a server. None: it did not report it.

    Attributes:
        name: "redis" or "valkey".
        version: Its own version.
        mode: "standalone", "cluster" or "sentinel".
        info: The lines of INFO, or None if that was refused.
        key_type: The type of the stream's key; "none" if the key does not exist.
        seconds: How long each command took.
        refusals: Why a command was refused.
    """

    name: str | None = None
    version: str | None = None
    mode: str | None = None
    info: dict[str, str] | None = None
    key_type: str | None = None
    user: bytes = b"default"
    seconds: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def read_hello(self, reply: Sequence[object]) -> None:
        """Read the reply to HELLO 2, which every user may send."""
        found = dict(zip(reply[::2], reply[1::2], strict=False))
        texts = {name: value.decode("utf-8", "replace") for name, value in found.items() if isinstance(value, bytes)}
        self.name, self.version, self.mode = texts.get(b"server"), texts.get(b"version"), texts.get(b"mode")

    def read_info(self, reply: bytes) -> None:
        """Read the reply to INFO."""
        lines = reply.decode("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines if not line.startswith("#") and ":" in line)
        self.info = {name: value for name, _, value in pairs}
        if version := self.info.get("valkey_version"):
            self.name, self.version = "valkey", version
        self.name = self.name or "redis"
        self.version = self.version or self.info.get("redis_version")
        self.mode = self.mode or self.info.get("redis_mode")

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The version as numbers."""
        found = re.match(r"[0-9]+(?:\.[0-9]+)*", self.version or "")
        return tuple(map(int, found[0].split("."))) if found else None

    def has(self, redis: tuple[int, ...]) -> bool | None:
        """Return whether it is at least this version of Redis, or Valkey, which derives from Redis 7.2."""
        if self.name == "valkey":
            return redis <= (7, 2)
        return None if self.numbers is None else self.numbers >= redis

    @property
    def is_replica(self) -> bool | None:
        """Whether it refuses writes."""
        return None if self.info is None else self.info.get("role") == "slave"

    @property
    def replicas(self) -> int | None:
        """How many replicas are up to date with it."""
        if self.info is None:
            return None
        return sum("state=online" in value for name, value in self.info.items() if re.fullmatch(r"slave\d+", name))

    @property
    def has_aof(self) -> bool | None:
        """Whether it writes an append-only file."""
        return None if self.info is None else self.info.get("aof_enabled") == "1"

    @property
    def eviction(self) -> str | None:
        """The eviction policy if memory is limited; "" if it is not."""
        if self.info is None or "maxmemory_policy" not in self.info:
            return None
        return self.info["maxmemory_policy"] if self.info.get("maxmemory", "0") != "0" else ""
