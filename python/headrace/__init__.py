"""Carries Arrow record batches into Redis Streams, with a delivery outcome for every message, and out of them."""

import warnings
from typing import TYPE_CHECKING

from headrace._headrace import Delivered, __version__, debug_build
from headrace.consumer import Consumer, ConsumerBatch, ReadReport
from headrace.dead_letters import read_dead_letters
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, InsecureWarning
from headrace.errors import (
    ClosedError,
    CommandError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    DataLossError,
    DeliveryError,
    FieldError,
    GroupMissingError,
    HeadraceError,
    InternalError,
    LeaseLostError,
    MessageError,
    ReaderError,
    SchemaError,
    StateError,
    StreamReplacedError,
)
from headrace.failure import Failure
from headrace.group import Group
from headrace.inspect import Inspection, inspect
from headrace.reader import ReadBatch, Reader
from headrace.report import DeliveryReport
from headrace.retry import RetryPolicy
from headrace.unpack import unpack, unpack_arrow

if TYPE_CHECKING:
    from headrace.async_dispatcher import AsyncDispatcher

__all__ = [
    "AsyncDispatcher",
    "ClosedError",
    "CommandError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerBatch",
    "DataLossError",
    "Delivered",
    "DeliveryError",
    "DeliveryReport",
    "Dispatcher",
    "Endpoint",
    "Failure",
    "FieldError",
    "Group",
    "GroupMissingError",
    "HeadraceError",
    "InsecureWarning",
    "Inspection",
    "InternalError",
    "LeaseLostError",
    "MessageError",
    "ReadBatch",
    "ReadReport",
    "Reader",
    "ReaderError",
    "RetryPolicy",
    "SchemaError",
    "StateError",
    "StreamReplacedError",
    "__version__",
    "inspect",
    "read_dead_letters",
    "unpack",
    "unpack_arrow",
]

if debug_build:
    warnings.warn("this is a debug build of headrace, many times slower than a release build", stacklevel=2)


def __getattr__(name: str) -> object:
    # Imported when it is needed: asyncio takes longer to import than headrace.
    if name == "AsyncDispatcher":
        from headrace.async_dispatcher import AsyncDispatcher

        globals()[name] = AsyncDispatcher
        return AsyncDispatcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
