"""Consumer groups with entries that real consumers have read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace import Endpoint, Group
from headrace.testing import LocalServer
from support.pipelines import KEY, endpoint_to

#: The group of `group_of`.
GROUP = "g"

#: redis-py types its replies too loosely to be useful here.
Client = Any


def group_of(server: LocalServer, name: str | bytes = GROUP, **options: Any) -> Group:
    """A group of the stream `KEY`."""
    return Group(endpoint_to(server, **options), name)


def add(client: Client, count: int, *, first: int = 1, key: str | bytes = KEY) -> list[str]:
    """Add entries with the IDs 1-0, 2-0, … and return these."""
    ids = [f"{number}-0" for number in range(first, first + count)]
    pipeline = client.pipeline(transaction=False)
    for entry_id in ids:
        pipeline.execute_command("XADD", key, entry_id, "field", "value")
    pipeline.execute()
    return ids


def read(
    client: Client, consumer: str | bytes, count: int, *, key: str | bytes = KEY, group: str | bytes = GROUP
) -> list[str]:
    """Read new entries as a consumer, so that they are pending, and return their IDs."""
    reply = client.execute_command("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">")
    return [entry_id.decode() for _, entries in (reply or []) for entry_id, _ in entries]


def rows(table: object) -> list[dict[str, Any]]:
    """The rows of an Arrow table of any kind."""
    return pa.table(table).to_pylist()  # type: ignore[no-any-return]


def row(table: object) -> dict[str, Any]:
    """The only row of a table."""
    (only,) = rows(table)
    return only


def pending_of(client: Client, key: str | bytes = KEY, group: str | bytes = GROUP) -> dict[str, tuple[bytes, int]]:
    """The pending entries as redis-py reads them: the consumer and the number of deliveries, by ID."""
    found = client.xpending_range(key, group, "-", "+", 1_000_000)
    return {entry["message_id"].decode(): (entry["consumer"], entry["times_delivered"]) for entry in found}


def endpoint_for(server: LocalServer, username: str, **options: Any) -> Endpoint:
    """An endpoint for a user with the password `p`."""
    return endpoint_to(server, username=username, password="p", **options)
