"""Streams, their groups, consumers, pending entries, leases and members, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.wording import counted

__all__ = ["Inspection", "inspect"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The attributes of `Inspection` that are tables, and the noun for one row.
_TABLES: Final = {"streams": "stream", "groups": "group", "consumers": "consumer", "pending": "pending"}
#: Those that only groups of shard consumers have.
_SHARED: Final = {"leases": "lease", "members": "member"}


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    r"""The result of `inspect`: tables for any Arrow library, or as Python objects: `found.groups.to_pylist()`.

    Keys and names are utf8: a byte that is not UTF-8 is shown as `\xNN`, and a backslash as two.

    Attributes:
        streams: One row per stream: `key`, `exists`, `length`, `entries_added` (null before Redis 7.0), `first_id`,
            `first_timestamp`, `last_id`, `last_timestamp`, `last_generated_id`, `max_deleted_id` (of the entries that
            XDEL removed), `memory` (bytes, estimated from a sample; null without permission for MEMORY USAGE),
            `groups`. A stream that does not exist has `exists` false, `length` 0 and nulls.
        groups: One row per group: `stream`, `name`, `consumers`, `pending`, `last_delivered_id`, `entries_read`, `lag`
            (the number of entries that the group has not received yet), `lag_unknown_reason` (null where the lag is
            known), `trimmed_unread` (entries that were trimmed before the group received them: docs/groups.md states
            how exact it is), `oldest_pending_id`, `oldest_pending_timestamp`.
        consumers: One row per consumer: `stream`, `group`, `name`, `pending`, `idle` (duration in ms, since it last
            asked for entries; before Redis 7.2 since it last got one), `inactive` (since it last got one; null before
            Redis 7.2, and if it never got one).
        pending: The pending entries with the lowest IDs of each group: `stream`, `group`, `entry_id`, `consumer`,
            `idle` (duration in ms, since the last delivery), `deliveries`.
        now: The server's time; None without permission for TIME.
        truncated: Whether a pattern matched more than 10,000 streams; the tables then cover 10,000 of them.
        leases: One row per stream and group of `ShardConsumer`s: `stream`, `group`, `owner` (also if the lease has
            ended; null if it was given up), `epoch` (at least the milliseconds of the server's clock when the lease was
            taken; 0: it never was), `until` (when it ends unless it is renewed), `position` (the last entry that was
            committed), `committed_at`, `lag` (the number of entries that were not committed), `lag_unknown_reason`,
            `pinned` (the member that alone may take it), `failures` (how often the first entry after `position` has
            failed), `reason` (why it, or one of those that follow, failed the last time).
        members: One row per member of such a group: `stream` (beside which their list is: of those that they share, the
            one with the smallest key), `group`, `name`, `until` (until when it counts unless it is heard of again),
            `streams` (how many of the inspected ones it owns).
    """

    streams: _headrace.Rows
    groups: _headrace.Rows
    consumers: _headrace.Rows
    pending: _headrace.Rows
    now: datetime | None
    truncated: bool
    leases: _headrace.Rows
    members: _headrace.Rows

    def __repr__(self) -> str:
        counts = (counted(len(getattr(self, name)), noun, name) for name, noun in self._shown())
        return f"<Inspection: {', '.join(counts)}>"

    def _repr_html_(self) -> str:
        from headrace import notebook

        return "".join(notebook.rows(getattr(self, name), noun, name) for name, noun in self._shown())

    def _shown(self) -> list[tuple[str, str]]:
        """The tables and their nouns: those of shard consumers only if there are any."""
        return [*_TABLES.items(), *(table for table in _SHARED.items() if len(getattr(self, table[0])))]


def inspect(
    endpoint: Endpoint,
    streams: str | bytes | Iterable[str | bytes] | None = None,
    groups: bool = True,
    pending_limit: int = 1000,
) -> Inspection:
    """Inspect streams, their groups, consumers and pending entries.

    ```python
    found = headrace.inspect(Endpoint(host="redis", stream_key="order-events"))
    print(found.groups.to_pylist())  # or polars.DataFrame(found.groups)
    ```

    This takes two round trips over a connection of its own, and SCANs for a pattern. The tables are not one snapshot:
    what happens between two of the commands may show in one table and not in another. Nothing is changed, and the
    endpoint's `consumer_group` is not created. docs/groups.md lists the commands and the permissions that they need.

    Args:
        endpoint: The server, and the stream unless `streams` names others.
        streams: Keys; or a glob-style pattern as a single str or bytes, such as `"*"` or `"orders-*"`, for the streams
            of the endpoint's database that match (without any of `*`, `?`, `[` and a backslash it is a key). Default
            None: the endpoint's stream.
        groups: Whether to inspect groups, consumers, pending entries, leases and members too.
        pending_limit: The maximum number of pending entries of each group, 0 to 100,000. Default 1,000.

    Raises:
        ConfigError: An argument has the wrong type or is out of range; nothing was sent.
        CommandError: The server refused a command: a permission is missing, or a key does not hold a stream.
        ConnectionFailedError: The server could not be reached, or the connection to it was lost.
    """
    options: dict[str, object] = {"groups": groups, "pending_limit": pending_limit}
    now, truncated, tables = _headrace.inspect(endpoint, _keys(streams), isinstance(streams, str | bytes), options)
    time = None if now is None else _EPOCH + timedelta(microseconds=now)
    of_streams, of_groups, of_consumers, of_pending, leases, members = tables
    return Inspection(of_streams, of_groups, of_consumers, of_pending, time, truncated, leases, members)


def _keys(streams: object) -> list[Any] | None:
    """Return the keys, or the pattern alone; the core checks each."""
    if streams is None or isinstance(streams, str | bytes):
        return None if streams is None else [streams]
    if isinstance(streams, Iterable):
        return list(streams)
    got = type(streams).__name__
    raise ConfigError(f"streams must be a sequence of keys, or a key or pattern, got {got}", option="streams")
