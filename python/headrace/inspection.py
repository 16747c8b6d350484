"""Streams, their groups, consumers and pending entries, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError

__all__ = ["Inspection", "inspect"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    r"""What `inspect` found. The tables are for any Arrow library: `pyarrow.table(found.groups)`.

    Keys and names are utf8: a byte that is not UTF-8 is shown as `\xNN`, and a backslash as two.

    Attributes:
        streams: One row per stream: `key`, `exists`, `length`, `entries_added` (null before Redis 7.0), `first_id`,
            `first_timestamp`, `last_id`, `last_timestamp`, `last_generated_id`, `max_deleted_id` (of the entries that
            XDEL removed), `memory` (bytes, estimated from a sample; null without the right to MEMORY USAGE), `groups`.
            A stream that does not exist has `exists` false, `length` 0 and nulls.
        groups: One row per group: `stream`, `name`, `consumers`, `pending`, `last_delivered_id`, `entries_read`, `lag`
            (the entries of the stream that the group has not been given), `lag_unknown_reason` (null where the lag is
            known), `trimmed_unread` (entries that were trimmed before the group was given them: docs/groups.md says how
            exact it is), `oldest_pending_id`, `oldest_pending_timestamp`.
        consumers: One row per consumer: `stream`, `group`, `name`, `pending`, `idle` (duration in ms, since it last
            asked for entries; before Redis 7.2 since it last got one), `inactive` (since it last got one; null before
            Redis 7.2, and if it never did).
        pending: The pending entries with the lowest IDs of each group: `stream`, `group`, `entry_id`, `consumer`,
            `idle` (duration in ms, since the last delivery), `deliveries`.
        now: The server's time; None without the right to TIME.
        truncated: Whether a pattern found more than 10,000 streams. Then 10,000 of them are here.
    """

    streams: _headrace.Rows
    groups: _headrace.Rows
    consumers: _headrace.Rows
    pending: _headrace.Rows
    now: datetime | None
    truncated: bool

    def __repr__(self) -> str:
        counts = (f"{len(getattr(self, name)):,} {name}" for name in ("streams", "groups", "consumers", "pending"))
        return f"<Inspection: {', '.join(counts)}>"


def inspect(
    endpoint: Endpoint,
    streams: str | bytes | Iterable[str | bytes] | None = None,
    groups: bool = True,
    pending_limit: int = 1000,
) -> Inspection:
    """Look at streams, their groups, consumers and pending entries.

    ```python
    found = headrace.inspect(Endpoint(host="redis", stream_key="order-events"))
    print(polars.DataFrame(found.groups))
    ```

    Two round trips over a connection of its own; with a pattern also SCANs. The tables are not one snapshot: what
    happens between two of the commands shows in one table and not in another. Nothing is changed, and the endpoint's
    `consumer_group` is not created. docs/groups.md lists the commands and the rights that they need.

    Args:
        endpoint: The server, and the stream if `streams` does not name others.
        streams: Keys; or a glob-style pattern as a single str or bytes, such as `"*"` or `"orders-*"`, for the streams
            of the endpoint's database that match (without any of `*`, `?`, `[` and a backslash it is a key). Default
            None: the endpoint's stream.
        groups: Whether to look at groups, consumers and pending entries too.
        pending_limit: Pending entries at most of each group, 0 to 100,000. Default 1,000.

    Raises:
        ConfigError: An argument has the wrong type or is out of range; nothing was sent.
        CommandError: The server refused a command: a missing right, a key that holds no stream.
        ConnectionFailedError: The server was not reached, or lost.
    """
    options: dict[str, object] = {"groups": groups, "pending_limit": pending_limit}
    now, truncated, *tables = _headrace.inspect(endpoint, _keys(streams), isinstance(streams, str | bytes), options)
    of_streams, of_groups, of_consumers, of_pending = tables
    time = None if now is None else _EPOCH + timedelta(microseconds=now)
    return Inspection(of_streams, of_groups, of_consumers, of_pending, time, truncated)


def _keys(streams: object) -> list[Any] | None:
    """The keys, or the pattern alone; the core checks each."""
    if streams is None or isinstance(streams, str | bytes):
        return None if streams is None else [streams]
    if isinstance(streams, Iterable):
        return list(streams)
    got = type(streams).__name__
    raise ConfigError(f"streams must be a sequence of keys, or a key or pattern, got {got}", option="streams")
