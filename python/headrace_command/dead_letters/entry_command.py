"""The commands that write an entry again and delete its letter."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.admin import DeadLetter

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["EntryCommand"]

#: An ID that no entry has.
_NO_ENTRY = b"0-0"
#: Adds an entry, then deletes the letter. A script is not rolled back, so both commands are tried first without effect:
#: if one is refused, nothing has changed. XADD comes first, because a server without memory refuses only the first
#: command of a script that writes. A letter that no longer exists was already replayed or dropped, so the script can be
#: sent again after a lost reply.
_MOVE = b"""\
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return false end
local invalid = {'XADD', KEYS[2], 'no ID', 'a', 'a'}
if not redis.pcall(unpack(invalid)).err:find('stream ID') then return redis.call(unpack(invalid)) end
redis.call('XDEL', KEYS[1], '0-0')
local added = redis.call('XADD', KEYS[2], unpack(ARGV, 2))
if not added then return redis.error_reply('NO_STREAM the stream does not exist, and nomkstream is on') end
redis.call('XDEL', KEYS[1], ARGV[1])
return added
"""
#: The most fields that `_MOVE` passes on: Lua passes about 8,000 values to a command.
_MOST_FIELDS = 3500
#: The ID of the newest entry.
_NEWEST = b"""\
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return newest and newest[1] or ''
"""
#: After XADD in the same transaction: deletes the letter if the newest entry is its own, by the digest of all fields,
#: and not one from before, because XADD may have been refused. If the letter no longer exists, it was replayed or
#: dropped meanwhile, and the entry is taken back.
_FINISH = b"""\
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if not newest or newest[1] == ARGV[3] then return false end
local parts = {}
for at, part in ipairs(newest[2]) do
  parts[2 * at - 1] = #part .. ':'
  parts[2 * at] = part
end
if redis.sha1hex(table.concat(parts)) ~= ARGV[2] then return false end
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then
  redis.call('XDEL', KEYS[2], newest[1])
  return false
end
return newest[1]
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

    def move(self, letter: DeadLetter, to: bytes) -> list[bytes]:
        """Add the entry and delete the letter in one step."""
        return [b"EVAL", _MOVE, b"2", self._letters, to, letter.entry_id, *self._options, *self._fields(letter)]

    def is_wide(self, letter: DeadLetter) -> bool:
        """Return whether the entry has more fields than a script can pass on."""
        return len(letter.own) > _MOST_FIELDS

    def rights(self, to: bytes) -> list[list[bytes]]:
        """What `move_wide` does, but without effect: once the entry is added, a refusal is too late.

        Without the right to MULTI the server would execute each command by itself. The last reply is the ID of the
        stream's newest entry.
        """
        newest = [b"EVAL", _NEWEST, b"1", to]
        return [[b"MULTI"], [b"EXEC"], [b"XDEL", to, _NO_ENTRY], self.check(), newest]

    def move_wide(self, letter: DeadLetter, to: bytes, newest: bytes) -> list[list[bytes]]:
        """Add an entry with any number of fields and delete the letter, in one transaction.

        `newest`: the ID of the stream's newest entry before.
        """
        fields = self._fields(letter)
        digest = hashlib.sha1(b"".join(b"%d:%b" % (len(part), part) for part in fields), usedforsecurity=False)
        arguments = [letter.entry_id, digest.hexdigest().encode(), newest]
        finish = [b"EVAL", _FINISH, b"2", self._letters, to, *arguments]
        return [[b"MULTI"], [b"XADD", to, *self._options, *fields], finish, [b"EXEC"]]

    def add(self, letter: DeadLetter, to: bytes) -> list[bytes]:
        """Add the entry alone."""
        return [b"XADD", to, *self._options, *self._fields(letter)]

    def delete(self, letter: DeadLetter) -> list[bytes]:
        """Delete the letter alone."""
        return [b"XDEL", self._letters, letter.entry_id]

    def check(self) -> list[bytes]:
        """Delete a letter that does not exist, to learn before an entry is added whether letters may be deleted."""
        return [b"XDEL", self._letters, _NO_ENTRY]

    def has_fields(self, letter: DeadLetter) -> bool:
        """Return whether there is something to write: the payload of a Spark row may have been null."""
        return bool(letter.own)

    def _fields(self, letter: DeadLetter) -> Sequence[bytes]:
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
