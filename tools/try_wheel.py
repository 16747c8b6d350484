"""Writes messages to a real server with the installed headrace, and reads them back.

tools/try_wheel.py 10000              into a server of PATH, which it starts
tools/try_wheel.py 10000 SOCKET       into the server on a Unix socket
"""

from __future__ import annotations

import platform
import sys
from contextlib import ExitStack

from headrace import Dispatcher, Endpoint, Reader
from headrace.testing import LocalServer


def main() -> int:
    count = int(sys.argv[1])
    with ExitStack() as stack:
        socket = sys.argv[2] if len(sys.argv) > 2 else stack.enter_context(LocalServer()).unix_socket
        endpoint = Endpoint(unix_socket=socket, stream_key="s")
        with Dispatcher(endpoint) as dispatcher:
            for number in range(count):
                dispatcher.produce(str(number), number)
            report = dispatcher.flush()
        with Reader(endpoint, end="latest") as reader:
            read = sum(batch.num_rows for batch in reader)
    print(f"{report.delivered} messages delivered, {len(report.failed)} failed, {read} read, on {platform.machine()}")
    return 0 if report.delivered == read == count else 1


if __name__ == "__main__":
    sys.exit(main())
