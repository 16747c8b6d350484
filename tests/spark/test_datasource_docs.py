"""docs/spark.md: its examples run as printed. docs/options.md lists every option of the data source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import LocalServer
from support.paths import ROOT

pytestmark = pytest.mark.thorough

MANUAL = (ROOT / "docs" / "spark.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()


def test_the_examples_run_as_printed(any_server: LocalServer, tmp_path: Path) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```\n", MANUAL, re.DOTALL)
    programs, prints = ([text for kind, text in blocks if kind == wanted] for wanted in ("python", "text"))
    assert len(programs) == len(prints) >= 5
    program = tmp_path / "examples.py"
    program.write_text("\n\n".join(programs))
    # The examples use the default session: keep it small.
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[2]\nspark.ui.enabled false\nspark.sql.shuffle.partitions 2\n"
        f"spark.local.dir {tmp_path}\nspark.sql.warehouse.dir {tmp_path}/warehouse\n"
    )
    environment = {**os.environ, "REDIS_URL": any_server.url, "SPARK_CONF_DIR": str(tmp_path)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-5_000:]
    assert done.stdout == "".join(prints)
