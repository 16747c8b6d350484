"""The native half of headrace; `headrace.Dispatcher`, `headrace.Endpoint` and `headrace.DeliveryReport` are for use."""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, Self, SupportsIndex, final

from typing_extensions import disjoint_base

__all__ = [
    "Counters",
    "Dispatcher",
    "Endpoint",
    "Outcomes",
    "Report",
    "Rows",
    "__version__",
    "code_table",
    "debug_build",
    "decode_rows",
    "option_table",
    "read_options",
]

__version__: Final[str]
debug_build: Final[bool]

_Kind = Literal["permanent", "retryable"]
_Written = Literal["no", "unknown"]

def code_table() -> list[tuple[str, bool, dict[str, _Kind], bool, bool, list[_Written], str | None, str]]:
    """Return the rows of the table of error codes; `headrace.tables` names their parts."""

def option_table(name: str) -> list[tuple[str, str, object, bool, bool, str]]:
    """Return the rows of a table of options; `headrace.tables` names their parts."""

def read_options(name: str, options: dict[str, str]) -> dict[str, Any]:
    """Return every option of a table, read from text, with its default where it is not given."""

class _ArrowArray(Protocol):
    """A record batch of any Arrow library."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class _ArrowStream(Protocol):
    """A table or a reader of any Arrow library."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@disjoint_base
class Dispatcher:
    def __new__(cls, endpoint: Endpoint, options: dict[str, object], text: bool = False) -> Self: ...
    def produce(self, payload: bytes | bytearray | memoryview | str, message_id: int | str | None = None) -> None:
        """Take one message, and wait for nothing but room in the window.

        Args:
            payload: Bytes-like, or a str that is sent as UTF-8. At most what the server takes (`proto-max-bulk-len`,
                512 MiB by default): a longer one fails alone, permanent, `TOO_LARGE`.
            message_id: The caller's name for the message, which reports give back: a str of at most 16 KiB, or an int
                of 64 bits. Without one it is the message's ordinal since the last flush.

        Raises:
            MessageError: The payload or the message ID is of another type or out of range.
            ClosedError: The dispatcher was closed.
            ConcurrentUseError: Another call is under way.
        """

    def produce_batch(
        self,
        data: _ArrowArray | _ArrowStream,
        *,
        payload: str | None = None,
        fields: Sequence[str] | None = None,
        json: bool | Sequence[str] | None = None,
        message_id: str | None = None,
        stream_key: str | None = None,
        entry_id: str | None = None,
        rows_per_entry: int | None = None,
        arrow_ipc: bool = False,
        codec: Literal["lz4", "zstd"] | None = None,
    ) -> None:
        """Take every row of Arrow data as a message, straight from its buffers.

        One of `payload`, `fields` and `json` says what a row's entry holds; beside it each entry has the field `ts`.
        A row that cannot be written (a null payload, no field at all) fails alone, as a permanent outcome.
        `rows_per_entry` and `arrow_ipc` put many rows into one entry, which costs the server less: each row keeps its
        outcome, but has its entry's ID, and `maxlen` counts entries.

        Args:
            data: A record batch, table or reader with an Arrow PyCapsule: pyarrow, polars, pandas and others. A reader
                is read one record batch at a time. If it fails, the rows before are taken.
            payload: Column with the payload: utf8, large_utf8, utf8_view, binary, large_binary or binary_view. Default
                `"payload"`, unless `fields` or `json` is given. A null fails: `NULL_PAYLOAD`.
            fields: Columns that become a field each, under their names. Typed values are written as text; a null is
                left out; a row without any fails: `EMPTY`, one with a time outside a day: `BAD_VALUE`. Nested columns
                are refused.
            json: True: the payload is the whole row as JSON, as Spark's `to_json` writes it (nulls left out). A
                sequence of names: these columns. A time outside a day fails: `BAD_VALUE`.
            message_id: Column that names each row in reports: an integer type, utf8 of at most 16 KiB, or `arrow.uuid`.
                A null means the ordinal.
            stream_key: Column with the row's own stream key, utf8 or binary; null means the endpoint's.
            entry_id: Column with the row's own entry ID, utf8: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`; null means
                `*`. Anything else fails: `BAD_ENTRY_ID`.
            rows_per_entry: With `payload` or `json`: up to so many rows become fields `payload:0`, `payload:1`, ... of
                one entry, which `headrace.unpack` reads back. Default 1; 1 to 65,536. Excludes `fields`, `stream_key`
                and `entry_id`. An entry holds rows of one record batch, and ends with the one that fills
                `window_max_bytes`.
            arrow_ipc: True: the payload of an entry is an Arrow IPC stream of up to `rows_per_entry` rows (default
                10,000), with all columns or those of `fields`; `headrace.unpack_arrow` and
                `pyarrow.ipc.open_stream` read it back. Excludes the other layouts, `stream_key` and `entry_id`.
            codec: With `arrow_ipc`: compresses it. None (default), `"lz4"` or `"zstd"`.

        Raises:
            ConfigError: `rows_per_entry` or `codec` is wrong; nothing was sent.
            SchemaError: A column does not exist or has a type that cannot be written, or arguments are mutually
                exclusive; nothing was sent.
            ReaderError: The reader failed, or its record batch is malformed: no row of that record batch was taken, all
                rows before it were.
            InternalError: A defect of headrace. The rows of the record batch that were not taken fail: permanent,
                `INTERNAL`, written no (unknown in a batch that was begun).
            ClosedError: The dispatcher was closed.
            ConcurrentUseError: Another call is under way.
            KeyboardInterrupt: Rows of the record batch that were not taken yet fail: retryable, `INTERRUPTED`, written
                no (unknown in a batch that was begun).
            KeyboardInterrupt, SystemExit: Raised in the reader's own Python, such as a generator behind
                `pyarrow.RecordBatchReader.from_batches`. Classes that derive from them come as `ReaderError`.
        """

    def begin(self, token: str, version: SupportsIndex = 0) -> None:
        """Name the batch that begins here, for `exactly_once`.

        Its messages are numbered from 0 in the order in which they are produced, over flushes too. Token and number
        name a message for ever: whoever begins the same token again, after a crash or in another process, and produces
        the same messages in the same order, writes only those that are not there yet. The others count as delivered
        and as `DeliveryReport.deduplicated`; their entry IDs are not known. Without `begin` the token is random:
        messages are then safe against lost connections, not against a crash.

        What an earlier try wrote only the server knows. Of a message that fails before it was asked (no connection, no
        rights, a refusal of the whole command) `written` is `"unknown"`; the same token once more ends the doubt.

        With `"script"` how far a batch has come is kept beside each of its streams, in a key
        `{<stream key>}:headrace:<token>` that expires `token_ttl` seconds after the batch's last row. With `"idmp"` the
        server remembers names for `idmp_duration` seconds, answers with the entry IDs of the first time, and does not
        say which messages it deduplicated; with `exactly_once_key="message_id"` token and message ID name a message and
        order does not matter.

        Args:
            token: 1 to 1,024 bytes of UTF-8.
            version: An integer, 0 to 2**53, and no boolean. A batch with a higher version takes the token over and
                starts from 0; of one with a lower version every message is deduplicated. So one key serves all
                micro-batches of a stream. With `"idmp"` it is a part of the token.

        Raises:
            ConfigError: `exactly_once` is off.
            MessageError: The token or the version is of another type or out of range.
            StateError: Messages wait for their outcomes: flush before.
        """

    def skip_failed(self) -> None:
        """Let the batch go on behind messages that failed, for `exactly_once`.

        Messages of one stream stay in order: behind one that was not written the others fail too, as `BLOCKED`, until
        the batch begins again or `skip_failed` says that the reported failures are handled (as dead letters, say).
        Those messages then count as passed: once a later one of their stream is written, they never will be under this
        token.

        Raises:
            StateError: Messages wait for their outcomes: flush before.
        """

    def poll(self) -> Report: ...
    def flush(self, timeout: float | None = None) -> Report: ...
    def dispatch(self, payload: bytes | bytearray | memoryview | str) -> str | tuple[_Kind, str, str, _Written]: ...
    def close(self) -> None: ...
    @property
    def counters(self) -> Counters:
        """What was done so far; `headrace.Dispatcher.stats` reads it."""

    def _debug(self) -> str: ...
    @property
    def unreported(self) -> int:
        """Messages whose outcome no report has told yet."""

    @property
    def closed(self) -> bool:
        """Whether the dispatcher was closed."""

