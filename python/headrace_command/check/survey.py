"""One complete check: queries all servers of an endpoint, and decides which modes are possible."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace import CommandError, ConnectionFailedError
from headrace.admin import Commands, time_zones
from headrace.tables import CODES
from headrace_command.arguments import MODES
from headrace_command.check import connect_steps, server_state
from headrace_command.check.finding import Finding
from headrace_command.check.modes import NEEDS, Rights, verdict
from headrace_command.check.server_state import ServerState

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Survey", "required"]

_DRYRUN_SINCE = (7, 0)


class Survey:
    """One complete check.

    Args:
        endpoint: The endpoint.
        key: The key of its stream, or None.
        replicas: How many replicas `wait_replicas` needs.
    """

    def __init__(self, endpoint: Endpoint, key: bytes | None, replicas: int) -> None:
        self._endpoint = endpoint
        self._key = key
        self._replicas = replicas
        self._topology = _topology(endpoint)

    def take(self) -> Iterator[Finding]:
        """Yield the findings as they are made. Nothing is changed on any server."""
        if self._topology == "sentinel":
            for place, address in enumerate(self._endpoint.nodes or ()):
                yield from self._sentinel(place, address)
        node = _Node(self._endpoint)
        try:
            steps = node.connect()
            yield from steps
            if any(step.state == "fail" for step in steps):
                yield from (_undecided(mode) for mode in MODES)
            else:
                yield from self._server(node)
        finally:
            node.close()

    def _server(self, node: _Node) -> Iterator[Finding]:
        try:
            state, skew = node.state(self._key)
            if state.mode == "cluster" and self._endpoint.topology == "auto" and self._endpoint.host is not None:
                self._topology = "cluster"
            found = server_state.findings_of(
                state, has_key=self._key is not None, endpoint_is=self._topology, skew=skew
            )
            yield from found
            yield _time_zones()
            rights = None
            if self._key is not None:
                rights, seconds = node.rights(state, self._key)
                yield _acl(rights, state.user, seconds, is_new=state.key_type in (None, "none"))
            if self._topology == "cluster":
                yield from self._cluster(node)
        except (ConnectionFailedError, CommandError) as error:
            code = getattr(error, "code", None)
            passes = isinstance(error, ConnectionFailedError) or (code in CODES and CODES[code].passes)
            yield Finding("SERVER", "fail", str(error), passes=passes, code=code)
            yield from (_undecided(mode) for mode in MODES)
            return
        yield from (verdict(mode, state, rights, self._replicas) for mode in MODES)

    def _sentinel(self, place: int, address: str) -> Iterator[Finding]:
        """Check a sentinel. One that does not answer is only a warning: the others may answer."""
        title = f"the sentinel {address}"
        node = _Node(self._endpoint, sentinel=place)
        try:
            for finding in node.connect():
                yield replace(finding, node=title, state="warn" if finding.state == "fail" else finding.state)
                if finding.state == "fail":
                    return
            master = (self._endpoint.sentinel_master or "").encode()
            named = node.ask(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", master)
            if isinstance(named, list) and len(named) == 2:
                host, port = (part.decode("utf-8", "replace") for part in named)
                yield Finding("master", "ok", f"{host}:{port}", node=title, details={"host": host, "port": port})
            else:
                why = str(named) if isinstance(named, CommandError) else "it knows no master with this name"
                yield Finding("master", "warn", f"{why}: check --sentinel-master", node=title)
            quorum = node.ask(b"SENTINEL", b"CKQUORUM", master)
            if isinstance(quorum, bytes):
                yield Finding("quorum", "ok", quorum.decode("utf-8", "replace").removeprefix("OK "), node=title)
            else:
                state = "unknown" if isinstance(quorum, CommandError) and quorum.code == "NOPERM" else "warn"
                yield Finding("quorum", "unknown" if state == "unknown" else "warn", str(quorum), node=title)
        except ConnectionFailedError as error:
            yield Finding("SERVER", "warn", str(error), node=title)
        finally:
            node.close()

    def _cluster(self, node: _Node) -> Iterator[Finding]:
        """Check the cluster and each node: a stream may move to any, and a replica may become its master."""
        reply = node.ask(b"CLUSTER", b"INFO")
        if isinstance(reply, bytes):
            lines = dict(line.partition(b":")[::2] for line in reply.splitlines())
            is_whole = lines.get(b"cluster_state") == b"ok"
            served = int(lines.get(b"cluster_slots_ok", b"0"))
            text = f"{served} of 16384 slots are served" + ("" if is_whole else ": keys in the others fail")
            yield Finding("cluster", "ok" if is_whole else "warn", text, details={"slots_ok": served})
        else:
            yield Finding("cluster", "unknown", "the user may not ask: +cluster|info")
        for host, port, role in _nodes(node.ask(b"CLUSTER", b"SLOTS"), self._node_map()):
            yield self._member(host, port, role)

    def _member(self, host: str, port: int, role: str) -> Finding:
        title = f"{host}:{port}"
        node = _Node(self._endpoint, node=(host, port))
        try:
            steps = node.connect()
        finally:
            node.close()
        wrong = [step for step in steps if step.state != "ok"]
        took = sum(step.seconds or 0.0 for step in steps)
        if wrong:
            return Finding("node", "warn", f"{role}: {wrong[-1].text}", took, title, details={"role": role})
        days = [step.details["days"] for step in steps if "days" in step.details]
        text = role + "".join(f", its certificate is valid for {count} days" for count in days)
        return Finding("node", "ok", text, took, title, details={"role": role})

    def _node_map(self) -> dict[str, str]:
        """Where to connect to, by the address that a node announces."""
        given = self._endpoint.node_map or ""
        if given.lstrip().startswith("{"):
            return dict(json.loads(given))
        return dict(part.strip().partition("=")[::2] for part in given.split(",") if part)


def _topology(endpoint: Endpoint) -> str:
    """The topology of an endpoint."""
    if endpoint.topology != "auto":
        return endpoint.topology
    if endpoint.nodes is None:
        return "single"
    return "cluster" if endpoint.sentinel_master is None else "sentinel"


def _nodes(reply: object, node_map: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """The nodes of the reply to CLUSTER SLOTS: where to connect, and their role."""
    found: dict[tuple[str, int], str] = {}
    for slots in reply if isinstance(reply, list) else []:
        for place, (name, port, *_) in enumerate(slots[2:]):
            if isinstance(name, bytes) and name not in (b"", b"?"):
                shown = f"{name.decode('utf-8', 'replace')}:{port}"
                host, _, mapped = node_map.get(shown, shown).rpartition(":")
                found.setdefault((host, int(mapped)), "replica" if place else "master")
    return [(host, port, role) for (host, port), role in sorted(found.items())]


def _time_zones() -> Finding:
    """The time zones of this machine, with which timestamps become text."""
    version, folder = time_zones()
    text = f"{version} of IANA, " + ("compiled in" if folder is None else f"in {folder}")
    details = {"version": version, "folder": None if folder is None else str(folder)}
    return Finding("time zones", "ok", text, details=details)


def _acl(rights: Rights, user: bytes, seconds: float, *, is_new: bool) -> Finding:
    name = user.decode("utf-8", "replace")
    missing = [mode for mode in NEEDS if rights.missing(mode, is_new=is_new)]
    unknown = [mode for mode in NEEDS if rights.unknown(mode, is_new=is_new)]
    details = {"user": name, "missing": missing, "unknown": unknown}
    if len(unknown) == len(NEEDS):
        why = "; ".join(rights.unknown("plain", is_new=is_new))
        return Finding("ACL", "unknown", f"user {name}: {why}", seconds, details=details)
    if missing:
        return Finding("ACL", "warn", f"user {name} lacks rights for {', '.join(missing)}", seconds, details=details)
    return Finding("ACL", "ok", f"user {name} has the rights for each mode", seconds, details=details)


def _undecided(mode: str) -> Finding:
    return Finding(f"mode {mode}", "unknown", "there is no connection")


def required(findings: Sequence[Finding], modes: Sequence[str], *, is_strict: bool) -> list[Finding]:
    """Return the findings that make the command fail: those of the connection and of the requested modes."""
    names = {f"mode {mode}" for mode in modes}
    bad = ("fail", "unknown") if is_strict else ("fail",)
    return [
        finding
        for finding in findings
        if (finding.state == "fail" and not finding.is_mode) or (finding.name in names and finding.state in bad)
    ]


class _Node:
    """A connection to a server, and what it reveals.

    Args:
        endpoint: The endpoint.
        node: A node of its cluster, by host and port, instead of the one with the stream.
        sentinel: One of its sentinels, by index.
    """

    def __init__(self, endpoint: Endpoint, node: tuple[str, int] | None = None, sentinel: int | None = None) -> None:
        self._endpoint = endpoint
        self._commands = Commands(endpoint, node, sentinel)
        self._user = endpoint.username if sentinel is None else endpoint.sentinel_username

    def connect(self) -> list[Finding]:
        """Connect, and return the result of each step."""
        began = time.monotonic()
        steps, failure = self._commands.connect()
        total = time.monotonic() - began
        is_verified = not self._endpoint.tls_insecure_skip_verify
        now = datetime.now(UTC)
        return list(connect_steps.findings_of(steps, failure, total, now, is_verified=is_verified))

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()

    def ask(self, *words: bytes) -> object:
        """Return the reply to a command, which may be an error reply."""
        return self._commands.call([(None, list(words))], writes=False)[0]

    def state(self, key: bytes | None) -> tuple[ServerState, float | None]:
        """Return what the server reports about itself, and how far its clock is ahead, in seconds.

        Raises:
            ConnectionFailedError: The connection was lost.
        """
        state, skew = ServerState(), None
        with self._timed(state, "HELLO"):
            hello = self.ask(b"HELLO", b"2")
        if isinstance(hello, list):
            state.read_hello(hello)
        with self._timed(state, "INFO"):
            info = self.ask(b"INFO")
        if isinstance(info, bytes):
            state.read_info(info)
        began = time.time()
        with self._timed(state, "TIME"):
            reply = self.ask(b"TIME")
        if isinstance(reply, list):
            seconds, micros = (int(part) for part in reply)
            skew = seconds + micros / 1e6 - (began + time.time()) / 2
        whoami = self.ask(b"ACL", b"WHOAMI")
        state.user = whoami if isinstance(whoami, bytes) else (self._user or "default").encode()
        replies = {"HELLO": hello, "INFO": info, "TIME": reply}
        if key is not None:
            with self._timed(state, "TYPE"):
                replies["TYPE"] = kind = self.ask(b"TYPE", key)
            if isinstance(kind, bytes):
                state.key_type = kind.decode("ascii", "replace")
        for command, said in replies.items():
            if isinstance(said, CommandError):
                state.refusals[command] = _refusal(command, said)
        return state, skew

    def rights(self, state: ServerState, key: bytes) -> tuple[Rights, float]:
        """Return what the user may do, and how long it took to ask."""
        rights, began = Rights(key, state.user), time.monotonic()
        if state.has(_DRYRUN_SINCE) is False:
            rights.note_unknown("servers before Redis 7.0 have no ACL DRYRUN")
            return rights, 0.0
        requests = rights.requests()
        commands: Sequence[tuple[bytes | None, list[bytes]]] = [(None, words) for _, words in requests]
        for (need, _), reply in zip(requests, self._commands.call(commands, writes=False), strict=True):
            rights.note(need, reply)
        return rights, time.monotonic() - began

    @contextmanager
    def _timed(self, state: ServerState, command: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        state.seconds[command] = time.monotonic() - began


def _refusal(command: str, error: CommandError) -> str:
    if error.code == "NOPERM":
        return f"the user may not ask: +{command.lower()}"
    return str(error)
