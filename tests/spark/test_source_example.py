"""`examples/enrich.py`: from a stream through Spark into a stream, each entry once, although it is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads
from support.paths import ROOT
from support.processes import wait_until

ORDERS = 20_000


@pytest.mark.timeout(480)
def test_each_order_is_enriched_once(client: redis.Redis, any_server: LocalServer, tmp_path: Path) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(ORDERS):
        pipeline.xadd("order-events", {"payload": json.dumps({"order_id": number, "cents": number * 37})})
    pipeline.execute()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.master local[2]\nspark.ui.enabled false\nspark.local.dir {tmp_path}\n"
    )
    command = [
        sys.executable,
        str(ROOT / "examples" / "enrich.py"),
        str(tmp_path / "checkpoint"),
        "--url",
        any_server.url,
    ]
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    output = tmp_path / "killed.txt"
    with output.open("w") as file:
        killed = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        wait_until(lambda: client.xlen("enriched-orders") or killed.poll() is not None, 200)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(10)
    assert client.xlen("enriched-orders"), output.read_text()[-5_000:]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-5_000:]
    enriched = [json.loads(payload) for payload in payloads(client, "enriched-orders")]
    assert sorted(order["order_id"] for order in enriched) == list(range(ORDERS))
    assert {"order_id": 19_999, "total": 7_399.63, "size": "large"} in enriched
