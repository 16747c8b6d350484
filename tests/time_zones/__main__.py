"""Lists the zones that the compiled-in tables get wrong, by the package tzdata. Exits with 1 if there are any."""

from __future__ import annotations

import sys
from pathlib import Path

import tzdata

from headrace.testing import LocalServer

from .zones import all_zones, differences, write

#: No folder: the compiled-in tables are used.
NO_FOLDER = Path("/nonexistent")


def main() -> int:
    zones = all_zones()
    with LocalServer() as server:
        written, (release, _) = write(zones, server, NO_FOLDER)
    found = differences(zones, written)
    for name, (text, expected) in found.items():
        print(f"{name}: {text} is {expected}")
    print(f"{len(found)} of {len(zones)} names differ: compiled in is {release}, tzdata has {tzdata.IANA_VERSION}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
