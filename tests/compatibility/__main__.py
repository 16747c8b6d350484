"""Write the golden files of this version: `PYTHONPATH=tests python -m compatibility VERSION`.

Only when what is stored is to change: the files of older versions stay, because this version must read them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import redis

from headrace.testing import LocalServer
from support import programs_with
from support.spark import start_spark

from .golden import write
from .spark_letters import NAME, spark_dead_letters
from .written import WRITERS


def main(version: str) -> None:
    folder = Path(__file__).parent / "golden" / version
    for name, writer in WRITERS.items():
        with LocalServer(max(programs_with(["idmp"])).path) as server:
            client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
            write(folder, name, writer(server, client))
            client.close()
    with start_spark() as spark, LocalServer(max(programs_with([])).path) as server:
        client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
        write(folder, NAME, spark_dead_letters(spark, server, client))
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
