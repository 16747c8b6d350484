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

In brackets: the builtin that is also a base class. All can be pickled, to pass between the processes of Spark and of
multiprocessing.
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
        option: Name of the option.
    """

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class SchemaError(HeadraceError, TypeError):
    """Arrow data lacks a requested column, or has it with a type that cannot be written.

    Also raised by `unpack` for an argument that is not the fields of an entry.
    """


class MessageError(HeadraceError, ValueError):
    """A payload, message ID, token or version has the wrong type or is out of range.

    Also raised by `unpack` for an entry whose payloads are missing or corrupt.
    """


class ReaderError(HeadraceError, RuntimeError):
    """The record batch reader that was passed to `produce_batch` failed, or its record batch is malformed.

    The rows of the record batches before it were taken; the next report has their outcomes. If the reader ran Python, a
    note has the traceback of its exception.
    """


class InternalError(HeadraceError, RuntimeError):
    """A defect of headrace ended the call. The dispatcher remains usable.

    The next report has an outcome for each message. Messages that the call could not take failed with the code
    `INTERNAL`; so did those whose reply could not be read, with `written` unknown. The logger `headrace` shows the
    source position of the defect.
    """


class StateError(HeadraceError, RuntimeError):
    """The state of things does not allow this call: the message says what must be done first.

    `Dispatcher.begin` and `Dispatcher.skip_failed` need a `flush` first; `Group.delete_consumer` refuses a consumer
    with pending entries; an `AsyncDispatcher` belongs to one event loop, and not to a forked child.
    """


class ClosedError(StateError):
    """The dispatcher is closed."""


class ConcurrentUseError(StateError):
    """Another call is in progress: a dispatcher serves one caller at a time."""


class LocalServerError(HeadraceError, RuntimeError):
    """A local server for tests was not found or did not start."""


class CommandError(HeadraceError, RuntimeError):
    """The server refused a command of `Group`, `inspect` or `Reader`, or what connecting needs cannot be read now.

    Attributes:
        code: The first word of the server's reply (`NOPERM`, `WRONGTYPE`), or a code of headrace: docs/outcomes.md.
        kind: Whether trying again can help: `"permanent"` or `"retryable"`.
    """

    def __init__(
        self, message: str = "", *, code: str = "", kind: Literal["permanent", "retryable"] = "permanent"
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class GroupMissingError(HeadraceError, LookupError):
    """The stream or its consumer group does not exist: `Group.create` creates both."""


class DeliveryError(HeadraceError):
    """Messages were not delivered.

    Attributes:
        failures: The first failures, at most ten; a report has all.
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

    Of `Dispatcher.dispatch` and `AsyncDispatcher.send`: `failures[0].written` is `"unknown"` if the message may be in
    the stream. Of `Group`, `inspect` and `Reader`, which deliver no messages, `failures` is empty.
    """


class DataLossError(HeadraceError):
    """Entries were trimmed before they were read. The next call goes on behind the gap.

    Attributes:
        stream: The key of the stream.
        lost: How many entries.
        exact: Whether that is their number, or the most that it can be.
        position: The position of a reader that goes on behind the gap.
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
    """A value of an entry does not fit its column. All entries before it were handed out; the next call skips it.

    Attributes:
        stream: The key of the stream.
        entry_id: The ID of the entry.
        position: The position of a reader that goes on behind the entry.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"", entry_id: str = "", position: str = "") -> None:
        super().__init__(message)
        self.stream = stream
        self.entry_id = entry_id
        self.position = position


class StreamReplacedError(HeadraceError):
    """A stream was deleted or recreated since it was read, or its server lost its latest entries.

    Attributes:
        stream: The key of the stream.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"") -> None:
        super().__init__(message)
        self.stream = stream


class LeaseLostError(HeadraceError):
    """Entries of a batch were not renewed for nine tenths of `min_idle`, or are another consumer's.

    Roll their rows back, and `Consumer.release` the batch: until then it counts as worked on.

    Attributes:
        stream: The key of the stream.
        entry_ids: The IDs of the entries.
    """

    def __init__(self, message: str = "", *, stream: bytes = b"", entry_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.stream = stream
        self.entry_ids = list(entry_ids)
