"""Reads a stream of dead letters by pages, up to the letter that was the last one at the start, and deletes letters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

from headrace import CommandError, ConnectionFailedError
from headrace.admin import Commands, DeadLetter
from headrace_command.dead_letters.tally import Tally
from headrace_command.exit_code import UsageError

__all__ = ["LetterStream"]

#: Letters per page: initially and at most.
_FIRST, _MOST = 10, 500
#: The target size of a page, in bytes.
_BYTES = 4 << 20
_ID = re.compile(r"[0-9]{1,20}(?:-[0-9]{1,20})?")


class LetterStream:
    """The letters of a stream.

    Args:
        commands: A connection.
        key: The key of the stream.
    """

    def __init__(self, commands: Commands, key: bytes) -> None:
        self._commands = commands
        self._key = key

    def tail(self) -> bytes | None:
        """Return the ID of the current last letter, or None if there is no letter."""
        last = self._range(b"XREVRANGE", b"+", b"-", 1)
        return last[0].entry_id if last else None

    def pages(self, end: bytes) -> Iterator[list[DeadLetter]]:
        """Yield all letters up to this ID. A page has at most 500 letters, and some MiB if letters are of like size."""
        start, count = b"-", _FIRST
        while page := self._page(start, end, count):
            yield page
            start = b"(" + page[-1].entry_id
            average = max(1, sum(letter.size for letter in page) // len(page))
            count = max(1, min(_MOST, _BYTES // average, count * 4))

    def find(self, ids: Sequence[str]) -> tuple[list[DeadLetter], list[str]]:
        """Return the letters with these IDs, in stream order, and the IDs that no letter has."""
        found, missing = {}, []
        for text in ids:
            if not _ID.fullmatch(text):
                raise UsageError(f"an ID is <milliseconds>-<number>, not {text!r}")
            whole = (text if "-" in text else text + "-0").encode()
            letters = self._range(b"XRANGE", whole, whole, 1)
            if letters:
                found[letters[0].entry_id] = letters[0]
            else:
                missing.append(text)
        order = sorted(found, key=lambda entry_id: tuple(map(int, entry_id.split(b"-"))))
        return [found[entry_id] for entry_id in order], missing

    def remove(self, letters: Sequence[DeadLetter], tally: Tally) -> None:
        """Delete these letters, and add the outcomes to the tally.

        Raises:
            ConnectionFailedError: The connection was lost. The letters in flight are noted as unknown.
        """
        requests = [(self._key, [b"XDEL", self._key, letter.entry_id]) for letter in letters]
        if not requests:
            return
        try:
            replies = self._commands.call(requests, writes=True)
        except (ConnectionFailedError, KeyboardInterrupt):
            for letter in letters:
                tally.add(letter, "unknown")
            raise
        for letter, reply in zip(letters, replies, strict=True):
            if isinstance(reply, CommandError):
                tally.add(letter, "failed", error=str(reply))
            else:
                tally.add(letter, "done" if reply else "gone")

    def _page(self, start: bytes, end: bytes, count: int) -> list[DeadLetter]:
        """The next letters, or a single one if they exceed the largest allowed reply."""
        try:
            return self._range(b"XRANGE", start, end, count)
        except ConnectionFailedError as error:
            if count == 1 or "too large" not in str(error):
                raise
        return self._range(b"XRANGE", start, end, 1)

    def _range(self, command: bytes, start: bytes, end: bytes, count: int) -> list[DeadLetter]:
        words = [command, self._key, start, end, b"COUNT", b"%d" % count]
        (reply,) = self._commands.call([(self._key, words)], writes=False)
        if isinstance(reply, CommandError):
            raise reply
        entries = cast(list[tuple[bytes, list[bytes]]], reply)
        return [DeadLetter.read(entry_id, fields) for entry_id, fields in entries]
