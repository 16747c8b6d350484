"""Memory stays bounded, however many rows there are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.testing import LocalServer
from support.pipelines import KEY

pytestmark = pytest.mark.thorough

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


MESSAGE_IDS = """
import json, sys
import pyarrow as pa
from headrace import Dispatcher, Endpoint
from support.processes import PeakMemory

ROWS, BATCHES = 10_000, 60

def batches(kind, count):
    for number in range(count):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()).cast(kind)
        yield pa.record_batch({"payload": pa.array([b"x" * 400] * ROWS, pa.binary()), "id": ids})

endpoint = Endpoint(unix_socket=sys.argv[1], stream_key=sys.argv[2], maxlen=1_000, trim_every=100)
growth, last = {}, {}
with Dispatcher(endpoint) as dispatcher:
    for kind in (pa.int64(), pa.utf8()):
        def produce(count):
            rows = batches(kind, count)
            schema = next(batches(kind, 1)).schema
            dispatcher.produce_batch(pa.RecordBatchReader.from_batches(schema, rows), message_id="id")
            return dispatcher.flush().raise_for_failures()
        produce(3)
        memory = PeakMemory()
        report = produce(BATCHES)
        growth[str(kind)] = memory.growth
        last[str(kind)] = pa.table(report.to_arrow())["message_id"][-1].as_py()
        del report
print(json.dumps({"growth": growth, "last": last}))
"""

LARGE = """
import json, os, resource, sys
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # which gives large blocks back at once
import pyarrow as pa
from headrace import Dispatcher, Endpoint

def held():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

def produce_payload():
    dispatcher.produce(b"y" * (200 << 20))

def large_row():
    return pa.record_batch({"a": pa.array(["y" * (100 << 20)])})

def produce_json():
    dispatcher.produce_batch(large_row(), json=True)

large_row()  # pyarrow keeps something of its first one
kept = {}
where = {"refused": Endpoint(unix_socket="/nonexistent", stream_key="s"),
         "stored": Endpoint(unix_socket=sys.argv[1], stream_key=sys.argv[2], maxlen=1, maxlen_approximate=False)}
for name, endpoint in where.items():
    for produce in (produce_payload, produce_json):
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().ok == (name == "stored")
            before = held()
            produce()
            assert dispatcher.flush().ok == (name == "stored")
            kept[f"{produce.__name__}, {name}"] = held() - before
print(json.dumps(kept))
"""


def run(code: str, server: LocalServer) -> Any:
    """The JSON output of a separate Python process."""
    command = [sys.executable, "-W", "error", "-c", code, server.unix_socket, KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return json.loads(done.stdout)


def test_memory_is_bounded_over_ten_million_rows(any_server: LocalServer, connect: Connect) -> None:
    """The peak is less than 64 MiB above the state after the first record batch."""
    result = run(TEN_MILLION, any_server)
    assert result["delivered"] == 10_000_000
    assert result["failed"] == 0
    assert result["growth"] < 64 * 2**20
    client = connect(any_server)
    assert client.xinfo_stream(KEY)["length"] < 10_000 + 100 + 100  # a node and trim_every more
    assert client.xrevrange(KEY, count=1)[0][1][b"payload"].startswith(b"00000999999-")


def test_reports_keep_message_ids_but_no_payloads(any_server: LocalServer) -> None:
    """229 MiB of payloads pass through one call; the report keeps only the IDs of its rows."""
    result = run(MESSAGE_IDS, any_server)
    assert result["last"] == {"int64": "599999", "string": "599999"}
    assert set(result["growth"]) == set(result["last"])
    assert max(result["growth"].values()) < 64 * 2**20


def test_large_messages_are_freed(any_server: LocalServer) -> None:
    """One of 200 MiB, and one of 100 MiB built as JSON; delivered, and failed without a server."""
    kept = run(LARGE, any_server)
    assert len(kept) == 4
    assert max(kept.values()) < 16 * 2**20, kept
