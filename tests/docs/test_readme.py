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
from support.pages import DOCS, RECIPES, STORIES, blocks_of
from support.paths import ROOT

OPTIONS = (ROOT / "docs" / "options.md").read_text()
#: Every Python block that is a program by itself, with its output, by page and number.
EXAMPLES = {
    f"{page.name} {number}": block
    for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    if page.name not in STORIES | RECIPES
    for number, block in enumerate(blocks_of(page.read_text()), 1)
    if block.kind == "python"
}


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = text.split(f"\n{heading}", 1)[1]
    lines = re.findall(r"^\|(.*)\|$", section.split("\n#", 1)[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def test_the_examples_are_found() -> None:
    pages = {name.split()[0] for name in EXAMPLES}
    assert {"README.md", "index.md", "dispatcher.md", "cluster.md", "polars.md", "duckdb.md", "pyarrow.md"} <= pages
    assert len(EXAMPLES) > 40


def marks_of(name: str, text: str) -> list[pytest.MarkDecorator]:
    """What the examples of the other pages do is tested elsewhere. A Spark of its own takes half a minute."""
    is_thorough = "pyspark" in text or not name.startswith("README.md")
    return [pytest.mark.needs("idmp")] * ('"idmp"' in text) + [pytest.mark.thorough] * is_thorough


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace(" ", "-"), marks=marks_of(name, example.text))
        for name, example in EXAMPLES.items()
    ],
)
def test_examples_run_as_printed(any_server: LocalServer, tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    program = tmp_path / "example.py"
    program.write_text(example.text)
    environment = {**os.environ, "REDIS_URL": any_server.url, "HEADRACE_SERVER": str(any_server.executable)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Not stderr, where Spark prints messages.
    assert done.stdout.strip() == example.prints.strip()


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


def test_headrace_codes_occur_as_documented(any_server: LocalServer, closed_port: int) -> None:
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
