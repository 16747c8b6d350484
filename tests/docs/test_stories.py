"""The pages whose blocks go together: each is typed from its beginning to its end, as a reader does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import LocalServer
from support.pages import DOCS, RECIPES, STORIES, blocks_of
from support.paths import ROOT
from support.shell import Shell, assert_shown, commands_of


def run(text: str, folder: Path, url: str) -> str:
    """What a program prints that is run in a folder."""
    (folder / "program.py").write_text(text)
    environment = {**os.environ, "REDIS_URL": url, "SPARK_CONF_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout


@pytest.mark.parametrize("page", ["from-csv.md", "outbox.md"])
def test_a_session_runs_as_shown(page: str, tcp_server: LocalServer, tmp_path: Path) -> None:
    shell = Shell(tmp_path, tcp_server)
    shell.program("python", f'exec "{sys.executable}" "$@"')
    shell.names["localhost:6379"] = tcp_server.url.removeprefix("redis://")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    typed = 0
    for block in blocks_of((DOCS / page).read_text()):
        if block.kind == "python":
            assert run(block.text, tmp_path, tcp_server.url) == block.prints
            continue
        for line, shown in commands_of(block.text):
            if line.startswith("export "):
                continue  # the server is one of this test
            code, printed = shell.type(line)
            assert code == 0, (line, printed)
            assert_shown([shell.named(text) for text in shown], printed)
            typed += 1
    assert typed


@pytest.mark.thorough
def test_the_flights_tutorial_runs_as_shown(any_server: LocalServer, tmp_path: Path) -> None:
    blocks = blocks_of((DOCS / "flights.md").read_text())
    assert len(blocks) >= 4
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.sql.shuffle.partitions 2\nspark.local.dir {tmp_path}\nspark.sql.warehouse.dir {tmp_path}/warehouse\n"
    )
    printed = run("\n\n".join(block.text for block in blocks), tmp_path, any_server.url)
    assert printed == "".join(block.prints for block in blocks)


def test_every_block_of_a_page_is_run() -> None:
    """Those of Python as programs or in stories; of those of a console only the pages with a test have some."""
    pages = {page.name: blocks_of(page.read_text()) for page in DOCS.glob("*.md")}
    assert sum(map(len, pages.values())) > 50
    assert {name for name, blocks in pages.items() if any(block.kind == "console" for block in blocks)} == {
        *("command.md", "from-csv.md", "outbox.md")
    }
    assert pages.keys() >= STORIES | RECIPES
    recipes = (ROOT / "tests" / "recipes" / "laboratory.py").read_text()
    assert all(f'recipe("{name}"' in recipes for name in RECIPES)


def test_python_that_is_not_run_is_marked_as_untested() -> None:
    found = 0
    for page in DOCS.glob("*.md"):
        for section in page.read_text().split("\n## "):
            if "```py\n" in section:
                assert "*Untested" in section, (page.name, section[:60])
                found += 1
    assert found == 1
