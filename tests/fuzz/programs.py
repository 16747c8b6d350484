"""Programs that a laboratory runs in the folder of the project: mostly cargo."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def follow(*words: str | Path, **environment: object) -> int:
    """Run a program with the output of this one, and return its exit status. An interruption ends its children too."""
    added = {name: str(value) for name, value in environment.items()}
    with subprocess.Popen(words, cwd=ROOT, env={**os.environ, **added}, process_group=0) as process:
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise


def step(title: str, *words: str | Path, **environment: object) -> None:
    """Run a program that takes long, such as a compiler, and show its output only if it fails."""
    if code := follow("tools/step.sh", title, *words, **environment):
        raise SystemExit(code)


def compile_tests(profile: str, *features: str) -> list[str | Path]:
    """Compile the unit tests of the core with a profile of cargo. Returns the command that runs them."""
    # CI builds exactly what Cargo.lock says.
    words: list[str | Path] = ["cargo", "test", *["--locked"] * bool(os.environ.get("CI")), "--profile", profile]
    words += ["--package", "headrace-core", "--lib", *(["--features", ",".join(features)] if features else [])]
    step("Compiling the Rust tests (the first time some minutes)", *words, "--no-run")
    return [*words, "--quiet"]
