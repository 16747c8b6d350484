"""The streams a, b and c, of which b becomes one that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: redis-py types its replies too loosely to be useful here.
Client = Any
Change = Callable[[Client], object]

STREAMS = ["a", "b", "c"]


def fill(client: Client, streams: Iterable[str], count: int = 5) -> None:
    """Add entries to each stream."""
    for stream in streams:
        for _ in range(count):
            client.xadd(stream, {"n": 1})


def allow(client: Client) -> None:
    """Give the user `limited`, whose password is `secret`, all rights."""
    client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "+@all", "~*")


def forbid(client: Client) -> None:
    """Take the right to use b from the user."""
    client.execute_command("ACL", "SETUSER", "limited", "resetkeys", "~a", "~c", "~d*")


def delete(client: Client) -> None:
    """Delete b."""
    client.delete("b")


def recreate(client: Client) -> None:
    """Replace b by a stream with older entries."""
    client.delete("b")
    client.xadd("b", {"n": 1}, id="1-0")


def rewrite(client: Client) -> None:
    """Replace b by a stream with fewer entries."""
    client.delete("b")
    client.xadd("b", {"n": 1})


def overwrite(client: Client) -> None:
    """Replace b by a string."""
    client.set("b", "a string")
