"""Prints what an extra of pyproject.toml needs besides headrace, so that pip can install it while the wheel is built.

tools/requirements.py lint > requirements.txt
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("extra", choices=extras)
    print("\n".join(dict.fromkeys(requirements(extras, parser.parse_args().extra))))


def requirements(extras: Mapping[str, Sequence[str]], name: str) -> Iterator[str]:
    """Yield the requirements of an extra, and of those that it names."""
    for line in extras[name]:
        if own := re.fullmatch(r"headrace\[(.+)\]", line):
            for other in own[1].split(","):
                yield from requirements(extras, other.strip())
        else:
            yield line


if __name__ == "__main__":
    main()
