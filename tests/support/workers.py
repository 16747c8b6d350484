"""How the tests are shared out among the processes of `pytest --numprocesses`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.paths import TESTS

#: Its conftest.py has the fixture `spark`.
SPARK_SESSION = TESTS / "spark" / "session"
#: As many JVMs start: each takes a core.
SPARK_GROUPS = 2

#: Files without a Spark session of their own that take more than ten seconds.
LONG = {
    "test_arrow_fuzz.py",
    "test_arrow_sources.py",
    "test_datasource_connect.py",
    "test_datasource_docs.py",
    "test_datasource_memory.py",
    "test_datasource_secrets.py",
    "test_datasource_speculation.py",
    "test_durability.py",
    "test_examples.py",
    "test_faults_campaign.py",
    "test_faults_sweep.py",
    "test_memory.py",
    "test_read_faults.py",
    "test_readme.py",
    "test_spark_kills.py",
}


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One worker runs all tests of a file, and of the files that share a Spark session.

    `--dist loadgroup` would do this by marks, but pytest-xdist 3.8 cannot put them into the node IDs of pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).name
        return spark_groups().get(file, file)


@functools.cache
def spark_groups() -> dict[str, str]:
    """The group of each file whose tests share a Spark session."""
    files = sorted(path.name for path in SPARK_SESSION.glob("test_*.py"))
    assert files, f"no tests in {SPARK_SESSION}"
    return {name: f"spark-{number % SPARK_GROUPS}" for number, name in enumerate(files)}


def sort(items: list[pytest.Item]) -> None:
    """Put first what takes longest, so that no worker is left with it at the end; else the order stays random."""

    def rank(item: pytest.Item) -> Any:
        return item.path.name not in spark_groups(), item.path.name not in LONG

    items.sort(key=rank)
