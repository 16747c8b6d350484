"""The strongest rivals in Python: hiredis packs and parses, and a plain socket carries the bytes."""

from __future__ import annotations

from typing import Any

import hiredis
from benches.contenders.common import connect, now, pipelines, receive
from benches.turns import Run, Target


def prepare(target: Target, ahead: bool = False) -> Run:
    """Pipelines of 1,000, each answered before the next is packed; with `ahead`, the next is packed and sent before."""
    parts = pipelines(target)

    def command(payload: bytes, ts: str) -> bytes:
        arguments: Any = ("XADD", target.stream_key, "MAXLEN", "~", target.maxlen, "*", "payload", payload, "ts", ts)
        packed: bytes = hiredis.pack_command(arguments)  # its stub knows tuples of one argument only
        return packed

    def run() -> int:
        reader = hiredis.Reader()
        stored = unanswered = 0

        def read(until: int) -> int:
            """Read replies until this many are outstanding, and return how many were read."""
            seen = 0
            while unanswered - seen > until:
                reader.feed(receive(connection))
                while (reply := reader.gets()) is not False:
                    if isinstance(reply, hiredis.HiredisError):
                        raise reply
                    seen += 1
            return seen

        with connect(target) as connection:
            for part in parts:
                ts = now()
                connection.sendall(b"".join([command(payload, ts) for payload in part]))
                unanswered += len(part)
                seen = read(until=len(part) if ahead else 0)
                stored, unanswered = stored + seen, unanswered - seen
            return stored + read(until=0)

    return run
