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
    └── DeliveryError
        └── ConnectionFailedError (ConnectionError)

In brackets: the builtin that is a base class too. All can be pickled, so that they cross the process borders of Spark
and of multiprocessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.report import Failure

__all__ = [
    "ClosedError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "DeliveryError",
    "HeadraceError",
    "InternalError",
    "LocalServerError",
    "MessageError",
    "ReaderError",
    "SchemaError",
    "StateError",
]


class HeadraceError(Exception):
    """The root of all errors of headrace."""


class ConfigError(HeadraceError, ValueError):
    """An option is unknown, of a wrong type, out of its range, or contradicts another one.

    Attributes:
        option: Name of the option, as it was given.
    """

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class SchemaError(HeadraceError, TypeError):
    """Arrow data lacks a column that was asked for, or has it with a type that cannot be written.

    Also what `unpack` gets where a client's fields should be.
    """


class MessageError(HeadraceError, ValueError):
    """A payload or message ID cannot be taken: its type or its range is wrong.

    Also an entry of which `unpack` can make no rows.
    """


class ReaderError(HeadraceError, RuntimeError):
    """The record batch reader that was handed to `produce_batch` failed, or its record batch is malformed.

    The rows of the record batches before it were taken; the next report tells of them. Where the reader ran Python, a
    note has the traceback of what was raised there.
    """


class InternalError(HeadraceError, RuntimeError):
    """A defect of headrace ended the call. The dispatcher goes on.

    The next report has an outcome for each message. Those that the call could not take failed with the code `INTERNAL`;
    those whose reply could not be read failed with it too, and with `written` unknown. The logger `headrace` says where
    the defect is.
    """


class StateError(HeadraceError, RuntimeError):
    """The dispatcher cannot do this now: `begin` and `skip_failed` need a `flush` before."""


class ClosedError(StateError):
    """The dispatcher is closed."""


class ConcurrentUseError(StateError):
    """A second call came while the first was running: a dispatcher serves one caller at a time."""


class LocalServerError(HeadraceError, RuntimeError):
    """A local server was not found, or did not start."""


class DeliveryError(HeadraceError):
    """Messages were not delivered.

    Attributes:
        failures: The first failures, at most ten; a report has them all.
        delivered: How many messages were delivered.
        failed: How many were not.
        failed_by_code: How many failed with each code.
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
        # The attributes travel as state; the message alone makes the object.
        return type(self), self.args, self.__dict__


class ConnectionFailedError(DeliveryError, ConnectionError):
    """`Dispatcher.dispatch` could not reach the server, or lost it.

    `failures[0].written` says whether the message may be in the stream.
    """
