"""Memory stays bounded, however many rows there are."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from headrace.server import LocalServer
from support.pipelines import KEY

Connect = Callable[..., Any]

TEN_MILLION = """
import json, sys
import pyarrow as pa
from headrace import Dispatcher, Endpoint
from support.processes import PeakMemory

def batch(number):
    payloads = [b"%011d-" % row + b"x" * 108 for row in range(number * 10_000, (number + 1) * 10_000)]
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})

batches = [batch(number) for number in range(100)]
endpoint = Endpoint(unix_socket=sys.argv[1], stream_key=sys.argv[2], maxlen=10_000, trim_every=100)
delivered = 0
with Dispatcher(endpoint) as dispatcher:
    for number in range(1_000):
        dispatcher.produce_batch(batches[number % 100])
        report = dispatcher.poll()
        delivered += report.delivered
        assert not report.failed_by_code
        if number == 0:
            memory = PeakMemory()
    report = dispatcher.flush()
    delivered += report.delivered
    growth = memory.growth
print(json.dumps({"delivered": delivered, "failed": len(report.failed), "growth": growth}))
"""


def test_ten_million_rows(any_server: LocalServer, connect: Connect) -> None:
    """The peak is less than 64 MiB over the state after the first record batch."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(TEN_MILLION), any_server.unix_socket, KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(f"grew by {result['growth'] / 2**20:.1f} MiB")
    assert result["delivered"] == 10_000_000
    assert result["failed"] == 0
    assert result["growth"] < 64 * 2**20
    client = connect(any_server)
    assert client.xinfo_stream(KEY)["length"] < 10_000 + 100 + 100  # a node and trim_every more
    assert client.xrevrange(KEY, count=1)[0][1][b"payload"].startswith(b"00000999999-")
