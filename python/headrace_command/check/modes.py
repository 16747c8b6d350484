"""The modes: which rights and what kind of server each needs, and so whether it is possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace import CommandError
from headrace_command.check.finding import Finding
from headrace_command.check.server_state import ServerState
from headrace_command.text import printable

__all__ = ["NEEDS", "Need", "Rights", "verdict"]

_READS = ("reader", "inspect")
_SINCE = {"idmp": (8, 6, 2), "wait_aof": (7, 2)}


class Need(NamedTuple):
    """A command that a mode sends.

    Attributes:
        right: As in an ACL rule.
        words: The command, with `KEY` and `MARKER` for the stream and a marker of a batch.
        is_of_new: Whether it is needed only for a stream that does not exist yet.
    """

    right: str
    words: str
    is_of_new: bool = False


_PLAIN = [Need("+xadd", "XADD KEY * f v")]
_SCRIPT = [Need("+eval", "EVAL SCRIPT 2 KEY MARKER"), Need("+evalsha", "EVALSHA SHA 2 KEY MARKER")]
_READ = [
    Need("+xrange", "XRANGE KEY - +"),
    Need("+xrevrange", "XREVRANGE KEY + -"),
    Need("+xread", "XREAD STREAMS KEY 0"),
]
#: What each mode sends: docs/exactly-once.md, docs/reading.md, docs/groups.md.
NEEDS: Mapping[str, Sequence[Need]] = {
    "plain": _PLAIN,
    "trimming": [Need("+xadd", "XADD KEY MAXLEN ~ 1000 * f v")],
    "script": [*_PLAIN, *_SCRIPT, Need("+get", "GET MARKER"), Need("+set", "SET MARKER 1 EX 1")],
    "idmp": [
        *_PLAIN,
        Need("+xinfo|stream", "XINFO STREAM KEY"),
        Need("+xcfgset", "XCFGSET KEY IDMP-DURATION 100"),
        Need("+xgroup|create", "XGROUP CREATE KEY g $ MKSTREAM", is_of_new=True),
        Need("+xgroup|destroy", "XGROUP DESTROY KEY g", is_of_new=True),
    ],
    "wait_replicas": [*_PLAIN, Need("+wait", "WAIT 1 1")],
    "wait_aof": [*_PLAIN, Need("+waitaof", "WAITAOF 1 0 1")],
    "reader": [*_READ, Need("+xinfo|stream", "XINFO STREAM KEY")],
    "consumer": [
        Need("+xreadgroup", "XREADGROUP GROUP g c STREAMS KEY >"),
        Need("+xpending", "XPENDING KEY g"),
        Need("+xautoclaim", "XAUTOCLAIM KEY g c 0 0"),
        Need("+eval", "EVAL SCRIPT 1 KEY"),
        Need("+evalsha", "EVALSHA SHA 1 KEY"),
        Need("+xack", "XACK KEY g 0-1"),
        Need("+xclaim", "XCLAIM KEY g c 0 0-1"),
        Need("+xgroup|create", "XGROUP CREATE KEY g $ MKSTREAM"),
    ],
    "inspect": [
        Need("+xinfo|stream", "XINFO STREAM KEY"),
        Need("+xinfo|groups", "XINFO GROUPS KEY"),
        Need("+xinfo|consumers", "XINFO CONSUMERS KEY g"),
        Need("+xpending", "XPENDING KEY g"),
    ],
}


class Rights:
    """The server's answer for each need.

    Args:
        key: The key of the stream.
        user: The ACL user.
    """

    def __init__(self, key: bytes, user: bytes) -> None:
        self._key = key
        self._user = user
        self._missing: set[Need] = set()
        self._unknown: dict[Need, str] = {}

    def requests(self) -> list[tuple[Need, list[bytes]]]:
        """Return the commands to send."""
        marker = b"{%s}:headrace:check" % self._key
        places = {"KEY": self._key, "MARKER": marker, "SCRIPT": b"return 0", "SHA": b"0" * 40}
        needs = dict.fromkeys(need for mode in NEEDS.values() for need in mode)
        words = {need: [places.get(word, word.encode()) for word in need.words.split(" ")] for need in needs}
        return [(need, [b"ACL", b"DRYRUN", self._user, *command]) for need, command in words.items()]

    def note(self, need: Need, reply: object) -> None:
        """Note a reply: OK, a sentence that names what is missing, or an error."""
        if isinstance(reply, CommandError):
            self._unknown[need] = _why(reply)
        elif reply != b"OK":
            self._missing.add(need)

    def note_unknown(self, why: str) -> None:
        """Note that nothing could be asked."""
        self._unknown = dict.fromkeys((need for mode in NEEDS.values() for need in mode), why)

    def missing(self, mode: str, *, is_new: bool) -> str:
        """Return the rules that a mode lacks, as ACL SETUSER accepts them; empty if it lacks none."""
        needs = [need for need in NEEDS[mode] if need in self._missing and (is_new or not need.is_of_new)]
        key = printable(self._key)
        markers = f" ~{{{key}}}:headrace:*" if any("MARKER" in need.words for need in needs) else ""
        return f"{' '.join(need.right for need in needs)} ~{key}{markers}" if needs else ""

    def unknown(self, mode: str, *, is_new: bool) -> list[str]:
        """Return why it is unknown whether a mode has its rights, each reason once."""
        needs = [need for need in NEEDS[mode] if need in self._unknown and (is_new or not need.is_of_new)]
        return list(dict.fromkeys(self._unknown[need] for need in needs))


def _why(error: CommandError) -> str:
    text = str(error)
    if error.code == "NOPERM":
        return "the user may not ask for its rights: +acl|dryrun"
    if "not found" in text and "ommand" in text:
        return "the server does not have a command of this mode"
    return text


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
