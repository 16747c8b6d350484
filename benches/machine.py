"""The machine and the versions that the figures were measured with."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benches.servers import programs, title

import headrace

PACKAGES = ("redis", "hiredis", "valkey-glide-sync", "coredis", "pyarrow")


def described() -> dict[str, str]:
    """Return the description of the machine for the tables and the JSON."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": load,
        "servers": ", ".join(map(title, programs())),
        "python": platform.python_version(),
        "packages": ", ".join([f"headrace {headrace.__version__}", *installed()]),
    }


def installed() -> Iterator[str]:
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
