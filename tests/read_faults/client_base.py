"""The common parts of all reading programs: configuration, control, and how they report errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis

from faults.fault_kinds import TIMEOUT
from headrace import Endpoint

from .journal import Failed, Journal

#: The group of clients that read in a group, and the stream of its dead letters.
GROUP = "group"
DEAD_LETTERS = "dead letters"


@dataclass(frozen=True)
class GroupRules:
    """The settings that all consumers of a group must share."""

    min_idle: float = 0.5
    #: None: an entry is retried forever.
    max_failures: int | None = None


@dataclass(frozen=True)
class Config:
    """The configuration of a reading process."""

    client: str
    port: int
    username: str
    password: str
    tls_ca_cert: str | None
    keys: tuple[str, ...]
    journal: str
    #: Differs for each process of an episode, so that each draws other options.
    seed: int
    #: The name of the consumer, in a group.
    consumer: str
    rules: GroupRules = GroupRules()

    def endpoint(self) -> Endpoint:
        return Endpoint(
            host="127.0.0.1", port=self.port, stream_key=self.keys[0], username=self.username, password=self.password,
            connect_timeout=TIMEOUT, command_timeout=TIMEOUT, tls=self.tls_ca_cert is not None,
            tls_ca_cert=self.tls_ca_cert,
        )  # fmt: skip

    def redis_py(self) -> Any:
        return redis.Redis(**self.redis_py_options())

    def redis_py_options(self) -> dict[str, Any]:
        return {
            "port": self.port, "username": self.username, "password": self.password, "protocol": 2,
            "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, "ssl": self.tls_ca_cert is not None,
            "ssl_ca_certs": self.tls_ca_cert,
        }  # fmt: skip


class Ended(Exception):  # noqa: N818, no error
    """There is nothing left to read."""


@dataclass
class Control:
    """Controls a loop: `step` is called between its actions, and may end the process."""

    step: Callable[[str], None]
    #: Whether to end once everything was read.
    is_last: Callable[[], bool]


Loop = Callable[[Config, Journal, Control], None]


def failed(journal: Journal, error: Exception) -> None:
    """Record that the client reported an error, and continue after a moment."""
    journal.add(Failed(f"{type(error).__name__}: {error}"))
    time.sleep(0.002)


def pairs_of(fields: Iterable[Any]) -> Iterable[tuple[bytes, bytes]]:
    """The names and values of an entry, from a map or a list of the two."""
    return [(pair["name"], pair["value"]) if isinstance(pair, dict) else pair for pair in fields]
