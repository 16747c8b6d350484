"""Which letters are selected, and which stream the entry of each goes to."""

from __future__ import annotations

import binascii
import os
from argparse import Namespace
from collections import Counter

from headrace.admin import DeadLetter
from headrace_command.exit_code import UsageError

__all__ = ["Destination", "Selection"]

_SLOTS = 16_384


class Selection:
    """Selects letters by their content, and counts those that are skipped, by reason.

    Args:
        arguments: Those of the verb.
        is_replay: Whether letters are written again rather than only dropped.
    """

    def __init__(self, arguments: Namespace, *, is_replay: bool) -> None:
        self._code = None if arguments.only_code is None else arguments.only_code.encode()
        self._includes_unknown = arguments.include_unknown or not is_replay
        self._takes_rows = bool(arguments.payload or arguments.fields or arguments.json) or not is_replay
        self.skipped: Counter[str] = Counter()

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether this letter is selected."""
        why = self._refusal(letter)
        if why is not None:
            self.skipped[why] += 1
        return why is None

    def _refusal(self, letter: DeadLetter) -> str | None:
        if letter.origin == "other":
            return "no dead letter"
        if self._code is not None and letter.code != self._code:
            return "of another code"
        if letter.written not in (None, b"no") and not self._includes_unknown:
            return "written: unknown, so the entry may be in the stream already: --include-unknown"
        if letter.row is not None and not self._takes_rows:
            return "a row without a payload: --payload, --fields or --json says what its entry is"
        return None


class Destination:
    """One stream for all letters, or a letter's own stream if it is allowed.

    Args:
        arguments: Those of the verb.
        letters: The key of the stream of letters.
        is_cluster: Whether the server is a cluster.
    """

    def __init__(self, arguments: Namespace, letters: bytes, *, is_cluster: bool) -> None:
        self._to = None if arguments.to is None else os.fsencode(arguments.to)
        self._allowed = {os.fsencode(name) for name in arguments.allow_stream}
        self._letters = letters
        self._is_cluster = is_cluster
        if self._to is None and not self._allowed:
            raise UsageError(
                "replay needs --to STREAM, or --allow-stream STREAM for letters that go back to their stream"
            )
        if self._to is not None and self._allowed:
            raise UsageError("--to sends all letters to one stream: leave --allow-stream out")
        if letters in (self._to, *self._allowed):
            raise UsageError("the entries would become letters again: --to and --allow-stream must name another stream")

    def of(self, letter: DeadLetter) -> bytes | None:
        """Return the key of the stream; None if the letter's own stream is not allowed."""
        if self._to is not None:
            return self._to
        return letter.stream if letter.stream in self._allowed else None

    def is_beside(self, key: bytes, *, is_wide: bool) -> bool:
        """Whether one step can write this stream and delete the letter: a script, or a transaction for a wide entry.

        Nodes of a cluster redirect each command of a transaction alone.
        """
        return not self._is_cluster or (_slot(key) == _slot(self._letters) and not is_wide)


def _slot(key: bytes) -> int:
    """The cluster slot of a key: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>."""
    _, opening, rest = key.partition(b"{")
    tag, closing, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if opening and closing and tag else key, 0) % _SLOTS
