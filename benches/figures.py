"""The figures as JSON: for each benchmark the machine, and every turn. The pictures are drawn from it.

{"throughput": {"machine": {…}, "turns": [[group, contender, number, rows, {figure: value}], …]}, …}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.turns import Turn

#: Significant digits, so that the file stays short.
DIGITS = 6


def of_turns(machine: Mapping[str, str], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return one benchmark's part of the file."""
    return {
        "machine": dict(machine),
        "turns": [[turn.group, turn.contender, turn.number, turn.rows, rounded(turn.figures)] for turn in turns],
    }


def put(path: Path, name: str, part: Mapping[str, Any]) -> None:
    """Replace one benchmark's part; the others are kept."""
    whole = load(path) | {name: part}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumped(whole), encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return whole


def turns_of(whole: Mapping[str, Any], name: str) -> list[Turn]:
    """Return the turns of a benchmark; none if it was not run."""
    return [Turn(name, *turn) for turn in whole.get(name, {}).get("turns", [])]


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in figures.items()}


def dumped(whole: Mapping[str, Any]) -> str:
    """Write one turn per line, so that the difference between two versions is readable."""
    parts = []
    for name, part in sorted(whole.items()):
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items() if key != "turns"]
        if turns := part.get("turns"):
            lines.append('  "turns": [\n    ' + ",\n    ".join(map(json.dumps, turns)) + "\n  ]")
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
