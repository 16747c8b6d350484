"""Results in a file, so that the same command continues after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Results:
    """A line of JSON for each run: what identifies it, as `run`, and what became of it. None without a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.are_kept = path is not None
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._earlier: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """What became of this run, if it was done before."""
        found = next((line for line in self._earlier if line["run"] == run), None)
        return found and {name: value for name, value in found.items() if name != "run"}

    def add(self, run: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({**result, "run": run}) + "\n")
