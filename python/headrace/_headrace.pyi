"""The native half of headrace. Use `headrace.Dispatcher`, `headrace.Endpoint` and `headrace.DeliveryReport` instead."""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import (
    Any,
    Final,
    Literal,
    Never,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    final,
    overload,
)
from uuid import UUID

from typing_extensions import disjoint_base

__all__ = [
    "MOST_DELIVERIES",
    "Commands",
    "Consumer",
    "ConsumerBatch",
    "Counters",
    "Delivered",
    "Dispatcher",
    "Endpoint",
    "Entry",
    "Group",
    "GroupInfo",
    "LeaseInfo",
    "LoopBatch",
    "LoopDispatcher",
    "Outcomes",
    "ReadBatch",
    "ReadCounters",
    "Reader",
    "Report",
    "Rows",
    "ShardBatch",
    "ShardConsumer",
    "StreamInfo",
    "Survey",
    "Undelivered",
    "__version__",
    "advice",
    "advised",
    "code_table",
    "counter_table",
    "debug_build",
    "decode_rows",
    "inspect",
    "kept_fields",
    "marker_key",
    "option_table",
    "read_dead_letter",
    "read_options",
    "shard_numbers",
    "shown_names",
    "split_dead_letters",
    "time_zones",
]

__version__: Final[str]
debug_build: Final[bool]
MOST_DELIVERIES: Final[int]

_T = TypeVar("_T")
_Kind = Literal["permanent", "retryable"]
_Written = Literal["no", "unknown"]
_Origin = Literal["consumer", "spark", "send", "other"]

def advice(code: str, message: str) -> str | None:
    """Return what the caller can do about a failure with this code and message, or None."""

def advised(code: str, message: str) -> str:
    """Return the message of a failure, what to do about it, and where the documentation explains its code."""

def code_table() -> list[tuple[str, bool, dict[str, _Kind], bool, bool, bool, list[_Written], str | None, str]]:
    """Return the rows of the table of error codes, headrace's own first; `headrace.tables` names their parts."""

def counter_table(name: str) -> list[tuple[str, str, Any, bool, str, str | None, str | None, str]]:
    """Return a table of counters by its name, such as `node` or `report`; `headrace.tables` names its parts."""

def option_table(name: str) -> list[tuple[str, str, object, bool, bool, str]]:
    """Return a table of options by its name, such as `endpoint` or `datasource_read`."""

def read_options(name: str, options: dict[str, str]) -> dict[str, Any]:
    """Read the options of a table from text. A missing option has its default, or None if it has none."""

def time_zones() -> tuple[str, Path | None]:
    """Return the release of the IANA time zone database in use, and its folder, or None if it is compiled in."""

class _ArrowArray(Protocol):
    """A record batch of any Arrow library."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class _ArrowSchema(Protocol):
    """A schema of any Arrow library."""

    def __arrow_c_schema__(self) -> object: ...

#: The columns of a reader: an Arrow schema, or the names of fields with those of their types.
_Schema: TypeAlias = _ArrowSchema | Mapping[str, str]

class _ArrowStream(Protocol):
    """A table or a reader of any Arrow library."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class _Layout(TypedDict, total=False):
    """The keyword arguments of `Dispatcher.produce_batch`, for functions that pass them on."""

    payload: str | None
    fields: Sequence[str] | None
    fields_from: str | None
    json: bool | Sequence[str] | None
    message_id: str | None
    stream_key: str | None
    shard_key: str | None
    entry_id: str | None
    rows_per_entry: int | None
    arrow_ipc: bool
    codec: Literal["lz4", "zstd"] | None

_Bytes: TypeAlias = bytes | bytearray | memoryview | str
_FieldValue: TypeAlias = _Bytes | int | float | bool | Decimal | date | time | timedelta | UUID | None

class _Mapping(Protocol):
    """A mapping with names of either type: `Mapping` takes keys of exactly one type."""

    def items(self) -> Set[tuple[str | bytes, _FieldValue]]: ...

_Fields: TypeAlias = _Mapping | Sequence[tuple[str | bytes, _FieldValue]]

class _More(TypedDict, total=False):
    """The arguments of a message that is more than a payload, for functions that pass them on."""

    fields: _Fields | None
    stream_key: _Bytes | None
    entry_id: str | None

class _Futures(Protocol):
    """The futures of messages that tasks await, in the order of the messages: a deque."""

    def popleft(self) -> object: ...

@disjoint_base
class Dispatcher:
    """The native half of `headrace.Dispatcher`, which documents it."""
    def __new__(cls, endpoint: Endpoint, options: dict[str, object], text: bool = False) -> Self: ...
    def produce(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> None:
        """Produce one message: a payload, fields, or both. Waits only for room in the window.

        The entry has the payload, then the fields, then `ts`. A message without any field fails: permanent, `EMPTY`.

        Args:
            payload: Bytes-like, or a str that is sent as UTF-8. A payload longer than the server accepts
                (`proto-max-bulk-len`, 512 MiB by default) fails alone: permanent, `TOO_LARGE`. Default None: there is
                none.
            message_id: The caller's name for the message, which reports contain: a str of at most 16 KiB, or a 64-bit
                int. Default None: the message's ordinal since the last flush.
            key: The key that selects the shard, if the endpoint has `shards`: bytes-like, or a str, which is read as
                UTF-8. Messages with equal keys go to the same shard, in order. Default None: the shards take turns.
            fields: A mapping, or a sequence of pairs, which may have equal names. Names are str or bytes. Values are
                bytes-like or str, or of a type that is written as a column of it would be (see `produce_batch`): int,
                float, bool, Decimal, date, time, datetime, timedelta, UUID. A field with None is left out.
            stream_key: The message's own stream, bytes-like or a str. Default None: the endpoint's. Mutually exclusive
                with `shards`.
            entry_id: The message's own entry ID, a str: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`. Anything else fails:
                permanent, `BAD_ENTRY_ID`. Default None: the server chooses it.

        Raises:
            ConfigError: `key` was given, but the endpoint has no shards; or an argument that the options rule out.
            MessageError: An argument has the wrong type or is out of range, or a field has the name of the payload's
                field or of `ts`. Nothing was sent.
            ClosedError: The dispatcher is closed.
            ConcurrentUseError: A handler of signals or log records calls it in the middle of another call.
        """

    def produce_batch(
        self,
        data: _ArrowArray | _ArrowStream,
        *,
        payload: str | None = None,
        fields: Sequence[str] | None = None,
        fields_from: str | None = None,
        json: bool | Sequence[str] | None = None,
        message_id: str | None = None,
        stream_key: str | None = None,
        shard_key: str | None = None,
        entry_id: str | None = None,
        rows_per_entry: int | None = None,
        arrow_ipc: bool = False,
        codec: Literal["lz4", "zstd"] | None = None,
    ) -> None:
        """Produce every row of Arrow data as a message, read directly from its buffers.

        `payload`, `fields` or both, `fields_from` or `json` select the contents of a row's entry; each entry also has
        the field `ts`, with `fields_from` only if `ts_field` was given. A row that cannot be written (a null payload,
        no field at all) fails alone, with a permanent outcome. `rows_per_entry` and `arrow_ipc` put many rows into one
        entry, which costs the server less: each row has its own outcome, but shares the ID of its entry, and `maxlen`
        counts entries.

        Args:
            data: A record batch, table or reader with the Arrow PyCapsule interface: pyarrow, polars, pandas and
                others. A reader is read one record batch at a time. If it fails, the rows before the failure are
                accepted.
            payload: Column with the payload: utf8, large_utf8, utf8_view, binary, large_binary or binary_view. Default
                `"payload"`, unless `fields`, `fields_from` or `json` is given. A null fails: `NULL_PAYLOAD`; with
                `fields`, which come after the payload, it is left out.
            fields: Columns that become one field each, under their names. Typed values are written as text; nulls are
                left out. A row with only nulls fails: `EMPTY`; one with a time outside a day fails: `BAD_VALUE`. Nested
                columns are refused.
            fields_from: Column with all fields of the entry, which are sent unchanged and in order: a map, or a list of
                `struct<name, value>`, whose names and values are utf8 or binary of any kind. Null values are left out;
                a row without fields fails: `EMPTY`. An entry that was read into such a column is copied unchanged.
            json: True: the payload is the whole row as JSON, as Spark's `to_json` writes it (nulls left out). A
                sequence of names: only these columns. A time outside a day fails: `BAD_VALUE`.
            message_id: Column that names each row in reports: an integer type, utf8 of at most 16 KiB, or `arrow.uuid`.
                A null means the ordinal.
            stream_key: Column with the row's own stream key, utf8 or binary; null means the endpoint's.
            shard_key: Column with the key that selects the row's shard, if the endpoint has `shards`: utf8, binary or
                an integer type, whose values are read as their decimal digits. Rows with equal keys go to the same
                shard, in order. With a null, or without such a column, the shards take turns. Mutually exclusive with
                `stream_key`.
            entry_id: Column with the row's own entry ID, utf8: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`; null means
                `*`. Anything else fails: `BAD_ENTRY_ID`.
            rows_per_entry: With `payload` or `json`: up to this many rows become the fields `payload:0`, `payload:1`,
                ... of one entry, which `headrace.unpack` reads back. Default 1; 1 to 65,536. Mutually exclusive with
                `fields`, `fields_from`, `stream_key`, `shard_key` and `entry_id`. An entry holds rows of a single
                record batch, and ends with the row that fills `window_max_bytes`.
            arrow_ipc: True: the payload of an entry is an Arrow IPC stream of up to `rows_per_entry` rows (default
                10,000), with all columns or those of `fields`; `headrace.unpack_arrow` and
                `pyarrow.ipc.open_stream` read it back. Mutually exclusive with `payload`, `fields_from`, `json`,
                `stream_key`, `shard_key` and `entry_id`.
            codec: Compression for `arrow_ipc`: None (default), `"lz4"` or `"zstd"`.

        Raises:
            ConfigError: `rows_per_entry` or `codec` is invalid, `shard_key` is given but the endpoint has no shards, or
                an argument is given that shards rule out; nothing was sent.
            SchemaError: A column does not exist or has a type that cannot be written, or arguments are mutually
                exclusive; nothing was sent.
            ReaderError: The reader failed, or its record batch is malformed: no row of that record batch was accepted,
                but all rows before it were.
            InternalError: A defect in headrace. The rows of the record batch that were not accepted fail: permanent,
                `INTERNAL`, written no (unknown in a batch that was begun).
            ClosedError: The dispatcher is closed.
            ConcurrentUseError: A handler of signals or log records calls it in the middle of another call.
            KeyboardInterrupt: The rows of the record batch that were not accepted yet fail: retryable, `INTERRUPTED`,
                written no (unknown in a batch that was begun).
            KeyboardInterrupt, SystemExit: Raised by the reader's own Python code, such as a generator behind
                `pyarrow.RecordBatchReader.from_batches`. Their subclasses are raised as `ReaderError`.
        """

    def begin(self, token: str, version: SupportsIndex = 0) -> None:
        """Begin a batch under a token, for `exactly_once`.

        Its messages are numbered from 0 in the order in which they are produced, across flushes. Token and number
        identify a message permanently: beginning the same token again, after a crash or in another process, and
        producing the same messages in the same order writes only those that are missing. The others count as delivered
        and as `DeliveryReport.deduplicated`; their entry IDs are unknown. Without `begin` the token is random: messages
        are then safe against lost connections, but not against a crash.

        Only the server knows what an earlier attempt wrote. If a message fails before the server was asked about it (no
        connection, no permission, the whole command refused), its `written` is `"unknown"`; running the batch again
        under the same token settles it.

        With `"script"` the progress of a batch is stored beside each of its streams, in a key
        `{<stream key>}:headrace:<token>` that expires `token_ttl` seconds after the batch's last row. With `"idmp"` the
        server remembers IDs for `idmp_duration` seconds, replies with the original entry IDs, and does not report which
        messages it deduplicated; with `exactly_once_key="message_id"` token and message ID identify a message and order
        does not matter.

        Args:
            token: 1 to 1,024 bytes of UTF-8.
            version: An integer from 0 to 2**53, not a bool. A batch with a higher version takes the token over and
                starts from 0; every message of a batch with a lower version is deduplicated. So one key serves all
                micro-batches of a stream. With `"idmp"`, the version is part of the token.

        Raises:
            ConfigError: `exactly_once` is off.
            MessageError: The token or the version has the wrong type or is out of range.
            StateError: Messages are still waiting for their outcomes: call `flush` first.
            ConcurrentUseError: Another call is in progress.
        """

    def skip_failed(self) -> None:
        """Continue the batch after failed messages, for `exactly_once`.

        Messages of one stream stay in order: after one that was not written, the later ones fail too, as `BLOCKED`,
        until the batch begins again or `skip_failed` declares the reported failures handled (as dead letters, for
        example). Those messages then count as passed: once a later message of their stream is written, they are never
        written under this token.

        Raises:
            StateError: Messages are still waiting for their outcomes: call `flush` first.
            ConcurrentUseError: Another call is in progress.
        """

    def poll(self) -> Report:
        """Return the outcomes since the last report; `headrace.Dispatcher.poll` wraps it."""
    def flush(self, timeout: float | None = None) -> Report:
        """Wait for all outcomes and return them; `headrace.Dispatcher.flush` wraps it."""
    def dispatch(
        self,
        payload: _Bytes | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> str | tuple[_Kind, str, str, _Written]:
        """Send one message and return its entry ID, or its failure as kind, code, message and written."""
    def close(self) -> None:
        """Close the connection without a flush; `headrace.Dispatcher.close` wraps it."""
    @property
    def counters(self) -> Counters:
        """The counters so far; `headrace.Dispatcher.stats` reads them."""

    def _debug(self) -> str: ...
    @property
    def unreported(self) -> int:
        """The number of messages whose outcome no report contains yet."""

    @property
    def closed(self) -> bool:
        """Whether the dispatcher is closed."""

@final
class LoopDispatcher:
    """The native half of `headrace.AsyncDispatcher`, which documents it. No call waits."""
    def __new__(cls, endpoint: Endpoint, options: dict[str, object]) -> Self: ...
    def produce(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        is_awaited: bool = False,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> bool:
        """Take one message if there is room for it now, and return whether it was taken.

        With `is_awaited` a future gets its outcome.
        """
    def open_batch(self, data: _ArrowArray | _ArrowStream, **keywords: Unpack[_Layout]) -> LoopBatch:
        """Open Arrow data for `produce_rows`. The arguments are those of `Dispatcher.produce_batch`."""
    def produce_rows(self, batch: LoopBatch) -> int | None:
        """Take the next rows, at most about 1,024, if there is room now. Return how many, or None if all were taken."""
    def advance(self, futures: _Futures) -> tuple[list[tuple[int, int, bool]] | None, float | None, int]:
        """Do what can be done without waiting, and pass outcomes to the futures.

        Returns the sockets to watch, as (connection, descriptor, whether to wait until it is writable too), or None if
        they are unchanged; in how many seconds to call again at the latest, or None; and how many messages have an
        outcome.
        """
    def end_batch(self, futures: _Futures) -> int:
        """Give messages without a reply the outcome `TIMEOUT`, and number messages from 0 again."""
    def put_back(self, outcome: object) -> None:
        """Put an outcome that a future had, but no task received, into the next report."""
    def report(self) -> Report:
        """Return the outcomes since the last report, except those that futures had."""
    def begin(self, token: str, version: SupportsIndex = 0) -> None:
        """Begin a batch under a token; `headrace.AsyncDispatcher.begin` wraps it."""
    def close(self) -> None:
        """Close the connection. Messages without an outcome are given up."""
    @property
    def counters(self) -> Counters:
        """The counters so far; `headrace.AsyncDispatcher.stats` reads them."""

    def _debug(self) -> str: ...
    @property
    def taken(self) -> int:
        """The number of messages that were taken."""

    @property
    def unsettled(self) -> int:
        """The number of messages that have no outcome yet."""

@final
class LoopBatch:
    """Arrow data whose rows `LoopDispatcher.produce_rows` takes."""
    def __init__(self) -> None: ...

@final
class Delivered:
    """A message that is in its stream, as `AsyncDispatcher.send` returns it.

    Attributes:
        entry_id: The ID of its entry, such as `"1713091234567-0"`. None: an earlier attempt wrote it, and the server
            did not say under which ID (`exactly_once="script"`).
        deduplicated: Whether an earlier attempt had written the message, so that it was not written again.
    """

    __match_args__: Final[tuple[str, str]]
    def __new__(cls, entry_id: str | None, deduplicated: bool = False) -> Self: ...
    @property
    def entry_id(self) -> str | None:
        """The ID of its entry."""

    @property
    def deduplicated(self) -> bool:
        """Whether an earlier attempt had written it."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Undelivered:
    """A message that failed, until a task receives this as an exception."""
    @property
    def failure(self) -> tuple[int | str, _Kind, str, str, _Written]:
        """ID, kind, code, message and written, as `Report.failures` has them."""

@final
class Counters:
    """The counters of a dispatcher. Any thread may read them, even after the dispatcher was collected."""

    def read(self) -> dict[str, Any]:
        """Return all counters by name, as `headrace.stats.read_stats` takes them."""

@final
class ReadCounters:
    """The counters of a reader or a consumer. Any thread may read them, even after the object was collected."""

    def read(self) -> dict[str, Any]:
        """Return all counters by name, as `headrace.ReaderStats`, `ConsumerStats` or `ShardStats` takes them."""

@final
class Report:
    """The outcomes of a run of messages; `headrace.DeliveryReport` wraps it."""
    @property
    def delivered(self) -> int:
        """The number of messages that are in their stream."""
    @property
    def failed(self) -> int:
        """The number of messages that failed."""
    @property
    def deduplicated(self) -> int:
        """The number of delivered messages that an earlier attempt had written."""
    @property
    def retries(self) -> int:
        """How many times messages were sent again."""
    @property
    def possible_duplicates(self) -> int:
        """The number of retries that may have written a message a second time."""
    def failures(self, limit: int | None = None) -> list[tuple[int | str, _Kind, str, str, _Written]]:
        """Return one tuple per failed message: ID, kind, code, message and written; the first `limit`, or all."""
    def failed_ids(self) -> list[int | str]:
        """Return the IDs of the failed messages, in order."""
    def failed_by_code(self) -> dict[str, int]:
        """Return the number of failed messages by code."""
    def to_arrow(self, only_failed: bool = False) -> Outcomes:
        """Return the outcomes for any Arrow library; `headrace.DeliveryReport.to_arrow` wraps it."""

@final
class Outcomes:
    """The outcomes of a report, for any Arrow library: `pyarrow.table(outcomes)`, `polars.DataFrame(outcomes)`.

    `headrace.DeliveryReport.to_arrow` describes the columns.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the outcomes as a `PyCapsule` of the Arrow C stream interface."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the outcomes as a `PyCapsule`."""
    def __len__(self) -> int: ...

@final
class Rows:
    """Rows for any Arrow library: `pyarrow.table(rows)`, `polars.DataFrame(rows)`. `rows.to_pylist()` needs none.

    `headrace.unpack_arrow`, `headrace.inspect`, `headrace.Group.pending` and `headrace.read_dead_letters` return them.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a `PyCapsule` of the Arrow C stream interface."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the rows as a `PyCapsule`."""
    @property
    def _columns(self) -> list[str]:
        """The names of the columns."""
    def _json_rows(self, limit: int | None = None) -> list[bytes]:
        """Return each row, or the first `limit`, as a JSON object without its nulls, for commands and notebooks."""
    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each row, with Python objects as values, as `ReadBatch.to_pylist` does."""
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Group:
    """The native half of `headrace.Group`, which documents it. Arguments are dicts; a None value counts as omitted."""
    def __new__(cls, endpoint: Endpoint, arguments: dict[str, object]) -> Self: ...
    def create(self, arguments: dict[str, object]) -> bool:
        """XGROUP CREATE: `start`, `mkstream`. Returns whether the group was created."""
    def set_position(self, arguments: dict[str, object]) -> None:
        """XGROUP SETID: `start`, `entries_read`."""
    def pending(self, arguments: dict[str, object]) -> Rows:
        """XPENDING: `min_idle`, `consumer`, `start`, `limit`."""
    def claim(self, ids: list[str | bytes], arguments: dict[str, object]) -> list[str]:
        """XCLAIM of `ids`: `consumer`, `min_idle`. Returns the entry IDs that were claimed."""
    def delete_consumer(self, arguments: dict[str, object]) -> bool:
        """XGROUP DELCONSUMER of `consumer`, if nothing is pending for it. Returns whether it existed."""
    def remove_idle_consumers(self, arguments: dict[str, object]) -> list[str | bytes]:
        """XGROUP DELCONSUMER of those idle for `idle`. Returns their names: each a str, or bytes if it is not UTF-8."""
    def assign(self, pins: list[tuple[str | bytes, str | bytes | None]], streams: list[str | bytes] | None) -> None:
        """HSET or HDEL of leases: `pins`, pairs of a stream and a member or None; `streams`, or the endpoint's."""
    def destroy(self) -> bool:
        """XGROUP DESTROY. Returns whether the group existed."""
    @property
    def name(self) -> str | bytes:
        """The name of the group: a str, or bytes if it is not UTF-8."""

def inspect(
    endpoint: Endpoint, streams: list[str | bytes] | None, is_pattern: bool, options: dict[str, object]
) -> tuple[int | None, bool, list[Rows]]:
    """Inspect streams; `headrace.inspect` wraps it. `streams`: keys, or a pattern alone, or None for the endpoint's."""

def shard_numbers(keys: _ArrowArray | _ArrowStream, shards: int, shard_hash: str) -> Rows:
    """Return the shard number of each row, by the key in the only column, as 32-bit integers; null for a null."""

def kept_fields(fields: _Fields) -> list[tuple[str | bytes, _FieldValue]]:
    """Return fields in a form that does not change: pairs of a name and a value."""

def shown_names(names: list[bytes]) -> str:
    """Return names for a repr, such as those of streams: the first three, shortened, and how many more there are."""

def _panic_at(place: str | None, after: int = 0) -> bool:
    """Make this thread panic once, after it has passed `place` `after` times; None: never. Only in builds for tests.

    Return whether an earlier choice is still pending.
    """

def read_dead_letter(
    fields: Sequence[bytes],
) -> tuple[
    _Origin,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    list[tuple[bytes, bytes]],
]:
    """Read one entry, given the names and values of its fields in turn; `headrace.admin.DeadLetter` names the parts."""

def split_dead_letters(batch: ReadBatch) -> tuple[Rows, int]:
    """Return the dead letters of a batch, and how many of its entries are others; `read_dead_letters` wraps it."""

@final
class Survey:
    """Inspects streams over connections that it keeps open, one to each server, and reopens if they were lost."""

    def __new__(cls, endpoint: Endpoint) -> Self: ...
    def streams(self, keys: list[bytes]) -> list[StreamInfo]:
        """Return what the server says about each stream: XINFO STREAM."""
    def groups(self, keys: list[bytes]) -> list[tuple[StreamInfo, list[GroupInfo]]]:
        """Return what the server says about each stream and its groups: XINFO STREAM and XINFO GROUPS."""
    def leases(
        self, key: bytes, stream: StreamInfo, groups: list[GroupInfo]
    ) -> list[tuple[LeaseInfo | None, list[tuple[bytes, int]]] | None]:
        """Return the lease and the members of each group of shard consumers; None if the user may not read them.

        The members are those whose list is beside this stream: names, and until when they count, in milliseconds of the
        server's clock.
        """
    def first_ids(self, ranges: list[tuple[bytes, _Id, _Id]]) -> list[_Id | None]:
        """Return the first entry of each range `(key, first, last)`, both ends included; None if there is none."""
    def close(self) -> None:
        """Close the connections. The next call opens new ones."""

@final
class StreamInfo:
    """What a server says about a stream: XINFO STREAM. The default is a stream that does not exist."""

    def __new__(
        cls,
        length: int = 0,
        first: _Id | None = None,
        last: _Id = (0, 0),
        added: int | None = 0,
        max_deleted: _Id | None = None,
    ) -> Self: ...
    @property
    def length(self) -> int:
        """How many entries it has."""
    @property
    def first(self) -> _Id | None:
        """The oldest entry."""
    @property
    def newest(self) -> _Id | None:
        """The newest entry."""
    @property
    def last(self) -> _Id:
        """The highest ID that any of its entries had."""
    @property
    def added(self) -> int | None:
        """How many entries were ever added; None before Redis 7.0."""
    @property
    def removed(self) -> int | None:
        """How many entries were removed, by trimming or XDEL; None before Redis 7.0."""
    @property
    def max_deleted(self) -> _Id | None:
        """The highest ID that XDEL removed, if any; None before Redis 7.0."""
    @property
    def is_missing(self) -> bool:
        """Whether it does not exist."""
    def entries_after(self, after: _Id, added: int | None) -> int:
        """Return how many entries there are after an ID, at most; `added` were ever added up to it, None if unknown."""
    def loss_after(self, after: _Id, added: int | None, removed: int | None) -> tuple[int, bool] | None:
        """Return how many entries after a position were removed, and whether that is exact or an upper bound.

        `added` were ever added up to its ID, and `removed` had been removed when it was taken; None if unknown. The
        result is None if the server cannot tell.
        """

@final
class GroupInfo:
    """What a server says about a group: XINFO GROUPS, and what follows from it and the stream."""

    @property
    def name(self) -> bytes:
        """Its name."""
    @property
    def consumers(self) -> int:
        """How many consumers it has."""
    @property
    def pending(self) -> int:
        """Entries that were delivered to them and not acknowledged."""
    @property
    def last_delivered(self) -> _Id:
        """The last entry that was delivered to it or that it skipped."""
    @property
    def entries_read(self) -> int | None:
        """How many entries were ever added up to `last_delivered`; None if the server does not know it."""
    @property
    def lag(self) -> int | None:
        """Entries not yet delivered to it; None if that is not known."""
    @property
    def lag_unknown_reason(self) -> str | None:
        """Why the lag is not known."""
    @property
    def trimmed_unread(self) -> int | None:
        """Entries that were removed before it read them; None if that is not known."""

@final
class LeaseInfo:
    """The lease that a group of shard consumers has of a stream, and what follows from it and the stream.

    Times are in milliseconds of the server's clock.
    """

    @property
    def owner(self) -> bytes | None:
        """The member that owns the stream, also if the lease has ended; None if it was given up, or never taken."""
    @property
    def epoch(self) -> int:
        """The number of the lease, which is at least the time when it was taken; 0 if it never was."""
    @property
    def until(self) -> int | None:
        """When it ends unless it is renewed; None if it was given up, or never taken."""
    @property
    def position(self) -> _Id | None:
        """The last entry that was committed, or where the group began; None if nothing was committed."""
    @property
    def committed_at(self) -> int | None:
        """When that was committed."""
    @property
    def lag(self) -> int | None:
        """Entries that were not committed; None if that is not known."""
    @property
    def lag_unknown_reason(self) -> str | None:
        """Why the lag is not known."""
    @property
    def pinned(self) -> bytes | None:
        """The member that alone may take it."""
    @property
    def failures(self) -> int | None:
        """How often the first entry after the position has failed; None if it has not."""
    @property
    def reason(self) -> bytes | None:
        """Why it, or one of those that follow, failed the last time."""

_Answer = int | bytes | None | Exception | list[Any]

@final
class Commands:
    """Sends commands over connections that it keeps open: one, or one to each node of a cluster that was asked.

    Nothing is connected before the first call. Only one thread may use it at a time.

    Args:
        endpoint: The server, and the stream whose node gets the commands without a key.
        node: Host and port of a node of the endpoint's cluster that gets all commands, whichever keys they have.
        sentinel: The index of one of the endpoint's sentinels, which gets all commands.
    """

    def __new__(cls, endpoint: Endpoint, node: tuple[str, int] | None = None, sentinel: int | None = None) -> Self: ...
    def connect(self) -> tuple[list[tuple[float, str, bytes]], tuple[str, str] | None]:
        """Connect again to the server that has the endpoint's stream.

        Returns the steps (seconds since the start, name, detail), and why it failed (code, text), or None.
        """
    def call(self, commands: Sequence[tuple[bytes | None, Sequence[bytes]]], writes: bool) -> list[_Answer]:
        """Return the reply to each command: an int, bytes, None, a list, or a `CommandError` that is not raised.

        `commands` are pairs of a key and words; the key decides which node of a cluster gets the command, None means
        the endpoint's stream. With `writes` nothing is sent a second time when a connection is lost.

        Args:
            commands: Pairs of a key and words.
            writes: Whether the commands change anything.

        Raises:
            ConnectionFailedError: The server was not reached, or the connection was lost. With `writes` it is then
                unknown whether the commands took effect.
        """
    def close(self) -> None:
        """Close the connections. The next call opens new ones."""

def marker_key(stream_key: bytes, token: str) -> bytes:
    """Return the key of the marker of a batch for one stream, with `exactly_once="script"`."""

def decode_rows(stream: bytes) -> Rows:
    """Read an Arrow IPC stream; `headrace.unpack_arrow` wraps it."""

@disjoint_base
class Endpoint:
    """The native half of `headrace.Endpoint`, which documents the options."""
    def __new__(
        cls,
        options: dict[str, object],
        *,
        url: str | None = None,
        inherited: dict[str, object] | None = None,
        text: bool = False,
        options_win: bool = False,
    ) -> Self: ...
    def _option(self, name: str) -> object: ...
    @property
    def stream_keys(self) -> tuple[bytes, ...]:
        """The keys of the streams: that of the endpoint, or those of its shards."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _server(self) -> str:
        """The server alone, as `str()` begins."""
    def _state(self) -> tuple[dict[str, object], dict[str, object]]: ...
    def _found_shards(self) -> dict[str, object]: ...
    def _debug(self) -> str: ...
    def _warnings(self) -> list[str]: ...

@final
class Entry:
    """A row of a batch: an entry of a stream, or with `unpack` a row of one.

    ```python
    for entry in batch:
        print(entry.id, entry.timestamp, entry["payload"])
    ```

    The fields are those of the entry, with bytes as values. With `fields`, `schema` or `unpack` they are the columns
    of the batch but those of the metadata, with Python objects as values, as `to_pylist` returns them. The rows of an
    entry that was unpacked are entries with the same ID.

    An entry keeps its whole batch in memory, and makes each object when it is asked for. Entries are equal if they are
    the same row of the same batch. They are neither iterable nor pickled: `items()` returns the fields, and the ID and
    the fields can be pickled.
    """

    @property
    def stream(self) -> bytes:
        """The key of the stream."""
    @property
    def id(self) -> str:
        """The entry ID, as `"<milliseconds>-<sequence>"`."""
    @property
    def timestamp(self) -> datetime:
        """The time of the entry ID: a `datetime` in UTC.

        Raises:
            ValueError: The ID was not made from a clock: its milliseconds are after the year 9999.
        """
    @property
    def fields(self) -> dict[str, Any]:
        """The fields: names and values; the last value of several of the same name.

        Names are str, or bytes with `names="binary"`. An entry that was deleted has none.
        """
    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values of all fields, in order.

        Only with `fields_as="list"` does an entry have several fields of the same name.
        """
    @overload
    def get(self, name: str | bytes, default: None = None) -> Any | None:
        """Return the value of a field, or `default`."""
    @overload
    def get(self, name: str | bytes, default: _T) -> Any | _T:
        """Return the value of a field, or `default`."""
    def __getitem__(self, name: str | bytes, /) -> Any: ...
    def __contains__(self, name: str | bytes, /) -> bool: ...
    @property
    def deliveries(self) -> int:
        """How many times the entry was delivered to a consumer of the group, with this time. Only of a `Consumer`."""
    @property
    def reclaimed(self) -> bool:
        """Whether the entry was taken over from another consumer. Only of a `Consumer`."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: object, /) -> Self: ...
    def __reduce__(self) -> Never: ...

@final
class ReadBatch:
    """Entries of one stream, in order of their IDs, as an Arrow record batch: one row each unless `unpack` is given.

    `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
    `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
    """
    @property
    def num_rows(self) -> int:
        """The number of rows."""
    @property
    def stream(self) -> bytes:
        """The key of the stream."""
    @property
    def first_id(self) -> str:
        """The ID of the first entry."""
    @property
    def last_id(self) -> str:
        """The ID of the last entry."""
    @property
    def position(self) -> str:
        """The reader's position after this batch, in all its streams: a short JSON text.

        A reader that has it as `start` reads what follows.
        """
    @property
    def lost(self) -> int:
        """The number of entries of the stream that were trimmed before they were read, since its previous batch.

        Greater than 0 only with `on_loss="report"`. What a `FieldError` in between has reported is not included.
        """
    @property
    def is_lost_exact(self) -> bool:
        """Whether `lost` is exact; otherwise it is an upper bound."""
    def _json_lines(self) -> bytes:
        """Return the entries as lines of JSON: `id`, `timestamp`, `stream`, `fields`.

        For the command. The reader must have the metadata `entry_id` and `entry_ms`, and `fields_as="list"`.
        """
    def _entries(self) -> list[tuple[str, int, list[tuple[str, bytes]] | None]]:
        """Return the entries as tuples: ID, milliseconds of the ID, and fields. Of the same reader as `_json_lines`."""
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Entry]: ...
    @overload
    def __getitem__(self, row: SupportsIndex, /) -> Entry: ...
    @overload
    def __getitem__(self, row: slice, /) -> list[Entry]: ...
    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each row, with the values of all columns as Python objects; no Arrow library is needed.

        The values are those of pyarrow's `to_pylist`: `Decimal`, `datetime` with a `ZoneInfo`, `UUID`, and so on; a
        map is a list of pairs. A value that Python's `datetime` cannot hold (nanoseconds, years outside 1 to 9999) is
        a `ValueError` that names its column and row: read it with an Arrow library.
        """
    def _shown_rows(self, rows: int, fields: int) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the ID, and names and beginnings of values, of the first rows, for notebooks."""
    def _repr_html_(self) -> str: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the batch as `PyCapsule`s of the Arrow C data interface."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batch as a `PyCapsule`."""

_Id = tuple[int, int]

@final
class ConsumerBatch:
    """Entries of one stream, delivered to a consumer, as an Arrow record batch with one row each.

    `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
    `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
    """

    @property
    def num_rows(self) -> int:
        """The number of rows."""
    @property
    def stream(self) -> bytes:
        """The key of the stream."""
    @property
    def entry_ids(self) -> list[str]:
        """The IDs of the entries, in the order of the rows."""
    def check(self) -> None:
        """Before a commit, raise `LeaseLostError` if entries of the batch may belong to another consumer by now."""
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Entry]: ...
    @overload
    def __getitem__(self, row: SupportsIndex, /) -> Entry: ...
    @overload
    def __getitem__(self, row: slice, /) -> list[Entry]: ...
    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each row, with the values of all columns as Python objects; no Arrow library is needed.

        The values are those of pyarrow's `to_pylist`: `Decimal`, `datetime` with a `ZoneInfo`, `UUID`, and so on; a
        map is a list of pairs. A value that Python's `datetime` cannot hold (nanoseconds, years outside 1 to 9999) is
        a `ValueError` that names its column and row: read it with an Arrow library.
        """
    def _shown_rows(self, rows: int, fields: int) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the ID, and names and beginnings of values, of the first rows, for notebooks."""
    def _repr_html_(self) -> str: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the batch as `PyCapsule`s of the Arrow C data interface."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batch as a `PyCapsule`."""

@final
class ShardBatch:
    """Entries of one stream, in their order, as an Arrow record batch: one row each, unless `unpack` is given.

    `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
    `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
    """
    @property
    def num_rows(self) -> int:
        """The number of rows."""
    @property
    def stream(self) -> bytes:
        """The key of the stream."""
    @property
    def shard(self) -> int:
        """The number of the stream among those of the consumer: with shards, the number of the shard."""
    @property
    def epoch(self) -> int:
        """The fencing token: a number that grows each time the stream is taken, from 1 to 2**53.

        A database that stores it with the rows can refuse those of an earlier owner (docs/shards.md#fencing).
        """
    @property
    def first_id(self) -> str:
        """The ID of the first entry."""
    @property
    def last_id(self) -> str:
        """The ID of the last entry: the place of this batch in its stream."""
    @property
    def lost(self) -> int:
        """The number of entries of the stream that were trimmed before they were read, since its previous batch.

        Greater than 0 only with `on_loss="report"`.
        """
    @property
    def is_lost_exact(self) -> bool:
        """Whether `lost` is exact; otherwise it is an upper bound."""
    def check(self) -> None:
        """Before a commit, raise `LeaseLostError` if another member may own the stream by now."""
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Entry]: ...
    @overload
    def __getitem__(self, row: SupportsIndex, /) -> Entry: ...
    @overload
    def __getitem__(self, row: slice, /) -> list[Entry]: ...
    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each row, with the values of all columns as Python objects; no Arrow library is needed.

        The values are those of pyarrow's `to_pylist`: `Decimal`, `datetime` with a `ZoneInfo`, `UUID`, and so on; a
        map is a list of pairs. A value that Python's `datetime` cannot hold (nanoseconds, years outside 1 to 9999) is
        a `ValueError` that names its column and row: read it with an Arrow library.
        """
    def _shown_rows(self, rows: int, fields: int) -> list[tuple[str, list[tuple[str, str]]]]: ...
    def _repr_html_(self) -> str: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the batch as `PyCapsule`s of the Arrow C data interface."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batch as a `PyCapsule`."""

@final
class Consumer:
    """The native half of `headrace.Consumer`, which documents it."""
    def __new__(
        cls,
        endpoint: Endpoint,
        streams: Sequence[bytes],
        options: dict[str, object],
        schema: _Schema | None = None,
        opens: bool = True,
    ) -> Self: ...
    def begin_open(self) -> None:
        """Begin to connect, and to create the groups."""
    def begin_poll(self, timeout: float | None = None) -> None:
        """Begin to wait for a batch, for at most `timeout` seconds."""
    def begin_flush(self, timeout: float | None = None) -> None:
        """Begin to wait for the server to process every `ack`, `fail` and `release`, for at most `timeout` seconds."""
    def begin_close(self, releases: bool, timeout: float) -> None:
        """Begin to close the consumer."""
    def advance(self) -> tuple[bool, list[tuple[int, int, bool]], float | None]:
        """Do what can be done without waiting of what was begun, and renew leases.

        Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
        writable too); and in how many seconds to call again at the latest, or None.
        """
    def interrupt(self) -> None:
        """End what was begun. The next call continues from there."""
    def take_opened(self) -> None:
        """Raise the error of an open that failed."""
    def take_batch(self) -> ConsumerBatch | None:
        """Return the batch that a poll has returned, or None."""
    def take_report(self) -> dict[str, int]:
        """Return what a flush or a close has returned."""
    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
    @property
    def is_woken(self) -> bool:
        """Whether leases must be renewed, or decisions be sent, soon: call `advance`."""
    def poll(self, timeout: float | None = None) -> ConsumerBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called."""
    def drop_stream(self, stream: bytes) -> None:
        """Read a stream no longer."""
    def flush(self, timeout: float | None = None) -> dict[str, int]:
        """Wait until the server has processed every `ack`, `fail` and `release`, for at most `timeout` seconds.

        Returns the counts by name, as `headrace.ReadReport` takes them.
        """
    def close(self, releases: bool, timeout: float) -> dict[str, int]:
        """Close the consumer; with `releases`, entries without an `ack`, `fail` or `release` go back to the group."""
    @property
    def has_namesake(self) -> bool:
        """Whether another consumer of the same name was there when this one connected, and half a second later."""
    def stop(self) -> None:
        """Return no further batches: `poll` returns None. Can be called from any thread and from a signal handler."""
    def report(self) -> dict[str, int]:
        """Return the counts so far."""
    @property
    def unconfirmed(self) -> int:
        """The number of entries that were acknowledged, failed or released, and that the server has not replied to.

        Zero once the consumer is closed, and in a forked process.
        """
    @property
    def counters(self) -> ReadCounters:
        """The counters so far; `headrace.Consumer.stats` reads them."""
    def ack(self, batch: ConsumerBatch | Entry, mask: Sequence[bool] | None = None) -> None:
        """Acknowledge an entry, the entries of a batch, or those that `mask` selects."""
    def ack_ids(self, stream: bytes, entry_ids: Sequence[str]) -> None:
        """Acknowledge the entries with these IDs."""
    def fail(self, batch: ConsumerBatch | Entry, mask: Sequence[bool] | None, reason: str, delay: float | None) -> None:
        """Report an entry, the entries of a batch, or those that `mask` selects, as failed."""
    def fail_ids(self, stream: bytes, entry_ids: Sequence[str], reason: str, delay: float | None) -> list[str]:
        """Report the entries with these IDs as failed. Returns the IDs that this consumer does not have."""
    def release(self, batch: ConsumerBatch | Entry, mask: Sequence[bool] | None, delay: float) -> None:
        """Give an entry, the entries of a batch, or those that `mask` selects, back to the group."""
    def release_ids(self, stream: bytes, entry_ids: Sequence[str], delay: float) -> list[str]:
        """Give the entries with these IDs back to the group. Returns the IDs that this consumer does not have."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`."""

@disjoint_base
class Reader:
    """The native half of `headrace.Reader`, which documents it."""
    def __new__(
        cls,
        endpoint: Endpoint,
        streams: Sequence[bytes],
        options: dict[str, object],
        schema: _Schema | None = None,
        opens: bool = True,
    ) -> Self: ...
    def stop(self) -> None:
        """Return no further batches: `read` returns None. Can be called from any thread and from a signal handler."""
    @property
    def _is_stopped(self) -> bool:
        """Whether `stop` was called."""
    def _begin_open(self) -> None:
        """Begin to connect, and to find where each stream begins and ends."""
    def _begin_wait(self, timeout: float | None = None) -> None:
        """Begin to wait for a batch, until everything was read, or for `timeout` seconds."""
    def _advance(self) -> tuple[bool, list[tuple[int, int, bool]], float | None]:
        """Do what can be done without waiting of what was begun.

        Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
        writable too); and in how many seconds to call again at the latest, or None.
        """
    def _take_done(self) -> None:
        """Raise the error of what was begun."""
    def _interrupt(self) -> None:
        """End what was begun. The next call continues from there."""
    def _take(self) -> ReadBatch | None:
        """Return the next batch that has arrived, or None. The rest is as for `read`."""
    def read(self, timeout: float | None = None) -> ReadBatch | None:
        """Return the next batch, or None after `timeout` seconds or once everything was read.

        If the number of lost entries is not known or not exact, `_doubt` is called with the reason first. If that
        raises, the next call returns the batch. `_notice` is called with each other text for the caller.
        """
    @property
    def is_finished(self) -> bool:
        """Whether everything was read."""
    @property
    def position(self) -> str:
        """The position after the batches so far, as text."""
    def _last_entry(self, stream: bytes) -> str | None:
        """Return the entry that the position in a stream follows; None: it follows none, or the reader is in use."""
    @property
    def lost(self) -> int:
        """The number of entries of all streams trimmed before they were read, since the reader was created."""
    @property
    def is_lost_exact(self) -> bool:
        """Whether `lost` is exact; otherwise it is an upper bound."""
    def drop_stream(self, stream: bytes) -> None:
        """Read a stream no longer."""
    @property
    def counters(self) -> ReadCounters:
        """The counters so far; `headrace.Reader.stats` reads them."""
    def close(self) -> None:
        """Close the connection."""
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all remaining batches as a `PyCapsule` of the Arrow C stream interface."""

@final
class ShardConsumer:
    """The native half of `headrace.ShardConsumer`, which documents it."""
    def __new__(
        cls,
        endpoint: Endpoint,
        streams: Sequence[bytes],
        options: dict[str, object],
        schema: _Schema | None = None,
        opens: bool = True,
    ) -> Self: ...
    def begin_open(self) -> None:
        """Begin to find out where the streams are."""
    def begin_poll(self, timeout: float | None = None) -> None:
        """Begin to wait for a batch, for at most `timeout` seconds."""
    def begin_flush(self, timeout: float | None = None) -> None:
        """Begin to wait for the server to process every commit, for at most `timeout` seconds."""
    def begin_close(self, timeout: float) -> None:
        """Begin to close the consumer."""
    def advance(self) -> tuple[bool, list[tuple[int, int, bool]], float | None]:
        """Do what can be done without waiting of what was begun, and take and renew leases.

        Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
        writable too); and in how many seconds to call again at the latest, or None.
        """
    def interrupt(self) -> None:
        """End what was begun. The next call continues from there."""
    def take_opened(self) -> None:
        """Raise the error of an open that failed."""
    def take_polled(self) -> tuple[Literal["batch", "assigned", "revoked", "nothing"], Any]:
        """Return what a poll has returned, as `poll` does."""
    def take_report(self) -> dict[str, int]:
        """Return what a flush or a close has returned."""
    @property
    def is_woken(self) -> bool:
        """Whether leases must be renewed, or commits be sent, soon: call `advance`."""
    def poll(self, timeout: float | None = None) -> tuple[Literal["batch", "assigned", "revoked", "nothing"], Any]:
        """Return the next batch, or the streams that came or went; or nothing after `timeout` seconds or `stop`.

        The first is "batch", "assigned", "revoked" or "nothing", the second a `ShardBatch`, a list of keys, or None.
        """
    def commit(self, batch: ShardBatch | Entry) -> None:
        """Commit a batch, or the entries of its batch up to an entry, and everything before it in its stream."""
    def fail(self, batch: ShardBatch | Entry, reason: str, delay: float | None) -> None:
        """Report a batch, or an entry of one, as failed."""
    @property
    def assignment(self) -> list[bytes]:
        """The keys of the streams that this member owns."""
    def flush(self, timeout: float | None = None) -> dict[str, int]:
        """Wait until the server has processed every commit, for at most `timeout` seconds.

        Returns the counts by name, as `headrace.ShardReport` takes them.
        """
    def close(self, timeout: float) -> dict[str, int]:
        """Close the consumer: send its commits, and give its streams up."""
    def stop(self) -> None:
        """Return no further batches: `poll` returns None. Can be called from any thread and from a signal handler."""
    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
    def report(self) -> dict[str, int]:
        """Return the counts so far."""
    @property
    def counters(self) -> ReadCounters:
        """The counters so far; `headrace.ShardConsumer.stats` reads them."""
    @property
    def unconfirmed(self) -> int:
        """The number of entries that were committed, and that the server has not confirmed.

        Zero once the consumer is closed, and in a forked process.
        """
    def __arrow_c_schema__(self) -> object:
        """Return the schema of the batches as a `PyCapsule`."""
