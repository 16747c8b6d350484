"""Findings about a server that answers."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_command.check.finding import Finding
from headrace_command.check.server_state import ServerState

__all__ = ["findings_of"]

_OLDEST = (6, 2)
#: The clock difference, in seconds, from which there is a warning.
_SKEW = 1.0


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
