"""The offsets of all time zones, beside Python's zoneinfo and the package tzdata."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.testing import LocalServer

from .zones import FOLDER, all_zones, differences, write

pytestmark = pytest.mark.thorough


def test_all_zones_match_the_zone_folder(tmp_path: Path, any_server: LocalServer) -> None:
    zones = all_zones()
    assert len(zones) > 590
    folder = tmp_path / "zoneinfo"
    shutil.copytree(FOLDER, folder)
    # Newer than what is compiled in, whichever that is.
    (folder / "tzdata.zi").write_text("# version 9999a\n")
    written, release = write(zones, any_server, folder)
    assert release == ("9999a", str(folder))
    assert all(len(texts) == len(zones[name]) for name, texts in written.items())
    assert differences(zones, written) == {}
