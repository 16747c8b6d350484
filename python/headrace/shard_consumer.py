"""The shard consumer: the entries of streams in order, each stream with one owner among the members of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypedDict, Unpack

from headrace import _headrace
from headrace._headrace import Entry
from headrace.endpoint import Endpoint
from headrace.reader_base import check_schema, key_bytes, shown_streams, stream_keys
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ShardReport
from headrace.tables import SHARD_CONSUMER, documented, signature

__all__ = ["ShardBatch", "ShardConsumer", "ShardConsumerOptions", "ShardReport"]

ShardBatch = _headrace.ShardBatch

#: Called with the keys of streams.
OnStreams: TypeAlias = Callable[[list[bytes]], object]


class ShardConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `ShardConsumer`, for functions that pass them on; `ShardConsumer` documents each."""

    group: str | bytes
    member: str | bytes
    start: str
    create: bool
    lease: float
    fields: Sequence[str] | Literal["*"] | None
    unpack: Literal["payload", "json", "arrow_ipc"] | None
    payload_field: str
    max_entry_bytes: int
    on_bad_field: Literal["fail", "null", "keep"]
    metadata: Sequence[str] | Mapping[str, str] | None
    fields_as: Literal["map", "list"]
    names: Literal["text", "binary"]
    batch_rows: int
    batch_bytes: int
    page_bytes: int
    block: float
    connections: int | None
    linger: float
    on_loss: Literal["fail", "report"]
    retry: RetryPolicy | None


class ShardConsumer:
    """Reads streams as a member of a group in which each stream has one owner, so that its entries are in order.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events", shards=12)
    with ShardConsumer(endpoint, group="billing", member="pod-3") as consumer:
        for batch in consumer:
            save([(entry.stream, entry.id, entry["payload"]) for entry in batch])
            consumer.commit(batch)
    ```

    The members of a group share the streams: with shards, entries of equal keys are in one stream, so that one member
    at a time has them, in their order. Members come and go as they like; each takes its share, gives up what is above
    it, and takes over what a member that died had. Nobody takes a stream from a member that is alive.

    **Commits.** `commit` stores the place up to which a stream is done: the next owner begins there. After a crash, the
    entries since the last commit are returned again: at least once. A commit that comes too late, because another
    member owns the stream by then, has no effect, and counts as `fenced`. `ShardBatch.epoch` is a fencing token: a
    database that stores it can refuse what an earlier owner writes, and then has each entry once.

    **Leases.** A thread renews them, every third of `lease`. A member that could not do that for `lease`, because it
    was stopped or the server was away, may have lost its streams: `ShardBatch.check` raises `LeaseLostError`. Times
    are those of the server.

    **Coming and going.** When a member has more than its share, it returns no further batch of a stream that it gives
    up; what it has returned may be committed for as long as `lease`, and as soon as it is, the next owner has the
    stream. The end of the `with` block gives everything up at once.

    **Threads and processes.** `poll`, `flush` and `close` take one caller at a time. Any thread may call the other
    methods at any time, because they do not wait for a server. The GIL is released while a call waits; Ctrl-C is
    noticed within 0.1 s. A consumer belongs to the process that created it.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes, the same for all members of the group. Default: the stream of
            the endpoint, or its shards.
        on_assigned: Called with the keys of streams that this member has got, before their first batch, by the thread
            that polls. An exception ends that call.
        on_revoked: Called with the keys of streams that it gives up or has lost, by the thread that polls: commit what
            is done.
        schema: The fields that become columns, with their types, as for `Reader`. Mutually exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
        ConnectionFailedError: The server could not be reached.
        CommandError: The server refused a command.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        on_assigned: OnStreams | None = None,
        on_revoked: OnStreams | None = None,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ShardConsumerOptions],
    ) -> None:
        check_schema(schema)
        keys = stream_keys(streams)
        self._native = _headrace.ShardConsumer(endpoint, keys, resolved({**options}), schema)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._group = key_bytes(options["group"])
        self._member = key_bytes(options["member"])
        self._calls = {"assigned": on_assigned, "revoked": on_revoked}

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that entries are read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of all streams that the members share."""
        return self._streams.copy()

    @property
    def group(self) -> bytes:
        """The name of the group."""
        return self._group

    @property
    def member(self) -> bytes:
        """The name of this member."""
        return self._member

    @property
    def assignment(self) -> list[bytes]:
        """The keys of the streams that this member owns now."""
        return self._native.assignment

    def __iter__(self) -> Iterator[ShardBatch]:
        return self

    def __next__(self) -> ShardBatch:
        if (batch := self.poll()) is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = None) -> ShardBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes. A member without a stream waits until it gets one.

        Raises:
            DataLossError: Entries were trimmed before they were read, and `on_loss` is `"fail"`.
            FieldError: A value does not fit its column or a payload cannot be unpacked, and `on_bad_field` is `"fail"`.
            StreamReplacedError: A stream is not the one that was committed before. The next call continues with the
                others.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command, perhaps one for a lease or a commit. The next call continues.
            ClosedError: The consumer is closed.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            what, value = self._native.poll(timeout)
            if what == "batch":
                return value  # type: ignore[no-any-return]
            if what == "nothing":
                return None
            if (call := self._calls[what]) is not None:
                call(value)
            if ends is not None:
                timeout = max(0.0, ends - time.monotonic())

    def commit(self, batch: ShardBatch | Entry) -> None:
        """Commit a batch, or its entries up to this one, and with it everything before it in its stream.

        The commit is sent immediately, by another thread; `flush` waits for it. It changes nothing if another member
        owns the stream by now: its entries then count as `fenced`.

        Args:
            batch: A batch of this consumer, or an entry of one.
        """
        self._native.commit(batch)

    def flush(self, timeout: float | None = None) -> ShardReport:
        """Wait until the server has processed every commit, for at most `timeout` seconds, and return the counts.

        Raises:
            CommandError: The server refused a commit. It is tried again.
        """
        return ShardReport(**self._native.flush(timeout))

    def close(self, timeout: float = 10.0) -> ShardReport:
        """Close the consumer, and return the counts.

        Commits are sent, and all streams are given up, so that other members have them immediately. If that is not
        possible within `timeout` seconds, they have them when the leases end: see `ShardReport.unknown`.

        Raises:
            CommandError: The server refused a commit.
        """
        return ShardReport(**self._native.close(timeout))

    def report(self) -> ShardReport:
        """Return the counts so far."""
        return ShardReport(**self._native.report())

    def stop(self) -> None:
        """End the loop: `poll` returns None immediately. Can be called from any thread and from a signal handler."""
        self._native.stop()

    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`.

        Raises:
            SchemaError: The first entry determines the columns, and none was read yet.
        """
        return self._native.__arrow_c_schema__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        names = f"member {_headrace.shown_names([self._member])} of group {_headrace.shown_names([self._group])}"
        return f"<{type(self).__name__}: {names}, {shown_streams(self._streams, self._endpoint)}>"


ShardConsumer.__doc__ = documented(ShardConsumer.__doc__, SHARD_CONSUMER)
ShardConsumer.__signature__ = signature(  # type: ignore[attr-defined]
    ShardConsumer, SHARD_CONSUMER.values(), required=("group", "member")
)
