"""What happens to a connection at one of its bytes, once a message of a stream goes out on it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from faults.proxy import Act, Direction, Pair, Proxy
from support.processes import wait_until

#: How many bytes of a connection pass at most before it ends: some batches of requests, or of replies.
END = 60_000

#: About as many bytes of replies come before those to messages with TLS: its handshake, with the certificate.
HANDSHAKE = 1_500


class Strike:
    """Act on a connection, at a byte of one of its directions that chance chooses among the next `most`.

    Connections without a message of the stream are left alone: those of replicas, and of nodes that move a slot.
    With `tls` nothing shows what is in a connection, and only clients connect to the proxy: the bytes of all of them
    count, also those of the handshake.
    """

    def __init__(self, proxy: Proxy, key: str, chance: random.Random, most: int, act: Act, *, tls: bool) -> None:
        self._proxy = proxy
        self._pattern = rb"(?:XADD|EVAL).{0,200}\r\n\$%d\r\n%s\r\n" % (len(key), re.escape(key.encode()))
        # Replies are much shorter, those of the script above all.
        self._direction: Direction = chance.choice(["requests", "replies"])
        bytes_of_replies = most // 20 + (HANDSHAKE if tls else 0)
        self._count = chance.randrange(most if self._direction == "requests" else bytes_of_replies)
        self._act = act
        self._pair: Pair | None = None
        self._hit: Pair | None = None
        if tls:
            proxy.at(self._direction, self._count, self._strike)
        else:
            self._await_message()

    def wait(self, seconds: float) -> None:
        """Wait until it has happened, and the proxy has nothing of the connection left."""
        wait_until(self._is_over, seconds)

    def _await_message(self) -> None:
        self._pair = None
        self._proxy.within("requests", self._pattern, 0.0, self._begin)

    def _begin(self, pair: Pair) -> None:
        self._proxy.at(self._direction, self._count, self._strike, pair)
        self._pair = pair

    def _strike(self, pair: Pair) -> None:
        self._hit = pair
        self._act(pair)

    def _is_over(self) -> bool:
        if self._hit is None and self._pair is not None and self._pair.over:
            # It ended by itself before that byte.
            self._await_message()
        return self._hit is not None and self._hit.over


def end(chance: random.Random) -> Act:
    """The connection ends, in one of the ways in which connections do."""
    ways: list[Callable[[Pair], object]] = [
        Pair.reset,
        Pair.finish,
        lambda pair: pair.end("requests"),
        lambda pair: pair.end("replies"),
    ]
    return chance.choice(ways)


def late(seconds: float) -> Act:
    """The client is left alone, and the server gets what was under way only `seconds` later."""

    def act(pair: Pair) -> None:
        pair.hold("requests", seconds)
        pair.end("replies")

    return act
