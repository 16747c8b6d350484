"""Without a server the first failed connect fails the batch, and the next attempt is made for the next batch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.fake_server import FakeServer, hang_up
from support.fixture_types import BySize
from support.patience import lasting
from support.pipelines import endpoint_to, labels
from support.stalls import full_backlog

#: Many rows, as record batches of 10,000 or one by one, and their cost: seconds of processor time, and the growth
#: of memory above the state after the first row, before the failures are read.
MANY = """
import json, sys, time
import pyarrow as pa
from headrace import Dispatcher, Endpoint
from support.processes import PeakMemory

mode, port, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
payload = b"x" * 120
payloads = pa.array([payload] * 10_000)
dispatcher = Dispatcher(Endpoint(host="127.0.0.1", port=port, stream_key="s"))
dispatcher.produce(payload, "first")
memory = PeakMemory()
started = time.process_time()
if mode == "produce":
    for number in range(rows):
        dispatcher.produce(payload)
else:
    for number in range(rows // 10_000):
        ids = pa.array(range(number * 10_000, (number + 1) * 10_000))
        dispatcher.produce_batch(pa.record_batch({"payload": payloads, "id": ids}), message_id="id")
report = dispatcher.flush()
seconds, growth = time.process_time() - started, memory.growth
labels = set()
for batch in pa.RecordBatchReader.from_stream(report.to_arrow()):
    labels |= set(zip(*(batch[name].to_pylist() for name in ("kind", "code", "written"))))
ids = report.failed_ids
print(json.dumps({
    "seconds": seconds, "growth": growth, "failed": report.failed_by_code, "labels": sorted(labels),
    "ids": ids[1:] == list(range(rows) if mode == "batch" else range(1, rows + 1)), "first": ids[0],
}))
dispatcher.close()
"""


def many(mode: str, port: int, rows: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(MANY), mode, str(port), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    print(f"{mode}: {result['seconds']:.2f} s, {result['growth'] / 2**20:.1f} MiB")
    return result


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["batch", "produce"])
def test_a_million_rows_fail_cheaply_without_a_server(closed_port: int, mode: str) -> None:
    result = many(mode, closed_port, 1_000_000)
    assert result["failed"] == {"CONNECT": 1_000_001}
    assert result["labels"] == [["retryable", "CONNECT", "no"]]
    assert result["first"] == "first"
    assert result["ids"]
    assert result["seconds"] < 5
    assert result["growth"] < 64 * 2**20


def test_many_rows_cause_one_connect(by_size: BySize) -> None:
    """A port that accepts connections and closes them immediately counts the connects."""
    with FakeServer(*[hang_up] * 100) as fake:
        result = many("batch", fake.port, by_size(100_000, 1_000_000))
        assert fake.accepted == 1
        (code,) = result["failed"]
        assert code in ("EOF", "RESET")
        assert result["labels"] == [["retryable", code, "no"]]


def test_each_batch_causes_one_connect() -> None:
    with FakeServer(*[hang_up] * 100) as fake:
        endpoint = Endpoint(host="127.0.0.1", port=fake.port, stream_key="s")
        with Dispatcher(endpoint, window_max_entries=10) as dispatcher:
            for turn in range(1, 4):
                for _ in range(3):
                    dispatcher.produce_batch(pa.record_batch({"payload": ["x" * 1_000] * 1_000}))
                    dispatcher.produce(b"x")
                    dispatcher.poll().failed_ids  # noqa: B018 (looked at)
                dispatcher.flush().failed_ids  # noqa: B018
                assert fake.accepted == turn


def test_the_next_batch_connects_again(any_server: LocalServer) -> None:
    any_server.kill()
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        for _ in range(2):
            dispatcher.produce(b"x")
            report = dispatcher.flush()
            assert labels(report) == [("retryable", "CONNECT", "no")]
            assert f"cannot connect to {any_server.unix_socket}: " in report.failed[0].message
        any_server.restart()
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


def test_a_server_that_restarts_mid_batch_receives_the_next_batch(any_server: LocalServer) -> None:
    """The rest of the batch still fails: it would overtake the failed rows."""
    any_server.kill()
    with Dispatcher(endpoint_to(any_server), window_max_entries=1) as dispatcher:
        for _ in range(10):
            dispatcher.produce(b"x")
        any_server.restart()
        dispatcher.produce(b"late")
        assert labels(dispatcher.flush()) == [("retryable", "CONNECT", "no")] * 11
        dispatcher.produce(b"next")
        assert dispatcher.flush().ok


@pytest.mark.parametrize("host", ["nonexistent.invalid", "a" * 64 + ".invalid"])
def test_an_unresolvable_host_fails_the_batch(host: str) -> None:
    with Dispatcher(Endpoint(host=host, stream_key="s", connect_timeout=3)) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        (label,) = labels(report)
        assert label in [("retryable", "DNS", "no"), ("retryable", "TIMEOUT", "no")]
        assert host in report.failed[0].message


@pytest.mark.parametrize("kind", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def test_a_full_backlog_fails_the_batch(
    kind: socket.AddressFamily, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with full_backlog(kind, tmp_path) as address:
        where: dict[str, Any] = (
            {"host": address[0], "port": address[1]} if kind == socket.AF_INET else {"unix_socket": address}
        )
        with Dispatcher(Endpoint(**where, stream_key="s", connect_timeout=0.5)) as dispatcher:
            for _ in range(100):
                dispatcher.produce(b"x")
            with lasting(0.5):
                report = dispatcher.flush()
            assert labels(report) == [("retryable", "TIMEOUT", "no")] * 100
            assert "within 0.5 s" in report.failed[0].message


def test_a_missing_socket_fails_the_batch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with Dispatcher(Endpoint(unix_socket=tmp_path / name, stream_key="s")) as dispatcher:
            dispatcher.produce(b"x")
            assert labels(dispatcher.flush()) == [("retryable", "CONNECT", "no")]
