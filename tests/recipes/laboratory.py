"""The laboratory of the recipes: the pages as printed, and each once with a failure. What is wrong raises."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import redis

from headrace.testing import LocalServer
from laboratory import Run, laboratory
from support.pages import DOCS, Block, blocks_of
from support.paths import ROOT

from .database import postgresql


@laboratory()
def recipes(this: Run) -> str:
    """Run the pages on dlt, FastAPI and PostgreSQL as printed, then an interrupted load and a killed relay.

    It needs PostgreSQL, such as Debian's package `postgresql`, and the packages of `make .venv/.recipes`.
    """
    this.folder.chmod(0o711)  # PostgreSQL runs as another user if this one is root
    with postgresql() as url:
        this.say(recipe("dlt.md", {}))
        this.say(recipe("fastapi.md", {}))
        this.say(compose_file())
        this.say(broken_load())
        this.say(recipe("outbox-postgresql.md", {"DATABASE_URL": url}))
        this.say(killed_relay(url))
    return "3 pages"


def block_of(page: str) -> Block:
    (block,) = blocks_of((DOCS / page).read_text())
    return block


def run(text: str, folder: str, server: LocalServer, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = Path(folder) / "program.py"
    program.write_text(text)
    of_dlt = {"DLT_PROJECT_DIR": folder, "DLT_DATA_DIR": f"{folder}/dlt", "RUNTIME__DLTHUB_TELEMETRY": "false"}
    everything = {**os.environ, **of_dlt, **environment, "REDIS_URL": server.url}
    command = [sys.executable, str(program)]
    return subprocess.run(command, cwd=folder, env=everything, capture_output=True, text=True, timeout=300, check=False)


def recipe(page: str, environment: dict[str, str]) -> str:
    """Run the block of a page as it is."""
    block = block_of(page)
    with tempfile.TemporaryDirectory() as folder, LocalServer() as server:
        done = run(block.text, folder, server, environment)
        assert (done.returncode, done.stdout) == (0, block.prints), (page, done.stdout, done.stderr)
    return f"{page}: as printed"


def changed(text: str, before: str, after: str) -> str:
    """The text with a failure put into it."""
    assert text.count(before) == 1, before
    return text.replace(before, after + before)


def compose_file() -> str:
    """What Compose takes as a service, of the keys that the file has."""
    import yaml  # only this laboratory has it

    found = yaml.safe_load((ROOT / "examples" / "docker-compose.yml").read_text())
    assert found.keys() == {"services", "volumes"}
    valkey, worker = found["services"]["valkey"], found["services"]["worker"]
    assert valkey["volumes"] == [f"{next(iter(found['volumes']))}:/data"]
    assert worker["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert "ENTRYPOINT" in worker["build"]["dockerfile_inline"]
    assert all(isinstance(word, str) for service in (valkey, worker) for word in service["command"])
    return "docker-compose.yml: two services"


def broken_load() -> str:
    """The first try of a load ends behind its first record batch."""
    line = "        report = dispatcher.flush().raise_for_failures()\n"
    failure = (
        "            if file.name.endswith('.0.parquet'):\n"
        "                assert dispatcher.flush().delivered == 65_536\n"
        "                raise OSError('broken off')\n"
    )
    text = changed(block_of("dlt.md").text, line, failure)
    with tempfile.TemporaryDirectory() as folder, LocalServer() as server:
        done = run(text, folder, server, {})
        assert done.returncode == 0, done.stderr
        assert done.stdout == "orders: 34464 written, 65536 were there\n", done.stdout
        assert "broken off" in done.stderr
        assert in_stream(server, "orders") == [b'{"order_id":%d,"total":9.5}' % number for number in range(100_000)]
    return "dlt.md: each row once, in order, over a load that broke off"


def killed_relay(url: str) -> str:
    """The relay ends between the replies and the DELETE of its second batch; the next one has no rows of its own."""
    line = "        with engine.begin() as connection:\n            connection.execute(outbox.delete()"
    text = block_of("outbox-postgresql.md").text
    with tempfile.TemporaryDirectory() as folder, LocalServer() as server:
        killed = changed(text, line, "        if delivered == 2_000:\n            os._exit(9)\n")
        environment = {"DATABASE_URL": url}
        assert run(killed, folder, server, environment).returncode == 9
        assert len(in_stream(server, "order-events")) == 2_000
        done = run(text.replace("range(2_500)", "range(0, 1)"), folder, server, environment)
        assert (done.returncode, done.stdout) == (0, "1501\n"), (done.stdout, done.stderr)
        expected = [b'{"order_id": %d}' % number for number in [*range(2_500), 0]]
        assert in_stream(server, "order-events") == expected
    return "outbox-postgresql.md: each row once, in order, over a relay that was killed"


def in_stream(server: LocalServer, stream: str) -> list[bytes]:
    """The payloads of a stream."""
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        return [fields[b"payload"] for _, fields in client.xrange(stream) or []]
