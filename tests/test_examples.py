"""The examples, as a user runs them: each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.server import LocalServer

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FLIGHTS = 336_776


def run(example: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env={**os.environ, **environment}
    )


def test_all_flights_reach_the_stream(tcp_server: LocalServer, connect: Callable[..., redis.Redis]) -> None:
    client = connect(tcp_server, decode_responses=True)
    client.xadd("flights", {"payload": "an entry of somebody else"}, id="1-1")
    done = run("flights.py", "--url", tcp_server.url)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    numbers = {
        name: float(n.replace(",", "")) for name, n in re.findall(r"^(\S+) +([\d,]+)", done.stdout, re.MULTILINE)
    }
    assert numbers.pop("entries/s") > 1_000
    assert numbers == {"rows": FLIGHTS, "delivered": FLIGHTS, "failed": 0}
    assert f"XLEN flights: {FLIGHTS + 1}\n" in done.stdout
    assert client.xlen("flights") == FLIGHTS + 1

    entries: Any = client.xrange("flights", min="(1-1")
    flights = [json.loads(fields.pop("payload")) for _, fields in entries]
    assert {tuple(fields) for _, fields in entries} == {("ts",)}
    by_name = {(flight["carrier"], flight["flight"], flight["time_hour"]): flight for flight in flights}
    assert len(by_name) == FLIGHTS
    # The first line of the file; what is missing in a line is left out.
    assert by_name["UA", 1545, "2013-01-01T10:00:00.000Z"] == json.loads(
        """{"year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15,
        "time_hour": "2013-01-01T10:00:00.000Z"}"""
    )
    assert sum("dep_time" not in flight for flight in flights) == 8_255

    # Three entries are shown: the last ones, as they are.
    shown = re.findall(r"^ +(\d+-\d+) (\{.*\})$", done.stdout, re.MULTILINE)
    assert [entry_id for entry_id, _ in shown] == [entry_id for entry_id, _ in reversed(entries[-3:])]
    assert all('"carrier"' in text for _, text in shown)


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["--url", "redis://:hunter2@127.0.0.1:1"], {}, "Connection refused"),
        (["--url", "redis://127.0.0.1/zero"], {}, "invalid database number"),
        ([], {"HEADRACE_SERVER": "/nowhere/redis-server"}, "/nowhere/redis-server"),
    ],
)
def test_flights_without_a_server_say_so(arguments: list[str], environment: dict[str, str], text: str) -> None:
    done = run("flights.py", *arguments, **environment)
    assert done.returncode == 1
    assert text in done.stdout
    assert "Starting Spark" not in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
