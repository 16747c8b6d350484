"""Prepared bytes, sent while replies are read: the maximum throughput of a line and a server.

The floor of `benches.contenders` either sends or reads, and therefore needs a window. Here the window may be unlimited,
whatever the round trip, and the rows may be of any kind.
"""

from __future__ import annotations

import select
from itertools import chain, repeat

from benches.contenders.common import SILENCE, connect, now, packed, payloads, receive
from benches.contenders.floor import chunked
from benches.turns import Run, Target

#: The columns of `benches.spark_session.typed_rows`.
TYPED = ("order_id", "weight", "customer", "express", "placed", "total")


def prepare(target: Target, window: int = 0, typed: bool = False) -> Run:
    """Send with at most `window` unanswered commands (0: unlimited). `typed`: six fields instead of a payload.

    It reads while it writes: a server stops reading from a client that does not read its replies.
    """
    ts, head = now(), ("XADD", target.stream_key, "MAXLEN", "~", target.maxlen, "*")
    fields = [typed_fields(n) for n in range(target.batch)] if typed else [["payload", p] for p in payloads(target)]
    commands = [packed(*head, *row, "ts", ts) for row in fields]
    chunks = [(count, memoryview(chunk)) for count, chunk in chunked(commands)]

    def run() -> int:
        stored = sent = 0
        waiting = chain.from_iterable(repeat(chunks, target.rows // target.batch))
        count, chunk = next(waiting)
        with connect(target) as connection:
            connection.setblocking(False)
            poll = select.poll()
            while stored < target.rows:
                has_room = bool(chunk) and (not window or sent - stored + count <= window)
                poll.register(connection, select.POLLIN | (select.POLLOUT if has_room else 0))
                events = sum(events for _, events in poll.poll(SILENCE * 1000))
                if not events:  # an error reply has no `$`: the turn then times out
                    raise TimeoutError(f"{target.rows - stored:,} replies did not come")
                if events & ~select.POLLOUT:
                    stored += receive(connection).count(b"$")
                if events & select.POLLOUT:
                    chunk = chunk[connection.send(chunk) :]
                    if not chunk:
                        sent += count
                        count, chunk = next(waiting, (0, chunk))
        return stored

    return run


def typed_fields(number: int) -> list[str | bytes]:
    """Names and values as headrace writes those of `typed_rows`, with numbers as long as most in a million rows."""
    values = (
        f"{500_000 + number}",
        f"{185_000 + number * 0.37:.2f}",
        f"customer-{number % 9973}",
        "true" if number % 3 == 0 else "false",
        f"2026-04-21T03:{number // 60 % 60:02d}:{number % 60:02d}.234567Z",
        f"{number}.{number % 100:02d}",
    )
    return [text for pair in zip(TYPED, values, strict=True) for text in pair]