@final
class Counters:
    """What a dispatcher has done so far, which any thread may read, also after the dispatcher is gone."""

    def read(self) -> dict[str, Any]: ...

@final
class Report:
    @property
    def delivered(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def deduplicated(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def possible_duplicates(self) -> int: ...
    def failures(self, limit: int | None = None) -> list[tuple[int | str, _Kind, str, str, _Written]]: ...
    def failed_ids(self) -> list[int | str]: ...
    def failed_by_code(self) -> dict[str, int]: ...
    def to_arrow(self, only_failed: bool = False) -> Outcomes: ...

@final
class Outcomes:
    """The outcomes of a report, for any Arrow library; see `headrace.DeliveryReport.to_arrow`."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __len__(self) -> int: ...

@final
class Rows:
    """The rows of one entry, for any Arrow library; see `headrace.unpack_arrow`."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __len__(self) -> int: ...

def decode_rows(stream: bytes) -> Rows: ...

@disjoint_base
class Endpoint:
    def __new__(
        cls,
        options: dict[str, object],
        *,
        url: str | None = None,
        inherited: dict[str, object] | None = None,
        text: bool = False,
    ) -> Self: ...
    def _option(self, name: str) -> object: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _state(self) -> tuple[dict[str, object], dict[str, object]]: ...
    def _debug(self) -> str: ...
    def _warnings(self) -> list[str]: ...
