"""The rights that a mode needs, checked with ACL DRYRUN, which runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace import CommandError
from headrace_command.escape import printable

__all__ = ["NEEDS", "Need", "Rights"]


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
