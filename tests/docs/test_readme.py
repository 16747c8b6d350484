"""The README and docs/: each example runs as printed, and each table matches the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint
from headrace.tables import CODES
from headrace.testing import LocalServer
from support.paths import ROOT

README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()
DOCS = "".join(
    (ROOT / "docs" / f"{name}.md").read_text()
    for name in (
        *("dispatcher", "async", "layouts", "exactly-once", "durability"),
        *("spark-functions", "observability", "credentials", "groups", "reading", "testing"),
    )
)

#: Every Python block, and the text block after it: its output.
EXAMPLES = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", README + DOCS, re.DOTALL)


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = text.split(f"\n{heading}", 1)[1]
    lines = re.findall(r"^\|(.*)\|$", section.split("\n#", 1)[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def test_the_examples_are_found() -> None:
    assert README.count("```python") == 3
    assert DOCS.count("```python") >= 8
    assert len(EXAMPLES) == (README + DOCS).count("```python")


@pytest.mark.parametrize(("example", "prints"), EXAMPLES, ids=[str(n) for n in range(1, len(EXAMPLES) + 1)])
def test_examples_run_as_printed(any_server: LocalServer, tmp_path: Path, example: str, prints: str) -> None:
    program = tmp_path / "example.py"
    program.write_text(example)
    environment = {**os.environ, "REDIS_URL": any_server.url, "HEADRACE_SERVER": str(any_server.executable)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # Not stderr, where Spark prints messages.
    assert done.stdout.strip() == prints.strip()


def test_the_files_named_in_security_md_exist() -> None:
    named = re.findall(r"`((?:tests|tools|rust|\.github)/[^`]+|deny\.toml)`", (ROOT / "SECURITY.md").read_text())
    assert len(set(named)) >= 10
    assert [name for name in sorted(set(named)) if not (ROOT / name).exists()] == []


def failures(endpoint: Endpoint, data: Any = None, **layout: Any) -> set[tuple[str, str, str]]:
    with Dispatcher(endpoint) as dispatcher:
        if data is None:
            dispatcher.produce(b"x")
        else:
            dispatcher.produce_batch(data, **layout)
        return {(failure.code, failure.kind, failure.written) for failure in dispatcher.flush().failed}


def test_the_own_codes_occur_as_documented(any_server: LocalServer, closed_port: int) -> None:
    def here(**options: Any) -> Endpoint:
        return Endpoint(**{"unix_socket": any_server.unix_socket, "stream_key": "events", **options})

    Dispatcher(here(stream_key="there")).dispatch(b"x")
    rows = pa.record_batch({"payload": [None, "b", "c"], "key": ["a", "", "a"], "id": ["*", "*", "x"]})
    empty = pa.record_batch({"field": pa.array([None], pa.string())})
    elsewhere = Endpoint(host="127.0.0.1", port=closed_port, stream_key="events")
    seen = failures(here(nomkstream=True)) | failures(here(minid=10**15, stream_key="there")) | failures(elsewhere)
    seen |= failures(here(password_env="HEADRACE_TEST_NO_SUCH_VARIABLE"))
    seen |= failures(here(), rows, stream_key="key", entry_id="id") | failures(here(), empty, fields=["field"])
    assert {code for code, _, _ in seen} == {
        *("NO_STREAM", "TRIMMED", "CONNECT", "CONFIG"),
        *("NULL_PAYLOAD", "BAD_STREAM_KEY", "BAD_ENTRY_ID", "EMPTY"),
    }
    for name, kind, written in seen:
        code = CODES[name]
        assert (kind, written) in {(code.kinds["default"], each) for each in code.written}, name
