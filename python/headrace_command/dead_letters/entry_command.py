"""The commands that write an entry again and delete its letter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace_command.dead_letters.letter import Letter

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["EntryCommand"]

#: An ID that no entry has: no entry could follow it.
_NO_LETTER = b"18446744073709551615-18446744073709551615"
#: Adds an entry, then deletes the letter. XADD is the first command that writes, so if it is refused, nothing has
#: changed. A letter that no longer exists was already replayed or dropped, so the script can be sent again after a lost
#: reply.
_MOVE = b"""\
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return false end
local added = redis.call('XADD', KEYS[2], unpack(ARGV, 2))
if not added then return redis.error_reply('NO_STREAM the stream does not exist, and nomkstream is on') end
redis.call('XDEL', KEYS[1], ARGV[1])
return added
"""


class EntryCommand:
    """Makes the commands for a stream of letters.

    Args:
        letters: The key of the stream of letters.
        layout: An endpoint with the options of XADD.
        payload_field: The name of the field with the payload of Spark's letters.
        ts_field: The name of a field with the time, or None.
    """

    def __init__(self, letters: bytes, layout: Endpoint, payload_field: str, ts_field: str | None) -> None:
        self._letters = letters
        self._options = [*_trimming(layout), b"*"]
        self._payload_field = payload_field.encode()
        self._ts_field = None if ts_field is None else ts_field.encode()

    def move(self, letter: Letter, to: bytes) -> list[bytes]:
        """Add the entry and delete the letter in one step."""
        return [b"EVAL", _MOVE, b"2", self._letters, to, letter.entry_id, *self._options, *self._fields(letter)]

    def add(self, letter: Letter, to: bytes) -> list[bytes]:
        """Add the entry alone."""
        return [b"XADD", to, *self._options, *self._fields(letter)]

    def delete(self, letter: Letter) -> list[bytes]:
        """Delete the letter alone."""
        return [b"XDEL", self._letters, letter.entry_id]

    def check(self) -> list[bytes]:
        """Delete a letter that does not exist, to learn before the first entry is added whether letters may be deleted.

        A script that adds an entry but may not delete the letter would leave both.
        """
        return [b"XDEL", self._letters, _NO_LETTER]

    def has_fields(self, letter: Letter) -> bool:
        """Return whether there is something to write: the payload of a Spark row may have been null."""
        return bool(letter.own)

    def _fields(self, letter: Letter) -> Sequence[bytes]:
        own = letter.own
        if letter.is_of_row:
            own = [(self._payload_field, value) for _, value in own]
        words = [part for pair in own for part in pair]
        if self._ts_field is not None:
            words += [self._ts_field, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()]
        return words


def _trimming(layout: Endpoint) -> list[bytes]:
    words = [b"NOMKSTREAM"] if layout.nomkstream else []
    sign = b"=" if layout.maxlen_approximate is False else b"~"
    if layout.minid:
        words += [b"MINID", sign, str(layout.minid).encode()]
    elif layout.maxlen:
        words += [b"MAXLEN", sign, b"%d" % layout.maxlen]
    return words
