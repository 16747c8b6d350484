"""What a server reports about itself, and the findings that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace_command.check.finding import Finding

__all__ = ["ServerState", "findings_of"]

_OLDEST = (6, 2)
#: The clock difference, in seconds, from which there is a warning.
_SKEW = 1.0


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


def findings_of(state: ServerState, *, has_key: bool, endpoint_is: str, skew: float | None) -> Iterator[Finding]:
    """Yield one finding for each fact.

    Args:
        state: What the server reported.
        has_key: Whether a stream was given.
        endpoint_is: The topology of the endpoint: "single", "cluster" or "sentinel".
        skew: How far the server's clock is ahead, in seconds.
    """
    yield _version(state)
    yield _topology(state, endpoint_is)
    yield _role(state)
    yield _eviction(state)
    yield _aof(state)
    yield _replicas(state)
    yield _clock(state, skew)
    if has_key:
        yield _key(state)


def _unasked(name: str, state: ServerState, command: str) -> Finding:
    why = state.refusals.get(command, "the server did not report it")
    return Finding(name, "unknown", why, state.seconds.get(command))


def _version(state: ServerState) -> Finding:
    seconds = state.seconds.get("HELLO")
    if state.numbers is None:
        return _unasked("version", state, "HELLO")
    name = {"redis": "Redis", "valkey": "Valkey"}.get(state.name or "", state.name or "")
    text, details = f"{name} {state.version}", {"server": state.name, "version": state.version}
    if state.has(_OLDEST):
        return Finding("version", "ok", text, seconds, details=details)
    return Finding("version", "fail", f"{text}: headrace needs Redis 6.2 or later, or Valkey", seconds, details=details)


def _topology(state: ServerState, endpoint_is: str) -> Finding:
    if state.mode is None:
        return _unasked("topology", state, "HELLO")
    details = {"mode": state.mode, "endpoint": endpoint_is}
    if state.mode == "sentinel":
        text = "this is a sentinel, which has no streams: give --nodes with it, and --sentinel-master"
        return Finding("topology", "fail", text, details=details)
    if state.mode == "cluster" and endpoint_is != "cluster":
        text = "a node of a cluster, used as a single server: streams of other nodes fail; give --topology cluster"
        return Finding("topology", "warn", text, details=details)
    names = {"single": "one server", "cluster": "a cluster", "sentinel": "a master that sentinels watch"}
    return Finding("topology", "ok", names[endpoint_is], details=details)


def _role(state: ServerState) -> Finding:
    if state.info is None:
        return _unasked("role", state, "INFO")
    seconds = state.seconds.get("INFO")
    if state.is_replica:
        master = f"{state.info.get('master_host')}:{state.info.get('master_port')}"
        text = f"a replica of {master}: it refuses writes, connect to its master"
        return Finding("role", "warn", text, seconds, details={"role": "replica", "master": master})
    return Finding("role", "ok", "master", seconds, details={"role": "master"})


def _eviction(state: ServerState) -> Finding:
    policy = state.eviction
    if policy is None:
        return _unasked("eviction", state, "INFO")
    limit = int((state.info or {}).get("maxmemory", "0"))
    details = {"policy": policy or None, "maxmemory": limit}
    if not policy:
        return Finding("eviction", "ok", "no memory limit, so nothing is evicted", details=details)
    text = f"{policy} at {limit >> 20} MiB"
    if policy == "noeviction":
        return Finding("eviction", "ok", f"{text}: at the limit writes are refused", details=details)
    what = "whole streams" if policy.startswith("allkeys") else "keys with a time to live, such as markers of batches"
    return Finding(
        "eviction", "warn", f"{text}: {what} may be evicted; set maxmemory-policy noeviction", details=details
    )


def _aof(state: ServerState) -> Finding:
    if state.has_aof is None:
        return _unasked("AOF", state, "INFO")
    details = {"aof": state.has_aof}
    if not state.has_aof:
        return Finding("AOF", "warn", "off: a crash loses what was written after the last snapshot", details=details)
    if (state.info or {}).get("aof_last_write_status", "ok") != "ok":
        return Finding("AOF", "warn", "on, but its last write failed: see the log of the server", details=details)
    return Finding("AOF", "ok", "on", details=details)


def _replicas(state: ServerState) -> Finding:
    if state.replicas is None:
        return _unasked("replicas", state, "INFO")
    connected = int((state.info or {}).get("connected_slaves", "0"))
    text = f"{state.replicas} online" + (f" of {connected}" if connected != state.replicas else "")
    return Finding("replicas", "ok", text, details={"online": state.replicas, "connected": connected})


def _clock(state: ServerState, skew: float | None) -> Finding:
    seconds = state.seconds.get("TIME")
    if skew is None:
        return _unasked("clock", state, "TIME")
    details = {"skew_seconds": round(skew, 3)}
    if abs(skew) < _SKEW:
        return Finding("clock", "ok", f"{abs(skew) * 1000:.0f} ms from this machine's", seconds, details=details)
    text = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's: entry IDs use the server's time"
    return Finding("clock", "warn", text, seconds, details=details)


def _key(state: ServerState) -> Finding:
    seconds = state.seconds.get("TYPE")
    if state.key_type is None:
        return _unasked("stream", state, "TYPE")
    details = {"type": state.key_type}
    if state.key_type == "stream":
        return Finding("stream", "ok", "exists", seconds, details=details)
    if state.key_type == "none":
        return Finding("stream", "ok", "does not exist yet: the first entry creates it", seconds, details=details)
    text = f"the key holds a {state.key_type} rather than a stream: use another key"
    return Finding("stream", "warn", text, seconds, details=details)
