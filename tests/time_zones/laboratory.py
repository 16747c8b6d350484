"""The laboratory of the compiled-in time zones."""

from __future__ import annotations

from pathlib import Path

import tzdata

from headrace.testing import LocalServer
from laboratory import Run, laboratory

from .zones import all_zones, differences, write

#: No folder: the compiled-in tables are used.
NO_FOLDER = Path("/nonexistent")


@laboratory()
def time_zones(this: Run) -> str:
    """List the zones that the compiled-in tables get wrong, compared with the package tzdata."""
    zones = all_zones()
    with LocalServer() as server:
        written, (release, _) = write(zones, server, NO_FOLDER)
    for name, (text, expected) in differences(zones, written).items():
        this.is_wrong(f"{name}: {text} is {expected}")
    return f"{len(zones)} names, compiled in is {release}, tzdata has {tzdata.IANA_VERSION}"
