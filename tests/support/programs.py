"""Test files that are programs as well: a Spark with a configuration of its own needs a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_file(file: str, *arguments: str, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python file with this Python, these arguments, and these variables beside those of this process."""
    # Some of its workers run in other folders.
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in os.environ["PYTHONPATH"].split(os.pathsep))
    return subprocess.run(
        [sys.executable, file, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
