"""The exceptions of headrace.

    HeadraceError
    ├── ConfigError (ValueError)
    ├── SchemaError (TypeError)
    ├── MessageError (ValueError)
    ├── ReaderError (RuntimeError)
    ├── StateError (RuntimeError)
    │   ├── ClosedError
    │   └── ConcurrentUseError
    ├── InternalError (RuntimeError)
    ├── LocalServerError (RuntimeError)
    ├── DataLossError
    ├── FieldError (ValueError)
    ├── StreamReplacedError
    ├── LeaseLostError
    ├── CommandError (RuntimeError)
    ├── GroupMissingError (LookupError)
    └── DeliveryError
        └── ConnectionFailedError (ConnectionError)

In brackets: the built-in exception that is also a base class. All errors can be pickled, to pass between the processes
of Spark and of multiprocessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.failure import Failure

__all__ = [
    "ClosedError",
    "CommandError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "DataLossError",
    "DeliveryError",
    "FieldError",
    "GroupMissingError",
    "HeadraceError",
    "InternalError",
    "LeaseLostError",
    "LocalServerError",
    "MessageError",
    "ReaderError",
    "SchemaError",
    "StateError",
    "StreamReplacedError",
]


class HeadraceError(Exception):
    """The base class of all errors of headrace."""


class ConfigError(HeadraceError, ValueError):
    """An option is unknown, has the wrong type, is out of range, or contradicts another option.

    Attributes:
        option: The name of the option.
    """

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class SchemaError(HeadraceError, TypeError):
    """Arrow data lacks a requested column, or the column has a type that cannot be written.

    Also raised by `unpack` if its argument is not a mapping of an entry's fields.
    """


class MessageError(HeadraceError, ValueError):
    """A payload, message ID, token or version has the wrong type or is out of range.

    Also raised by `unpack` for an entry whose payloads are missing or corrupt.
    """


class ReaderError(HeadraceError, RuntimeError):
    """The record batch reader that was passed to `produce_batch` failed, or its record batch is malformed.

    The rows of earlier record batches were accepted; the next report has their outcomes. If the reader ran Python code,
    a note holds the traceback of its exception.
    """


class InternalError(HeadraceError, RuntimeError):
    """A defect in headrace ended the call. The dispatcher remains usable.

    The next report has an outcome for each message. Messages that the call could not accept have failed with the code
    `INTERNAL`; so have those whose reply could not be read, with `written` unknown. The logger `headrace` records the
    source position of the defect.
    """


class StateError(HeadraceError, RuntimeError):
    """The current state does not allow this call; the message states what must be done first.

    `Dispatcher.begin` and `Dispatcher.skip_failed` need a `flush` first; `Group.delete_consumer` refuses a consumer
    with pending entries; an `AsyncDispatcher` cannot be used on another event loop or in a forked child.
    """


class ClosedError(StateError):
    """The dispatcher, reader or consumer is closed."""


class ConcurrentUseError(StateError):
    """Another call is in progress, beside which this one cannot run.

    A reader or consumer serves one caller at a time, and so do `begin`, `skip_failed` and `close` of a dispatcher.
    """


class LocalServerError(HeadraceError, RuntimeError):
    """A local server for tests was not found or did not start."""


class CommandError(HeadraceError, RuntimeError):
    """The server refused a command of `Group`, `inspect` or `Reader`, or a value needed to connect cannot be read now.

    Attributes:
        code: The first word of the server's reply (`NOPERM`, `WRONGTYPE`), or one of headrace's own codes:
            docs/outcomes.md.
        kind: Whether trying again can help: `"permanent"` or `"retryable"`.
        stream: The key of the stream that a `Reader` or a `Consumer` was refused. The next call continues with the
            others. Empty if the command concerns no single stream of theirs.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        kind: Literal["permanent", "retryable"] = "permanent",
        stream: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind
        self.stream = stream


class GroupMissingError(HeadraceError, LookupError):
    """The stream or its consumer group does not exist: `Group.create` creates both.

    Attributes:
        stream: The key of the stream.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"") -> None:
        super().__init__(message)
        self.stream = stream


class DeliveryError(HeadraceError):
    """Messages were not delivered.

    Attributes:
        failures: The first failures, at most ten; a report has all of them.
        delivered: The number of messages that were delivered.
        failed: The number of messages that failed.
        failed_by_code: The number of failed messages by code.
    """

    def __init__(
        self,
        message: str = "",
        *,
        failures: tuple[Failure, ...] = (),
        delivered: int = 0,
        failed: int = 0,
        failed_by_code: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.failures = failures
        self.delivered = delivered
        self.failed = failed
        self.failed_by_code = dict(failed_by_code or {})

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructor takes the message alone; the attributes are pickled as state.
        return type(self), self.args, self.__dict__


class ConnectionFailedError(DeliveryError, ConnectionError):
    """The server could not be reached, or the connection to it was lost.

    With `Dispatcher.dispatch` and `AsyncDispatcher.send`, `failures[0].written` is `"unknown"` if the message may be in
    the stream. With `Group`, `inspect` and `Reader`, which deliver no messages, `failures` is empty.
    """


class DataLossError(HeadraceError):
    """Entries were trimmed before they were read. The next call continues after the gap.

    Attributes:
        stream: The key of the stream.
        lost: The number of entries.
        exact: Whether `lost` is exact; otherwise it is an upper bound.
        position: The position at which a reader continues after the gap.
    """

    def __init__(
        self, message: str = "", *, stream: bytes = b"", lost: int = 0, exact: bool = True, position: str = ""
    ) -> None:
        super().__init__(message)
        self.stream = stream
        self.lost = lost
        self.exact = exact
        self.position = position


class FieldError(HeadraceError, ValueError):
    """A value of an entry does not fit its column. All entries before it were returned; the next call skips it.

    Attributes:
        stream: The key of the stream.
        entry_id: The ID of the entry.
        lost: The number of entries right before it that were trimmed before they were read. Greater than 0 only with
            `on_loss="report"`, and if no batch has reported them.
        exact: Whether `lost` is exact; otherwise it is an upper bound.
        position: The position at which a reader continues after the entry.
    """

    def __init__(
        self,
        message: str = "",
        *,
        stream: bytes = b"",
        entry_id: str = "",
        lost: int = 0,
        exact: bool = True,
        position: str = "",
    ) -> None:
        super().__init__(message)
        self.stream = stream
        self.entry_id = entry_id
        self.lost = lost
        self.exact = exact
        self.position = position


class StreamReplacedError(HeadraceError):
    """A stream was deleted or recreated since it was read, or its server lost its latest entries.

    Attributes:
        stream: The key of the stream.
        position: The position of a reader that begins with the oldest entry of this stream, and goes on in the others.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"", position: str = "") -> None:
        super().__init__(message)
        self.stream = stream
        self.position = position


class LeaseLostError(HeadraceError):
    """Entries of a batch were not renewed for nine tenths of `min_idle`, or belong to another consumer.

    Roll their rows back, and pass the batch to `Consumer.release`: until then it counts as being processed.

    Attributes:
        stream: The key of the stream.
        entry_ids: The IDs of the entries.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"", entry_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.stream = stream
        self.entry_ids = list(entry_ids)
