"""A PostgreSQL server for a recipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def program(name: str) -> str:
    """Where a program of PostgreSQL is. Debian has it in a folder of its version, off PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = shutil.which(name) or (str(found[-1]) if found else None)
    if path is None:
        raise SystemExit(f"{name} was not found: install PostgreSQL, such as Debian's package postgresql")
    return path


@contextmanager
def postgresql() -> Iterator[str]:
    """A fresh server on a Unix socket. Yields its URL. It refuses to run as root, and is Debian's user then."""
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="hr-pg-") as folder:
        if user:
            shutil.chown(folder, user)
        data = f"{folder}/data"

        def run(*command: str) -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder)

        run(program("initdb"), "--pgdata", data, "--username", "shop", "--auth", "trust", "--no-sync")
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        run(program("pg_ctl"), "start", "--wait", "--pgdata", data, "--log", f"{folder}/log", "--options", options)
        try:
            yield f"postgresql+psycopg://shop@/postgres?host={folder}"
        finally:
            run(program("pg_ctl"), "stop", "--wait", "--mode", "immediate", "--pgdata", data)
