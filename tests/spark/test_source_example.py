"""`examples/enrich.py` and `examples/to_parquet.py`: from a stream, each entry once, although they are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
import redis

from headrace.testing import LocalServer
from support.datasource import payloads, stored
from support.paths import ROOT
from support.processes import wait_until

pytestmark = pytest.mark.thorough

ORDERS = 20_000


def test_each_order_is_enriched_once(client: redis.Redis, any_server: LocalServer, tmp_path: Path) -> None:
    killed_and_run_again(
        ["enrich.py", str(tmp_path / "checkpoint")],
        client,
        any_server,
        tmp_path,
        lambda: client.xlen("enriched-orders"),
    )
    enriched = [json.loads(payload) for payload in payloads(client, "enriched-orders")]
    assert sorted(order["order_id"] for order in enriched) == list(range(ORDERS))
    assert {"order_id": 19_999, "total": 7_399.63, "size": "large"} in enriched


def test_each_order_is_in_one_file(client: redis.Redis, any_server: LocalServer, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    command = ["to_parquet.py", str(folder), "--per-file", "5000"]
    done = killed_and_run_again(command, client, any_server, tmp_path, lambda: [*folder.glob("day=*/*.parquet")])
    assert f"{ORDERS} orders in {folder}" in done
    # Spark notes the files of each micro-batch; those of one that was killed are in the folder too, and do not count.
    notes = [path.read_text().splitlines()[1:] for path in (folder / "_spark_metadata").glob("[0-9]*")]
    files = {json.loads(line)["path"].removeprefix("file://") for lines in notes for line in lines}
    read = [row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]
    assert sorted(row["order_id"] for row in read) == list(range(ORDERS))
    entries = stored(client, "order-events")
    assert {row["entry_id"]: {"order_id": row["order_id"], "cents": row["cents"]} for row in read} == {
        entry_id: json.loads(fields["payload"]) for entry_id, fields in entries.items()
    }


def killed_and_run_again(
    words: list[str], client: redis.Redis, server: LocalServer, folder: Path, begun: Callable[[], object]
) -> str:
    """Run an example over `ORDERS` entries, kill it as soon as it has written something, and run it to its end."""
    pipeline = client.pipeline(transaction=False)
    for number in range(ORDERS):
        pipeline.xadd("order-events", {"payload": json.dumps({"order_id": number, "cents": number * 37})})
    pipeline.execute()
    (folder / "spark-defaults.conf").write_text(
        f"spark.master local[2]\nspark.ui.enabled false\nspark.local.dir {folder}\n"
    )
    command = [sys.executable, str(ROOT / "examples" / words[0]), *words[1:], "--url", server.url]
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder)}
    output = folder / "killed.txt"
    with output.open("w") as file:
        killed = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        wait_until(lambda: begun() or killed.poll() is not None)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert begun(), output.read_text()[-5_000:]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout
