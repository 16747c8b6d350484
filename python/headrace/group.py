"""Administration of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.reader_base import key_bytes

__all__ = ["Group"]

#: `"earliest"`, `"latest"`, an entry ID, `(` and an entry ID, or a datetime with a time zone.
Start: TypeAlias = str | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Group:
    r"""Administers a consumer group of the endpoint's stream: creates, moves, watches, cleans up and destroys it.

    ```python
    group = Group(Endpoint(host="redis", stream_key="order-events"), "billing")
    group.create(start="earliest")
    print(group.pending(min_idle=60).to_pylist())  # or polars.DataFrame(group.pending(min_idle=60))
    group.remove_idle_consumers(3600)
    ```

    A group is immutable and holds no connection: each call opens one, with the endpoint's timeouts, TLS and
    credentials, and closes it at the end. It never creates the endpoint's `consumer_group`. Any thread may call it,
    even after a fork; the GIL is released while a call waits, and Ctrl-C is noticed within 0.1 s. docs/groups.md lists
    the commands and the permissions that they need.

    Names are str, sent as UTF-8, or bytes. In tables they are utf8: a byte that is not UTF-8 is shown as `\xNN`, and a
    backslash as two.

    Args:
        endpoint: The server and the stream.
        name: The name of the group.

    Raises:
        ConfigError: An argument has the wrong type or is out of range; nothing was sent. (All calls.)
        GroupMissingError: The stream or the group does not exist. (All calls except `create`, `assign` and `destroy`.)
        CommandError: The server refused the command: a permission is missing, or the key does not hold a stream. (All
            calls.)
        ConnectionFailedError: The server could not be reached, or the connection to it was lost; the message states
            whether a change may have taken effect. (All calls.)
    """

    def __init__(self, endpoint: Endpoint, name: str | bytes) -> None:
        self._endpoint = endpoint
        self._native = _headrace.Group(endpoint, {"name": name})

    @property
    def endpoint(self) -> Endpoint:
        """The server and the stream."""
        return self._endpoint

    @property
    def name(self) -> str | bytes:
        """The name of the group: a str, or bytes if it is not UTF-8."""
        return self._native.name

    def create(self, start: Start = "latest", mkstream: bool = True) -> bool:
        """Create the group, and return whether it was created: False if it exists, in which case it is left as it is.

        Args:
            start: The first entry that the group gets. `"latest"`: the next one to be added. `"earliest"`: the first in
                the stream. An entry ID (`"1713091234567-0"`, or `"1713091234567"` for its first millisecond): that
                entry, or the next one that exists. `"(1713091234567-0"`: the entry after it. A datetime with a time
                zone: the first entry with an ID of that time or later.
            mkstream: Whether to create a missing stream, which is then empty.

        Raises:
            GroupMissingError: The stream does not exist, and `mkstream` is off.
        """
        return self._native.create({"start": _place("start", start), "mkstream": mkstream})

    def set_position(self, start: Start, entries_read: int | None = None) -> None:
        """Set the entry that the group gets next. Pending entries stay pending.

        Pending entries from `start` on are delivered again, to whichever consumer reads: they change owner, and their
        number of deliveries restarts at 1.

        Args:
            start: As for `create`.
            entries_read: How many entries were ever added to the stream before `start`: Redis 7.0 and later, and
                Valkey, compute the lag from it. Default None: unknown.
        """
        self._native.set_position({"start": _place("start", start), "entries_read": entries_read})

    def pending(
        self,
        min_idle: float | None = None,
        consumer: str | bytes | None = None,
        start: str | datetime | None = None,
        limit: int | None = 1000,
    ) -> _headrace.Rows:
        """Return the entries that were delivered but not acknowledged, in the order of their IDs.

        The entries are fetched in pages of 10,000, which are not one snapshot. With `min_idle` the server examines each
        pending entry in turn.

        Args:
            min_idle: Seconds: only entries whose last delivery was at least this long ago. Default None: all.
            consumer: Only entries of this consumer. Default None: all.
            start: The first ID: an entry ID, `(` and an entry ID for the one after it (to continue after a page), or a
                datetime with a time zone. Default None: from the beginning.
            limit: The maximum number of rows. Default 1,000; None: all.

        Returns:
            A table for any Arrow library, as in `pyarrow.table(group.pending())`, or as Python objects, by
            `to_pylist()`: `entry_id` (utf8), `consumer` (utf8), `idle` (duration in ms, since the last delivery),
            `deliveries` (int64).
        """
        place = None if start is None else _place("start", start)
        return self._native.pending({"min_idle": min_idle, "consumer": consumer, "start": place, "limit": limit})

    def claim(self, consumer: str | bytes, ids: Iterable[str | bytes], min_idle: float = 0) -> list[str]:
        """Make a consumer the owner of pending entries, and return the IDs that it got: for a watchdog.

        The result omits IDs that are not pending, or were delivered or claimed less than `min_idle` ago. The consumer
        finds the claimed entries when it reads its own pending entries. Their number of deliveries does not change, and
        acknowledged entries do not become pending again. Entries that were deleted from the stream are not claimed (on
        Redis 6.2 they are).

        Args:
            consumer: The new owner.
            ids: Entry IDs, such as `[row["entry_id"] for row in group.pending().to_pylist()]`. Sent 1,000 at a time.
            min_idle: The minimum number of seconds since the last delivery. With 0, entries are taken from consumers
                that are still processing them, and these do not notice.
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise ConfigError(f"ids must be a sequence of entry IDs, got {type(ids).__name__}", option="ids")
        return self._native.claim(list(ids), {"consumer": consumer, "min_idle": min_idle})

    def delete_consumer(self, name: str | bytes) -> bool:
        """Delete a consumer that has no pending entries, and return whether it existed.

        A script checks and deletes in one step. (XGROUP DELCONSUMER alone drops pending entries: no consumer ever gets
        them again.)

        Raises:
            StateError: The consumer has pending entries; the message states how many.
        """
        return self._native.delete_consumer({"consumer": name})

    def remove_idle_consumers(self, idle: float) -> list[str | bytes]:
        """Delete the consumers that have long been idle and have no pending entries, and return their names.

        A deleted consumer that reads again is created again.

        Args:
            idle: Seconds since the consumer last got or claimed an entry (`inactive` of XINFO CONSUMERS; before Redis
                7.2 `idle`), or since its creation if it never did.
        """
        return self._native.remove_idle_consumers({"idle": idle})

    def assign(
        self,
        pins: Mapping[str, str | bytes | None] | Mapping[bytes, str | bytes | None],
        streams: Iterable[str | bytes] | None = None,
    ) -> None:
        """Pin streams to members of a group of `ShardConsumer`s: only that member takes the stream from then on.

        It has the stream in addition to its share. Another member that owns it gives it up within half a second, and
        what that one has returned may be committed for as long as its `lease`. While the member is not there, the
        stream has no owner. The group need not exist yet.

        ```python
        group = Group(Endpoint(host="redis", stream_key="payments", shards=12), "billing")
        group.assign({"payments:3": "pod-1", "payments:4": None})
        ```

        Args:
            pins: The key of a stream, and the name of the member; None frees the stream: any member takes it.
            streams: The keys of all streams that the members share, as they name them. Default: the stream of the
                endpoint, or its shards.
        """
        if not isinstance(pins, Mapping):
            raise ConfigError(
                f"pins must be a mapping from streams to members, got {type(pins).__name__}", option="pins"
            )
        self._native.assign(list(pins.items()), None if streams is None else list(streams))

    def destroy(self) -> bool:
        """Destroy the group with its consumers and their lists of pending entries, and return whether it existed.

        The stream and its entries remain.
        """
        return self._native.destroy()

    def __repr__(self) -> str:
        if "_native" not in self.__dict__:  # in a traceback of the constructor
            return "<Group: not created>"
        return f"<Group: {_headrace.shown_names([key_bytes(self.name)])} of {self._endpoint}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._endpoint, self.name)


def _place(option: str, start: object) -> object:
    """Convert a datetime to the entry ID of its millisecond, rounded up; the core checks everything else."""
    if not isinstance(start, datetime):
        return start
    if start.tzinfo is None:
        raise ConfigError(f"{option} must be a datetime with a time zone, got {start!r}", option=option)
    milliseconds = -((_EPOCH - start) // _MILLISECOND)
    if milliseconds < 0:
        raise ConfigError(f"{option} must not be before 1970, got {start!r}", option=option)
    return str(milliseconds)
