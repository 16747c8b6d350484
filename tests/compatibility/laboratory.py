"""The laboratory that writes golden files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from headrace.testing import LocalServer
from laboratory import Option, Run, laboratory
from support import programs_with
from support.spark import start_spark

from .golden import write
from .spark_letters import NAME, spark_dead_letters
from .written import WRITERS


@laboratory(Option("version", None, "of what is stored, such as 0.2", str, is_argument=True))
def golden(this: Run) -> str:
    """Write the golden files of this version, beside those of older ones.

    Only when what is stored is to change: the files of older versions stay, because this version must read them.
    """
    folder = Path(__file__).parent / "golden" / this.options.version
    for name, writer in WRITERS.items():
        with _server("idmp") as (server, client):
            write(folder, name, writer(server, client))
    with start_spark() as spark, _server() as (server, client):
        write(folder, NAME, spark_dead_letters(spark, server, client))
    return f"{len(WRITERS) + 1} files in {folder}"


@contextmanager
def _server(*needs: str) -> Iterator[tuple[LocalServer, redis.Redis]]:
    program = max(programs_with(needs)).path
    with LocalServer(program) as server, redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        yield server, client
