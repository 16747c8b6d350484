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

_shared = pytest.StashKey[dict[Path, LocalCluster]]()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared clusters when other tests follow: they use processor time while they run.

    `FileScheduling` mixes only those of sentinels with them.
    """
    if nextitem is None or nextitem.path.parent.name not in ("cluster", "sentinel"):
        _stop(item.session.stash.get(_shared, {}))


def _stop(clusters: dict[Path, LocalCluster]) -> None:
    while clusters:
        clusters.popitem()[1].stop()


@pytest.fixture(scope="session")
def _clusters(request: pytest.FixtureRequest) -> Iterator[dict[Path, LocalCluster]]:
    clusters = request.session.stash.setdefault(_shared, {})
    yield clusters
    _stop(clusters)


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
