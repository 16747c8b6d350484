"""The programs of rust/headrace-bench."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def bench_program(name: str) -> Path:
    """Return a program of rust/headrace-bench, which `make bench` builds."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    path = target / "release" / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: `make bench-programs` builds it")
    return path
