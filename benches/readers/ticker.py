"""Adds entries to a stream, each with the time at which it was sent; or to several in turn, KEY-0, KEY-1 and so on.

    python -m benches.readers.ticker HOST PORT KEY COUNT [STREAMS]

It begins when its standard input is closed.
"""

from __future__ import annotations

import socket
import sys
import time

from benches.contenders.common import packed

#: Seconds between two entries: by then a reader is waiting again.
PAUSE = 0.001


def main(host: str, port: str, key: str, count: str, streams: str = "") -> None:
    keys = [f"{key}-{number}" for number in range(int(streams))] if streams else [key]
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sys.stdin.read()
        for number in range(int(count)):
            time.sleep(PAUSE)
            connection.sendall(packed("XADD", keys[number % len(keys)], "*", "payload", time.perf_counter_ns()))
            connection.recv(4096)


if __name__ == "__main__":
    main(*sys.argv[1:])
