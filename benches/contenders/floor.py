"""The cost of server and sockets alone: prepared bytes are sent, and replies are counted but not parsed."""

from __future__ import annotations

from itertools import chain, repeat

from benches.contenders.common import connect, now, packed, payloads, receive
from benches.turns import Run, Target

#: Bytes sent at once, but at least one command.
CHUNK_BYTES = 64 * 1024


def prepare(target: Target, window: int = 4_000) -> Run:
    """Send with at most `window` unanswered commands."""
    ts = now()
    head = ("XADD", target.stream_key, "MAXLEN", "~", target.maxlen, "*", "payload")
    chunks = chunked([packed(*head, payload, "ts", ts) for payload in payloads(target)])

    def run() -> int:
        stored = unanswered = 0
        with connect(target) as connection:
            for count, chunk in chain.from_iterable(repeat(chunks, target.rows // target.batch)):
                while unanswered and unanswered > window - count:
                    seen = receive(connection).count(b"$")
                    stored, unanswered = stored + seen, unanswered - seen
                connection.sendall(chunk)
                unanswered += count
            # An error reply has no `$`: the turn then times out.
            while stored < target.rows:
                stored += receive(connection).count(b"$")
        return stored

    return run


def chunked(commands: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the commands in chunks, each with the number of its commands."""
    chunks: list[tuple[int, bytes]] = []
    first = size = 0
    for at, command in enumerate(commands, 1):
        size += len(command)
        if size >= CHUNK_BYTES or at == len(commands):
            chunks.append((at - first, b"".join(commands[first:at])))
            first, size = at, 0
    return chunks
