"""Test files that are programs as well: a Spark with its own configuration needs its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_file(file: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python file with this Python, these arguments, and these variables in addition to those of this process."""
    # Absolute, because some of its workers run in other folders.
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in os.environ["PYTHONPATH"].split(os.pathsep))
    return subprocess.run(
        [sys.executable, file, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
