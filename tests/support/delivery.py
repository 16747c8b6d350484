"""Helpers for tests of exactly once, of durability and of retries."""

from __future__ import annotations

from typing import Any

import redis

from headrace import Dispatcher
from headrace.testing import LocalServer
from support.modes import SOON
from support.pipelines import KEY, endpoint_to, stored

#: The key of the marker of a batch, for `script`.
MARKER = "{events}:headrace:batch"
#: The label of a message that too few replicas have.
MISSING = ("retryable", "NOT_REPLICATED", "unknown")
#: Options with which the dispatcher waits for a server that is out of memory.
FAILOVER: dict[str, Any] = {"classify": "failover"}


def script(server: LocalServer, endpoint: dict[str, Any] | None = None, **options: Any) -> Dispatcher:
    """Make a dispatcher that writes exactly once by script."""
    return Dispatcher(endpoint_to(server, **endpoint or {}), **{"exactly_once": "script", "retry": SOON, **options})


def to_replicas(server: LocalServer, endpoint: dict[str, Any] | None = None, **options: Any) -> Dispatcher:
    """Make a dispatcher that waits for a replica."""
    return Dispatcher(endpoint_to(server, **endpoint or {}), **{"wait_replicas": 1, **options})


def bodies(client: redis.Redis, key: str = KEY) -> list[bytes]:
    """The payloads of a stream."""
    return [payload for _, payload in stored(client, key)]


def waits(client: Any, command: str = "wait") -> int:
    """How often WAIT or WAITAOF was called, without the preflight."""
    return int(client.info("commandstats")[f"cmdstat_{command}"]["calls"]) - 1


def full(client: redis.Redis) -> None:
    """Make a server run out of memory."""
    client.config_set("maxmemory", 1)


def free(client: redis.Redis) -> None:
    """Give a server its memory back."""
    client.config_set("maxmemory", 0)
