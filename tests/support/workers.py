"""How the tests are distributed among the processes of `pytest --numprocesses`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.paths import TESTS

#: Its conftest.py has the fixture `spark`.
SPARK_SESSION = TESTS / "spark" / "session"

#: The folders whose tests start clusters or sentinels of each server program.
BY_PROGRAM = ("cluster", "sentinel")

#: Files outside the shared Spark sessions that take more than ten seconds.
LONG = {
    "test_arrow_fuzz.py",
    "test_arrow_sources.py",
    "test_check.py",
    "test_cluster_failover.py",
    "test_cluster_faults.py",
    "test_cluster_moves.py",
    "test_cluster_streams.py",
    "test_datasource_connect.py",
    "test_datasource_docs.py",
    "test_datasource_memory.py",
    "test_datasource_pipeline.py",
    "test_datasource_secrets.py",
    "test_datasource_speculation.py",
    "test_dead_letters_killed.py",
    "test_durability.py",
    "test_examples.py",
    "test_faults_campaign.py",
    "test_faults_sweep.py",
    "test_memory.py",
    "test_packing_arguments.py",
    "test_panics.py",
    "test_positions.py",
    "test_process_fork.py",
    "test_read_faults.py",
    "test_read_faults_sweep.py",
    "test_readme.py",
    "test_replay_dead_letters.py",
    "test_retry.py",
    "test_script_forms.py",
    "test_send_bad_rows.py",
    "test_sentinel_failover.py",
    "test_shard_kills.py",
    "test_source_attempts.py",
    "test_source_example.py",
    "test_source_secrets.py",
    "test_spark_kills.py",
}


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One worker runs all tests of a file, and of the files that share a Spark session.

    In files that share clusters, it runs the tests of one server program, and then those of the same program in the
    next file: a cluster takes three seconds to start, and uses processor time while it runs.

    `--dist loadgroup` would do this by marks, but pytest-xdist 3.8 cannot put them into the node IDs of pytest 9.2.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._programs: dict[Any, str] = {}
        # Each starts a JVM, and takes a core. The usual size has work for one.
        sessions = 2 if config.getoption("--all") else 1
        self._sessions = {name: f"spark-{number % sessions}" for number, name in enumerate(spark_files())}

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        path = Path(file)
        if (program := _PROGRAM.search(test)) and path.parent.name in BY_PROGRAM:
            return f"{path.name} {program[0]}"
        return self._sessions.get(path.name, path.name)

    def _assign_work_unit(self, node: Any) -> None:
        scope = self._next_scope(self._programs.get(node, ""))
        if program := _program_of(scope):
            self._programs[node] = program
        self.workqueue.move_to_end(scope, last=False)  # it takes the first one
        super()._assign_work_unit(node)

    def _next_scope(self, program: str) -> str:
        """The first scope of the program whose cluster the worker has; otherwise of the one with the most tests left.

        Programs that no worker is running come first.
        """
        scopes: list[str] = list(self.workqueue)
        if same := [scope for scope in scopes if program and _program_of(scope) == program]:
            return same[0]
        taken = set(self._programs.values())
        if free := [scope for scope in scopes if _program_of(scope) not in taken]:
            return free[0]
        left: Counter[str] = Counter()
        for scope, tests in self.workqueue.items():
            left[_program_of(scope)] += len(tests)
        return max(scopes, key=lambda scope: left[_program_of(scope)])


_PROGRAM = re.compile(r"(?:redis|valkey)-[0-9.]+[0-9]")


def _program_of(scope: str) -> str:
    return scope.partition(" ")[2]


@functools.cache
def spark_files() -> list[str]:
    """The files whose tests share a Spark session."""
    files = sorted(path.name for path in SPARK_SESSION.glob("test_*.py"))
    assert files, f"no tests in {SPARK_SESSION}"
    return files


def sort(items: list[pytest.Item]) -> None:
    """Put the longest tests first, so that no worker is left with one at the end; otherwise the order stays random."""

    def rank(item: pytest.Item) -> Any:
        return item.path.name not in spark_files(), item.path.name not in LONG

    items.sort(key=rank)
