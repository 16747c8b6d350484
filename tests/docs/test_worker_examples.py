"""The workers of examples/, run as a user runs them, and the compose file that starts one."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.paths import ROOT
from support.patience import PATIENCE
from support.processes import wait_until
from support.programs import run_file

EXAMPLES = ROOT / "examples"
WORKERS = ["worker.py", "async_worker.py"]


@pytest.mark.parametrize("example", WORKERS)
def test_a_worker_runs_without_arguments(example: str) -> None:
    done = run_file(str(EXAMPLES / example))
    assert (done.stdout, done.returncode) == ("acknowledged 495, dead 5, given back 0\n", 0), done.stderr
    # Each failure is logged with its traceback.
    assert len(re.findall(r"^ERROR:root:\S+ of b'order-events' failed, delivery 1$", done.stderr, re.MULTILINE)) == 5
    assert done.stderr.count("\nValueError: ") == 5


@pytest.mark.parametrize("example", WORKERS)
def test_workers_hand_over_by_sigterm(
    example: str, any_server: LocalServer, connect: Callable[..., redis.Redis], tmp_path: Path
) -> None:
    client, path, count = connect(any_server), tmp_path / "shop.db", 3_000
    pipeline = client.pipeline(transaction=False)
    for number in range(count):
        payload = json.dumps({"cents": number})
        pipeline.xadd("order-events", {"payload": payload, "customer": number % 7, "cents": number})
    pipeline.execute()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    database = [str(path)] * (example == "worker.py")
    command = [sys.executable, str(EXAMPLES / example), *database, "--url", any_server.url, "--metrics-port", str(port)]

    def work(until: Callable[[], object]) -> int:
        """Run a worker until something holds, and return how many entries it has acknowledged."""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(until)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                    assert 'headrace_read_entries_total{group="billing",' in answer.read().decode()
                process.send_signal(signal.SIGTERM)
                stdout, stderr = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 0, stderr
        (acked,) = re.findall(r"^acknowledged ([\d,]+), dead 0, given back [\d,]+$", stdout, re.MULTILINE)
        return int(acked.replace(",", ""))

    def group() -> Any:
        groups: Any = client.xinfo_groups("order-events") if client.exists("order-events") else []
        return groups[0] if groups else {"last-delivered-id": b"0-0", "pending": 0}

    last = client.xinfo_stream("order-events")["last-generated-id"]
    first = work(lambda: group()["pending"])
    second = work(lambda: group()["last-delivered-id"] == last and not group()["pending"])
    assert first + second == count
    if database:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*), sum(cents) FROM orders").fetchone() == (
                count,
                count * (count - 1) // 2,
            )


def test_the_compose_file_starts_the_worker_with_its_options() -> None:
    """Its form is checked by a YAML parser in the laboratory `recipes`."""
    text = (EXAMPLES / "docker-compose.yml").read_text()
    (copied,) = re.findall(r"^ +COPY (\S+) /worker.py$", text, re.MULTILINE)
    (entrypoint,) = re.findall(r"^ +ENTRYPOINT (.+)$", text, re.MULTILINE)
    # Not by a shell, which would not pass SIGTERM on.
    assert json.loads(entrypoint) == ["python", "/worker.py"]
    (command,) = re.findall(r'^    command: (\["/tmp.+\])$', text, re.MULTILINE)
    done = run_file(str(EXAMPLES / copied), "--help")
    options = [word for word in json.loads(command) if word.startswith("--")]
    assert len(options) >= 3
    assert [option for option in options if f"  {option} " not in done.stdout] == []
