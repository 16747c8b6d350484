"""Clusters of three masters and three replicas: one for each program, shared by all tests that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import LocalCluster
from support import Program
from support.clusters import StartCluster


@pytest.fixture(scope="session")
def _clusters() -> Iterator[dict[Path, LocalCluster]]:
    clusters: dict[Path, LocalCluster] = {}
    yield clusters
    for cluster in clusters.values():
        cluster.stop()


@pytest.fixture
def cluster(program: Program, _clusters: dict[Path, LocalCluster]) -> LocalCluster:
    """A whole cluster, in which masters and slots may have changed places."""
    if program.path not in _clusters:
        _clusters[program.path] = LocalCluster(program.path)
    return _clusters[program.path]


@pytest.fixture
def start_cluster(program: Program) -> Iterator[StartCluster]:
    """Start a cluster of its own: `start_cluster(**arguments of LocalCluster)`."""
    with ExitStack() as stack:

        def start(**arguments: Any) -> LocalCluster:
            return stack.enter_context(LocalCluster(program.path, **arguments))

        yield start


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """The key of a stream that no other test uses."""
    return str(request.node.nodeid)
