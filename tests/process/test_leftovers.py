"""A test run that is interrupted leaves no process and no folder behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import TESTS
from support.patience import PATIENCE
from support.processes import wait_until

#: It starts a server, and a program that ignores Ctrl-C in a session of its own, and waits for ever.
ENDLESS = """
import os, pathlib, subprocess, sys, time
from headrace.testing import LocalServer

def test_{number}(any_server, start_server):
    program = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(3600)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    pathlib.Path({folder!r}, "{number}").write_text(f"{{process.pid}} {{any_server.pid}} {{os.getpid()}}")
    time.sleep(3600)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("to_group", [False, True], ids=["controller", "process group"])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, to_group: bool) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    tests = tmp_path / "tests"
    tests.mkdir()
    for number in range(2):
        (tests / f"test_{number}.py").write_text(ENDLESS.format(number=number, folder=str(seen)))
    (tests / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--numprocesses=2",
        "--dist=loadfile",
        str(tests),
    ]
    words += [f"--rootdir={tests}", "-c", os.devnull, "--import-mode=importlib", "-o", f"pythonpath={TESTS}"]
    run = subprocess.Popen(
        words, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(lambda: len(pids_in(seen)) == 6)
        pids = pids_in(seen)
        (os.killpg if to_group else os.kill)(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE) == pytest.ExitCode.INTERRUPTED
        assert [pid for pid in pids if is_running(pid)] == []
        assert list(tmp_path.glob("hr-*")) == []
    finally:
        run.kill()
        run.wait()
        for pid in pids_in(seen):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def pids_in(folder: Path) -> list[int]:
    return [int(pid) for file in folder.iterdir() for pid in file.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
