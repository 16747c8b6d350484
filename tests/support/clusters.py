"""Clusters, and what is in their streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from headrace import Endpoint
from headrace.testing import LocalCluster, LocalServer

#: Starts a cluster: takes the arguments of `LocalCluster`.
StartCluster = Callable[..., LocalCluster]


def endpoint_of(cluster: LocalCluster, key: str | bytes, **options: Any) -> Endpoint:
    """The endpoint of a stream of the cluster."""
    return Endpoint(**{"nodes": cluster.nodes, "stream_key": key, **options})


def rows_of(cluster: LocalCluster, key: str) -> list[int]:
    """The numbers in a stream, in its order, as its owner has them."""
    with redis.Redis(port=cluster.owner(key).port or 0) as client:
        return [int(fields[b"payload"]) for _, fields in client.xrange(key)]


def another_master(cluster: LocalCluster, key: str) -> LocalServer:
    """A master that does not have the slot of `key`."""
    owner = cluster.owner(key)
    keys = (f"{number}" for number in range(1_000))
    return next(other for name in keys if (other := cluster.owner(name)) is not owner)
