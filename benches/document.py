"""Writes tables into docs/benchmarks.md, so that no figure is copied by hand.

The section of a benchmark is between the comments `<!-- throughput -->` and `<!-- /throughput -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path


def fill(path: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the section of a benchmark.

    Raises:
        ValueError: The document has no such section.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    text = path.read_text(encoding="utf-8")
    filled, times = pattern.subn(lambda _: "\n".join([begin, "", *lines, "", end]), text)
    if times != 1:
        raise ValueError(f"{path} has no place for {name}, or several: {times}")
    path.write_text(filled, encoding="utf-8")


def taken_on(machine: Mapping[str, str]) -> str:
    """Return the line above the tables: the date and the machine."""
    return (
        f"{machine['day']}: {machine['cpu']}, {machine['cores']} cores, {machine['system']}; load before, of 1, 5 and "
        f"15 minutes: {machine['load']}. {machine['servers']}; Python {machine['python']}, {machine['packages']}."
    )
