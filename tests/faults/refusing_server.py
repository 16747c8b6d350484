"""A fake server that refuses chosen rows, for dispatchers in any mode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from support.fake_server import Peer, entry_id

#: Arguments of a script call before its rows: EVALSHA, script, 2, stream, marker, and six numbers.
_RUN_HEAD = 11


def payload_of(row: int) -> bytes:
    """The payload that identifies a row."""
    return b"row-%d-canary" % row


class RefusingServer:
    """A script for `FakeServer`: each row gets an entry ID, or the error reply that `refused` contains for it.

    With `whole` the error replies to the whole script call, as if the server did not run the script; otherwise to the
    XADD inside it. With `once` a row that is sent again is accepted. With `ends` the connection ends after the first
    protocol error.
    """

    def __init__(
        self, refused: Mapping[int, str], *, whole: bool = False, once: bool = False, ends: bool = False
    ) -> None:
        self._refused = dict(refused)
        self._whole, self._once, self._ends = whole, once, ends
        self._markers: dict[bytes, int] = {}
        self._ids = itertools.count(1)
        self.accepted: list[int] = []
        """The rows that got entry IDs, in order."""

    def __call__(self, peer: Peer) -> None:
        while commands := peer.commands(1):
            reply = self.reply(commands[0])
            peer.send(reply)
            if self._ends and reply.startswith(b"-ERR Protocol"):
                return

    def reply(self, command: list[bytes]) -> bytes:
        """The reply to a command."""
        match command[0]:
            case b"XADD":
                (row,) = _rows(command)
                return _error(text) if (text := self._refusal(row)) else self._accept(row)
            case b"EVALSHA" | b"EVAL":
                return self._run(command) if len(command) > _RUN_HEAD else b"+ready\r\n"
            case b"HELLO":
                return _array([_bulk("server"), _bulk("redis"), _bulk("version"), _bulk("8.6.3")])
            case b"XINFO":
                settings = {"idmp-duration": 86_400, "idmp-maxsize": 100, "iids-tracked": 0}
                return _array(itertools.chain(*([_bulk(name), b":%d\r\n" % n] for name, n in settings.items())))
            case name:
                raise AssertionError(f"{name!r} was not expected")

    def _run(self, command: list[bytes]) -> bytes:
        """Do what the script does."""
        marker, (_, start, first, count) = command[4], map(int, command[5:9])
        rows = _rows(command[_RUN_HEAD:])
        assert len(rows) == count
        if self._whole and (texts := [text for row in rows if (text := self._refusal(row))]):
            return _error(texts[0])
        if (at := self._markers.get(marker, 0)) < start:
            return _error(f"GAP {at}")
        done, ids, refusal = max(at - first, 0), [], None
        for row in rows[done:]:
            if refusal := self._refusal(row):
                break
            ids.append(self._accept(row))
        self._markers[marker] = first + done + len(ids)
        return _array([b":%d\r\n" % done, _bulk((refusal or "")[:512]), b":%d\r\n" % len(ids), *ids])

    def _refusal(self, row: int) -> str | None:
        return self._refused.pop(row, None) if self._once else self._refused.get(row)

    def _accept(self, row: int) -> bytes:
        self.accepted.append(row)
        return entry_id(next(self._ids))


def _rows(command: list[bytes]) -> list[int]:
    """The rows whose payloads are among these arguments."""
    return [int(found[1]) for argument in command if (found := re.fullmatch(rb"row-(\d+)-canary", argument))]


def _error(text: str) -> bytes:
    return f"-{text}\r\n".encode()


def _bulk(text: str) -> bytes:
    return f"${len(text)}\r\n{text}\r\n".encode()


def _array(parts: Iterable[bytes]) -> bytes:
    parts = list(parts)
    return b"*%d\r\n" % len(parts) + b"".join(parts)
