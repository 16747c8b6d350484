"""Decides whether a mode is possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace_command.check.finding import Finding
from headrace_command.check.rights import Rights
from headrace_command.check.server_state import ServerState

__all__ = ["verdict"]

_READS = ("reader", "inspect")
_SINCE = {"idmp": (8, 6, 2), "wait_aof": (7, 2)}


class _Reason(NamedTuple):
    text: str
    passes: bool = False


def verdict(mode: str, state: ServerState, rights: Rights | None, replicas: int) -> Finding:
    """Return whether this mode is possible.

    Args:
        mode: One of `MODES`.
        state: What the server reported.
        rights: What the user may do; None without a stream to ask for.
        replicas: How many replicas `wait_replicas` needs.
    """
    name = f"mode {mode}"
    reasons = list(_reasons(mode, state, rights, replicas))
    if reasons:
        text = "; ".join(reason.text for reason in reasons)
        return Finding(name, "fail", text, passes=all(reason.passes for reason in reasons))
    unknown = list(_unknown(mode, state, rights))
    if unknown:
        return Finding(name, "unknown", "; ".join(unknown))
    return Finding(name, "ok", "possible")


def _reasons(mode: str, state: ServerState, rights: Rights | None, replicas: int) -> Iterator[_Reason]:
    is_new = state.key_type in (None, "none")
    since = _SINCE.get(mode)
    if since is not None and (state.has(since) is False or (mode == "idmp" and state.name == "valkey")):
        needed = "Redis 8.6.2 or later: use script" if mode == "idmp" else "Redis 7.2 or later, or Valkey"
        yield _Reason(f"it needs {needed}; this is {state.name} {state.version}")
    elif rights is not None and (missing := rights.missing(mode, is_new=is_new)):
        yield _Reason(f"the user needs {missing}")
    if state.key_type not in (None, "none", "stream"):
        yield _Reason(f"the key holds a {state.key_type} rather than a stream")
    if state.is_replica and mode not in _READS:
        yield _Reason("the server is a replica", passes=True)
    if mode == "script" and state.eviction not in (None, "", "noeviction"):
        yield _Reason(f"maxmemory-policy is {state.eviction}, which may evict markers: set noeviction")
    if mode == "wait_aof" and state.has_aof is False:
        yield _Reason("the server has no append-only file: set appendonly yes")
    if mode == "wait_replicas" and state.replicas is not None and state.replicas < replicas:
        yield _Reason(f"{state.replicas} of {replicas} replicas are online", passes=True)


def _unknown(mode: str, state: ServerState, rights: Rights | None) -> Iterator[str]:
    if rights is None:
        yield "give STREAM, so that rights can be checked"
    else:
        yield from rights.unknown(mode, is_new=state.key_type in (None, "none"))
    if mode in _SINCE and state.numbers is None:
        yield "the version of the server is unknown"
    needs_info = {"script": state.eviction, "wait_aof": state.has_aof, "wait_replicas": state.replicas}
    if mode in needs_info and needs_info[mode] is None:
        yield "the user may not ask for INFO: +info"
