"""Folders of the project."""

from __future__ import annotations

from pathlib import Path

#: The project.
ROOT = Path(__file__).resolve().parents[2]
#: The folder that must be on PYTHONPATH for `support` and the laboratories.
TESTS = ROOT / "tests"
