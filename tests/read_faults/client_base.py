"""What all reading programs have in common: what they are given, how they are watched, and how they tell of errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis

from faults.fault_kinds import TIMEOUT
from headrace import Endpoint

from .journal import Failed, Journal

#: The group of the clients that read in one, and the stream of its dead letters.
GROUP = "group"
DEAD_LETTERS = "dead letters"


@dataclass(frozen=True)
class GroupRules:
    """What all consumers of a group must have in common."""

    min_idle: float = 0.5
    #: None: an entry is tried for ever.
    max_failures: int | None = None


@dataclass(frozen=True)
class Config:
    """All that a reading process is given."""

    client: str
    port: int
    username: str
    password: str
    tls_ca_cert: str | None
    keys: tuple[str, ...]
    journal: str
    #: Each process of an episode draws other options.
    seed: int
    #: In a group: the consumer.
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
    """How a loop is watched: `step` is called between all that it does, and may end the process."""

    step: Callable[[str], None]
    #: Whether to end once nothing is left.
    is_last: Callable[[], bool]


Loop = Callable[[Config, Journal, Control], None]


def failed(journal: Journal, error: Exception) -> None:
    """The client reported an error, and goes on after a moment."""
    journal.add(Failed(f"{type(error).__name__}: {error}"))
    time.sleep(0.002)


def pairs_of(fields: Iterable[Any]) -> Iterable[tuple[bytes, bytes]]:
    """The names and values of an entry, from a map or a list of the two."""
    return [(pair["name"], pair["value"]) if isinstance(pair, dict) else pair for pair in fields]
